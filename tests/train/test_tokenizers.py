"""Pieces of texts have the tokens of the whole, and drawn tokens the text that was drawn, whatever the tokenizer."""

from functools import partial
from typing import Any

import pytest

from grpo_core import Message
from grpo_core.engine.models import pieces
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.policy.texts import Texts

from .tokenizer_kinds import (
    END,
    KINDS,
    LOSSY,
    SPACED,
    SPECIAL,
    TAGS,
    finished,
    metaspace,
    word_piece,
)

PROMPT = (Message("user", "hi"),)
MORE = (Message("user", "ok the"), Message("tool", " 5"))
PLAIN = ("Yes", "the -2", "x = 3")
ODD = (
    "",
    " lead",
    "  two",
    "trail ",
    "a  b",
    "x\n\ny",
    "\tq\r\n",
    "<answer>-2</answer>",
    " <answer> the </answer> ",
    "</answer><answer>",
    "return ' .' if x != y else ' ?'",
    "don't , n't ' s .",
    "caf\u00e9 \u65e5\u672c \U0001f642",
    f"{SPECIAL[0]} is said, and {SPECIAL[1]}",
)
EOS = SPECIAL.index(END)


def texts_of(tokenizer: Any) -> Texts:
    return Texts(tokenizer, frame=ChatFrame(), end_ids=(tokenizer.eos_token_id,), context=None)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def texts(kind: str) -> Texts:
    return texts_of(KINDS[kind]())


def is_kept(kind: str, text: str) -> bool:
    """Whether the tokens of a text are those of no other one."""
    if kind in LOSSY:
        return text in ("Yes", "the", "x = 3")
    # Their tokens do not tell whether a space stands behind an added token.
    return not (kind in SPACED and any(f"{token} " in text for token in (*SPECIAL, *TAGS)))


def said(text: str) -> tuple[Message, ...]:
    return (Message("assistant", text),)


def test_what_sft_learns_is_what_the_template_gives(kind: str, texts: Texts) -> None:
    start = len(texts.encode(PROMPT))
    for text in (*PLAIN, *ODD):
        answer_ids = texts.encode_answer(PROMPT, text)
        whole = texts.encode((*PROMPT, Message("assistant", text)))
        assert answer_ids == whole[start : start + len(answer_ids)], text
        assert answer_ids[-1] == EOS


def test_what_follows_an_answer_is_what_the_whole_dialogue_has(kind: str, texts: Texts) -> None:
    for text in (*PLAIN, *ODD):
        drawn = texts.encode_answer(PROMPT, text)
        whole = texts.encode((*PROMPT, Message("assistant", text), *MORE))
        for tokens in (drawn, drawn[:-1]):  # the second as after a stop string
            reply = texts.encode_reply(tokens, PROMPT, said(text), MORE)
            assert (*texts.encode(PROMPT), *tokens, *reply) == whole, text
        after = texts.encode_after(
            (*PROMPT, Message("assistant", text)), MORE, last=drawn[-1], tools=()
        )
        assert (*texts.encode(PROMPT), *drawn, *after) == whole, text


@pytest.mark.parametrize("reply", ["Q: 2\nA:", " the next", "\tx"])
def test_what_follows_an_answer_to_raw_text_is_what_the_whole_has(kind, texts, reply):
    raw = "Q: 1\nA:"
    for text in (" 5\n", "5.", " the\n"):
        drawn = texts.encode_answer(raw, text)[:-1]
        tail = texts.encode_reply(drawn, raw, said(text), (Message("user", reply),))
        assert (*texts.encode(raw), *drawn, *tail) == texts.encode(raw + text + reply)
        assert texts.encode_text(reply, before=raw + text) == tuple(tail)


def test_the_text_of_drawn_tokens_is_the_text_that_they_encode(kind: str, texts: Texts) -> None:
    prompt_ids = texts.encode(PROMPT)
    for text in filter(partial(is_kept, kind), (*PLAIN, *ODD)):
        drawn = texts.encode_answer(PROMPT, text)
        assert texts.completion_text(prompt_ids, drawn) == text
        assert texts.turn((), drawn) == Message("assistant", text)
        raw = texts.encode_answer("Say:", text)
        assert texts.completion_text(texts.encode("Say:"), raw) == text


def test_context_fill_and_suffix_together_are_the_whole_text(kind: str, texts: Texts) -> None:
    for parts in (
        ("The cow says", " the moo", " and goes"),
        ("", "Yes", ", or"),
        ("x (", "y", ")"),
    ):
        tokens, before = list[int](), ""
        for part in parts:
            tokens += pieces.encode_after(texts.tokenizer, before, part)
            before += part
        assert tokens == texts.tokenizer(before, add_special_tokens=False)["input_ids"]


def test_only_ends_padding_and_unknown_tokens_have_no_text(kind: str, texts: Texts) -> None:
    tokenizer = texts.tokenizer
    beyond = len(tokenizer) + 7  # a model's vocabulary may be padded
    drawn = texts.encode_answer(PROMPT, "Yes")[:-1]
    unk = tokenizer.unk_token_id
    shown = texts.decode((*drawn, unk, beyond, tokenizer.pad_token_id, EOS))
    assert shown == f"Yes{SPECIAL[0]}"


@pytest.mark.parametrize("name", ["byte-level", "special tags", "bos added, byte-level"])
def test_byte_level_tokenizers_encode_and_decode_pieces_as_before(name: str) -> None:
    tokenizer = KINDS[name]()
    assert pieces.is_context_free(tokenizer)
    for text in ODD:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert pieces.encode_after(tokenizer, "before\n", text) == ids
        assert pieces.decode(tokenizer, ids) == tokenizer.decode(ids)
    assert not pieces.is_context_free(finished(metaspace("first")))


def test_an_end_token_that_is_written_out_in_characters_ends_nothing() -> None:
    """The policy may draw the characters of the end token one by one."""
    texts = texts_of(KINDS["special tags, metaspace first"]())
    characters = tuple(texts.tokenizer.convert_tokens_to_ids(c) for c in "a</s>b")
    assert EOS not in characters
    assert texts.decode(characters) == "a</s>b"
    reply = texts.encode_reply((*characters, EOS), PROMPT, said("a</s>b"), MORE)
    plain = texts.encode_reply((*characters, EOS), PROMPT, said("ab"), MORE)
    assert reply == plain


def test_where_a_token_would_reach_across_the_boundary_the_piece_has_its_usual_tokens() -> None:
    tokenizer = finished(metaspace("first"))
    alone = [tokenizer.convert_tokens_to_ids(c) for c in "he"]
    assert pieces.encode_after(tokenizer, "x t", "he") == alone  # "the" is one token of the whole
    assert pieces.encode_after(finished(word_piece()), "play", "ing") == [
        finished(word_piece()).convert_tokens_to_ids("##ing")
    ]


def test_a_tokenizer_that_gets_tokens_later_is_looked_at_again() -> None:
    tokenizer = finished(metaspace("always"))
    assert pieces.decode(tokenizer, pieces.encode_after(tokenizer, "x", "<answer>y")) == "<answer>y"
    tokenizer.add_special_tokens({"extra_special_tokens": list(TAGS)})
    ids = pieces.encode_after(tokenizer, "x", "<answer>y")
    assert ids[0] == tokenizer.convert_tokens_to_ids("<answer>")
    assert pieces.decode(tokenizer, ids) == "<answer>y"
