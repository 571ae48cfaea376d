"""`grpo export --gguf`: the file holds the model and its tokenizer, as llama.cpp and transformers read them."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from grpo_report.gguf_file import OtherModelError, write_gguf

from .tiny import CHAT_TEMPLATE, SPECIAL, tiny_model

TEXTS = (
    "<|im_start|>user\nWhat is 12 + 345?<|im_end|>",
    "ä ö \U0001f600  two  spaces\n\nlines",
    "",
)
WAYS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
}  # fmt: skip


def byte_level(way: pre_tokenizers.PreTokenizer) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with some merges, as real models have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = way
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["What is 12 + 345? The answer is 357." for _ in range(9)], trainer
    )
    pad, unk, start, end = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=start,
        eos_token=end,
        pad_token=pad,
        unk_token=unk,
        chat_template=CHAT_TEMPLATE,
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_is_read_back_as_it_was(tmp_path: Path, way: str, dtype: str) -> None:
    import gguf

    tokenizer = byte_level(WAYS[way])
    model = tiny_model(
        dtype=torch.float32, vocab=len(tokenizer) + 7
    )  # rows without a token, as padded embeddings have
    write_gguf(model, tokenizer, tmp_path / "m.gguf", dtype=dtype, name="tiny")  # type: ignore[arg-type]
    read = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32
    ).state_dict()
    exact = model.state_dict()
    assert read.keys() == exact.keys()
    for name, tensor in exact.items():
        expected = tensor.to(getattr(torch, dtype)).float() if tensor.ndim > 1 else tensor
        assert torch.equal(read[name], expected), name
    tokens = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert [tokens(text).input_ids for text in TEXTS] == [
        tokenizer(text).input_ids for text in TEXTS
    ]
    assert tokens.chat_template == CHAT_TEMPLATE
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == way
    assert fields["llama.attention.head_count_kv"].contents() == 2


def test_other_models_are_refused_with_the_commands_of_llama_cpp(tmp_path: Path) -> None:
    tokenizer, model = byte_level(WAYS["gpt-2"]), tiny_model(dtype=torch.float32, vocab=400)
    odd = byte_level(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex("x+"), "isolated"), pre_tokenizers.ByteLevel()]
        )
    )
    reasons = {"its tokenizer divides texts in a way of its own": (model, odd)}
    for setting, value, reason in (
        ("hidden_act", "gelu", "its activation is gelu"),
        ("attention_bias", True, "its projections have biases"),
        (
            "rope_parameters",
            {"rope_type": "llama3", "rope_theta": 1.0},
            "its rotary embedding is of the type llama3",
        ),
    ):
        other = tiny_model(dtype=torch.float32, vocab=400)
        setattr(other.config, setting, value)
        reasons[reason] = (other, tokenizer)
    for reason, (other, tokens) in reasons.items():
        with pytest.raises(
            OtherModelError, match=f"since {reason}; write it by .* `python convert_hf_to_gguf"
        ):
            write_gguf(other, tokens, tmp_path / "m.gguf", dtype="float32", name="x")
    assert json.dumps(list(tmp_path.iterdir())) == "[]"
