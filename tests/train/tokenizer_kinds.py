"""Tiny tokenizers of every kind that models come with, made by the library that real ones are made with."""

import string
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

BOS, END, UNK, PAD = "<s>", "</s>", "<unk>", "<pad>"
SPECIAL = (UNK, BOS, END, PAD)
TAGS = ("<answer>", "</answer>")
SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
VISIBLE = [c for c in string.printable if c not in " \n\t\r\x0b\x0c"]
WORDS = [("t", "h"), ("th", "e"), ("i", "n"), ("in", "g"), ("Y", "e"), ("Ye", "s"), ("-", "2")]
"""Merges, so that not every token is one character."""
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def _ids(*tokens: str) -> dict[str, int]:
    return {token: number for number, token in enumerate(dict.fromkeys((*SPECIAL, *tokens)))}


def _merged(pairs: list[tuple[str, str]]) -> list[str]:
    return [first + second for first, second in pairs]


def byte_level() -> Tokenizer:
    pairs = [*WORDS, ("Ġ", "the")]
    vocabulary = _ids(*sorted(pre_tokenizers.ByteLevel.alphabet()), *_merged(pairs))
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return core


def sentencepiece_bpe() -> Tokenizer:
    """As Llama 2 has it, without what marks the start."""
    pairs = [*WORDS, (SPACE, "the")]
    vocabulary = _ids(*BYTES, SPACE, *VISIBLE, *_merged(pairs))
    unknown = {"unk_token": UNK, "byte_fallback": True, "fuse_unk": True}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, **unknown))
    bytes_joined = [decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), *bytes_joined, decoders.Strip(" ", 1, 0)]
    )
    return core


def metaspace(scheme: str) -> Tokenizer:
    core = sentencepiece_bpe()
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return core


def legacy() -> Tokenizer:
    core = sentencepiece_bpe()
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    return core


def unigram(scheme: str = "always") -> Tokenizer:
    pieces = [(UNK, 0.0), (BOS, 0.0), (END, 0.0), (PAD, 0.0), *((byte, -9.0) for byte in BYTES)]
    pieces += [(SPACE, -2.0), *((c, -3.0) for c in VISIBLE), (f"{SPACE}the", -2.5), ("Yes", -4.0)]
    core = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    core.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)]
    )
    return core


def word_piece() -> Tokenizer:
    """Without bytes, and it keeps no white space."""
    tails = [f"##{c}" for c in string.ascii_letters + string.digits]
    vocabulary = _ids(*VISIBLE, *tails, "the", "Yes", "##ing")
    core = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=UNK))
    core.normalizer = normalizers.BertNormalizer(lowercase=False)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(cleanup=False)
    return core


def finished(core: Tokenizer, **settings: Any) -> PreTrainedTokenizerFast:
    core.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    names = {"bos_token": BOS, "eos_token": END, "unk_token": UNK, "pad_token": PAD}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **names | settings)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def with_tags(core: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = finished(core)
    tokenizer.add_special_tokens({"extra_special_tokens": list(TAGS)})
    return tokenizer


def with_bos(core: Tokenizer) -> PreTrainedTokenizerFast:
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, SPECIAL.index(BOS))]
    )
    return finished(core)


KINDS: Mapping[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte-level": lambda: finished(byte_level()),
    "metaspace first": lambda: finished(metaspace("first")),
    "metaspace always": lambda: finished(metaspace("always")),
    "legacy llama": lambda: finished(legacy()),
    "unigram": lambda: finished(unigram()),
    "word piece": lambda: finished(word_piece()),
    "special tags": lambda: with_tags(byte_level()),
    "special tags, metaspace first": lambda: with_tags(metaspace("first")),
    "special tags, metaspace always": lambda: with_tags(metaspace("always")),
    "clean-up": lambda: finished(unigram("never"), clean_up_tokenization_spaces=True),
    "no bos": lambda: finished(metaspace("first"), bos_token=None),
    "bos added": lambda: with_bos(metaspace("first")),
    "bos added, byte-level": lambda: with_bos(byte_level()),
    "end is pad": lambda: finished(metaspace("always"), pad_token=END),
}
"""Makes a tokenizer of each kind; a vocabulary that the model pads is a matter of the model."""
LOSSY = {"word piece"}
"""Kinds that cannot give back every text."""
SPACED = {"metaspace always", "unigram", "special tags, metaspace always", "end is pad"}
"""Kinds that put a space before what follows an added token, if none is there."""
