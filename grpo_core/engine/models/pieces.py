"""Encode and decode pieces of a text as they stand in the whole.

Many tokenizers treat the start of a text in a way of their own: those made from SentencePiece put a
space before it and drop that space again when they decode. So a piece that stands behind other text
has other tokens than the same piece alone, and tokens drawn behind a prompt have another text.
These functions give what the whole has. A tokenizer that does not do this (most byte-level ones)
encodes and decodes a piece alone; `is_context_free` tells which it is.

The functions take any tokenizer of transformers, and need neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

from grpo_core.engine.models.loading import is_panic
from grpo_core.protocol import thoughts
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.thoughts import Tags

_TAIL = 200
"""How many characters before a piece decide about its tokens; longer than any special token."""
_WHITE_SPACE_TOKENS = 16
"""How many tokens of white space may follow the tag with which a prompt opens a thought."""
_ANCHORS = ("\n", ".", "a")
"""Texts that stand in for the one before a piece where its last token merges with the piece."""
_PROBES = ("a", "1", "(", "\n", " a")
"""Texts by which the treatment of a start is found out."""


@dataclass(frozen=True, slots=True)
class _Traits:
    """Describe how a tokenizer treats the start of a text."""

    size: int
    """Number of its tokens when this was found out; tokens may be added later."""
    added: Mapping[int, str]
    """The tokens that are not of its vocabulary, and stand for themselves whatever is around."""
    anchor: tuple[int, ...]
    """Tokens behind which others are decoded as inside a text."""
    anchor_text: str
    """Their text; "" if there are no such tokens."""
    context_free: bool
    """Whether a piece has the same tokens alone, and tokens alone the same text, as in a whole."""
    marks_start: bool = False
    """Whether a space is put before a text."""
    marks_sections: bool = False
    """Whether a space is put before what follows an added token, too."""
    ignores_spaces: bool = False
    """Whether a word has the same tokens with and without a space before it."""


_traits_by_tokenizer: WeakKeyDictionary[Any, _Traits] = WeakKeyDictionary()


def is_context_free(tokenizer: Any) -> bool:
    """Return whether pieces have the same tokens alone as inside a text, and the same texts."""
    return _traits(tokenizer).context_free


def encode_after(tokenizer: Any, before: str, piece: str) -> list[int]:
    """Return the tokens of `piece` as it stands behind `before`, without special tokens.

    They are the tokens of the whole without those of `before`. Where a token of the whole would
    reach across the boundary, they are those that the piece has behind another text.

    Args:
        tokenizer: a tokenizer of transformers.
        before: the text before the piece; "": the piece begins the text.
        piece: the text to encode.
    """
    if before and piece and not is_context_free(tokenizer):
        for text in (before[-_TAIL:], *_ANCHORS):
            rest = _rest(tokenizer, text, piece)
            if rest is not None:
                return rest
    return _encode(tokenizer, piece)


def hidden_ids(tokenizer: Any, end_ids: Iterable[int]) -> frozenset[int]:
    """Return the tokens that are no text of a policy: those that end a turn, and padding.

    Args:
        tokenizer: a tokenizer of transformers.
        end_ids: every token that ends a completion.
    """
    own = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return frozenset(end_ids).union(token for token in own if token is not None)


def decode(
    tokenizer: Any,
    token_ids: Sequence[int],
    *,
    hidden: Collection[int] = (),
    after: Sequence[int] = (),
    begins: bool = False,
) -> str:
    """Return the text of tokens that stand inside a text.

    Every token is shown, special ones too, except `hidden` and those that the tokenizer does not
    know. No space is cleaned up. It is the inverse of `encode_after`.

    Args:
        tokenizer: a tokenizer of transformers.
        token_ids: the tokens (T,).
        hidden: tokens that have no text.
        after: the tokens before; (): ordinary text stands there.
        begins: whether the tokens begin a text.
    """
    traits, parts = _traits(tokenizer), []
    is_section = begins or traits.ignores_spaces or _is_section(traits, tokenizer, after)
    shown_ids = [token for token in token_ids if token not in hidden]
    for is_added, run in groupby(shown_ids, key=traits.added.__contains__):
        if is_added:
            parts += [traits.added[token] for token in run]
            is_section = traits.marks_sections or traits.ignores_spaces
            continue
        text = _decode_inside(tokenizer, traits, list(run))
        parts.append(text.removeprefix(" ") if is_section and not traits.context_free else text)
    return "".join(parts)


def opens_thought(tokenizer: Any, prefix_ids: Sequence[int], tags: Tags | None) -> bool:
    """Return whether tokens end with the tag that opens a thought, white space aside.

    Args:
        tokenizer: a tokenizer of transformers.
        prefix_ids: all tokens before a turn; only the last ones are decoded.
        tags: the texts that open and close thoughts; None: nothing is a thought.
    """
    if tags is None:
        return False
    size = len(tags[0].encode()) + _WHITE_SPACE_TOKENS
    return thoughts.opens_thought(decode(tokenizer, prefix_ids[-size:]), tags)


def _is_section(traits: _Traits, tokenizer: Any, after: Sequence[int]) -> bool:
    """Return whether the tokenizer puts a space before what follows the tokens `after`."""
    if len(after) == 1 and after[0] == tokenizer.bos_token_id:
        return traits.marks_start  # which a tokenizer puts before a text, not the text
    return bool(after) and traits.marks_sections and after[-1] in traits.added


@contextmanager
def tokenizer_errors() -> Iterator[None]:
    """Turn a panic of a tokenizer, which is no Exception, into a ConfigError."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ConfigError(
            f"the model's tokenizer failed at a text: {str(error).strip()[:200]}; get its "
            "tokenizer.json again, or take another model"
        ) from error


def _encode(tokenizer: Any, text: str) -> list[int]:
    with tokenizer_errors():
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    with tokenizer_errors():
        return str(
            tokenizer.decode(
                list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


def _rest(tokenizer: Any, before: str, piece: str) -> list[int] | None:
    """Return the tokens of the whole without those of `before`; None if one spans both."""
    before_ids = _encode(tokenizer, before)
    whole_ids = _encode(tokenizer, before + piece)
    count = len(before_ids)
    return whole_ids[count:] if count and whole_ids[:count] == before_ids else None


def _decode_inside(tokenizer: Any, traits: _Traits, token_ids: list[int]) -> str:
    """Return the text of tokens behind ordinary text."""
    if traits.context_free or not traits.anchor_text:
        return _decode(tokenizer, token_ids)
    text = _decode(tokenizer, (*traits.anchor, *token_ids))
    return text.removeprefix(traits.anchor_text)


def _traits(tokenizer: Any) -> _Traits:
    """Return how a tokenizer treats the start of a text, which is found out once."""
    traits = _traits_by_tokenizer.get(tokenizer)
    if traits is None or traits.size != len(tokenizer):
        traits = _traits_by_tokenizer[tokenizer] = _find_traits(tokenizer)
    return traits


def _find_traits(tokenizer: Any) -> _Traits:
    added = {index: str(token.content) for index, token in tokenizer.added_tokens_decoder.items()}
    anchor = next(
        (
            (tuple(ids), text)
            for text in _ANCHORS[::-1]
            if (ids := _encode(tokenizer, text)) and _decode(tokenizer, ids) == text
        ),
        ((), ""),
    )
    traits = _Traits(len(tokenizer), added, *anchor, context_free=False)
    return _Traits(
        traits.size,
        added,
        *anchor,
        context_free=_finds_context_free(tokenizer, traits),
        marks_start=_begins_with_space(tokenizer, traits, _encode(tokenizer, "a")),
        marks_sections=_finds_marked_sections(tokenizer, traits),
        ignores_spaces=_rest(tokenizer, ".", " a") == _rest(tokenizer, ".", "a") is not None,
    )


def _finds_context_free(tokenizer: Any, traits: _Traits) -> bool:
    """Return whether no probe has other tokens, or another text, alone than behind other texts."""
    for probe in _PROBES:
        alone = _encode(tokenizer, probe)
        for anchor in _ANCHORS:
            rest = _rest(tokenizer, anchor, probe)
            if rest is None:
                continue
            if rest != alone or _decode_inside(tokenizer, traits, rest) != _decode(tokenizer, rest):
                return False
    return True


def _finds_marked_sections(tokenizer: Any, traits: _Traits) -> bool:
    """Return whether a space is put before what follows an added token."""
    for index, token in tokenizer.added_tokens_decoder.items():
        ids = _encode(tokenizer, f"{token.content}a")
        if ids[:1] == [index] and ids[1:] and not token.rstrip:
            return _begins_with_space(tokenizer, traits, ids[1:])
    return False


def _begins_with_space(tokenizer: Any, traits: _Traits, token_ids: list[int]) -> bool:
    return _decode_inside(tokenizer, traits, token_ids).startswith(" ")
