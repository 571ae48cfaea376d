"""Write a model as a GGUF file, which llama.cpp, Ollama and their like run.

Only models with the layers of Llama and a byte-level BPE tokenizer are written. For others the
tools of llama.cpp know more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from grpo_core import ConfigError, UserError
from grpo_core.api.calls import printable
from grpo_core.api.runs import writing

Precision = Literal["float32", "float16"]
_PATTERNS: Mapping[str, str] = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",
}
"""How llama.cpp calls the expressions by which tokenizers divide a text before they merge."""


def write_gguf(model: Any, tokenizer: Any, path: Path, *, dtype: Precision, name: str) -> None:
    """Write a model with its tokenizer to a GGUF file.

    Args:
        model: a causal language model in float32.
        tokenizer: its tokenizer.
        path: the file.
        dtype: the type of matrices; vectors are always written in float32.
        name: the model's name in the file.

    Raises:
        UserError: the model or its tokenizer is of a kind that is not written here.
        RunStoppedError: the file cannot be written.
    """
    import gguf

    config = model.config
    _refuse_other_models(config)
    vocabulary = _vocabulary(tokenizer, config)
    with writing(path, then="export again"):
        writer = gguf.GGUFWriter(path, "llama")
        try:
            _write_settings(writer, config, name, dtype)
            _write_vocabulary(writer, tokenizer, vocabulary, rows=config.vocab_size)
            _write_tensors(writer, model, dtype)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


class OtherModelError(UserError):
    """The model is of a kind that is not written here."""

    def __init__(self, reason: str) -> None:
        """Say why, and what to do instead."""
        super().__init__(
            f"this model is not written as GGUF here, since {printable(reason)}; write it by "
            "`grpo export RUN --weights MERGED`, and then with llama.cpp: "
            "`python convert_hf_to_gguf.py MERGED --outfile model.gguf`"
        )


def _refuse_other_models(config: Any) -> None:
    """Raise OtherModelError unless the model has the layers of Llama, and nothing beside them."""
    rope = getattr(config, "rope_parameters", None) or {}
    reasons = {
        f"its architecture is {config.model_type}": config.model_type != "llama",
        f"its rotary embedding is of the type {rope.get('rope_type')}": rope.get(
            "rope_type", "default"
        )
        != "default",
        "its projections have biases": config.attention_bias or config.mlp_bias,
        f"its activation is {config.hidden_act}": config.hidden_act != "silu",
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise OtherModelError(reason)


def _vocabulary(tokenizer: Any, config: Any) -> Mapping[str, Any]:
    """Return the parts of a byte-level BPE tokenizer, as tokenizer.json holds them.

    Raises:
        OtherModelError: it is of another kind.
    """
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    if parts["model"]["type"] != "BPE" or parts["model"].get("byte_fallback"):
        raise OtherModelError("its tokenizer is not byte-level BPE")
    if len(tokenizer) > config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {len(tokenizer)} tokens, and the model {config.vocab_size} rows"
        )
    parts["pre"] = _divides_by(parts["pre_tokenizer"])
    return dict(parts)


def _divides_by(pre_tokenizer: Any) -> str:
    """Return how llama.cpp calls the way in which a text is divided before tokens are merged.

    Raises:
        OtherModelError: it is not one of those that are known here.
    """
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer]) if pre_tokenizer else []
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        pattern = steps[0]["pattern"].get("Regex", "")
        if pattern in _PATTERNS:
            return _PATTERNS[pattern]
    raise OtherModelError("its tokenizer divides texts in a way of its own")


def _write_settings(writer: Any, config: Any, name: str, dtype: Precision) -> None:
    """Add the sizes of the model."""
    import gguf

    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    is_half = dtype == "float16"
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float((config.rope_parameters or {}).get("rope_theta", 10000.0)))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    kind = gguf.LlamaFileType
    writer.add_file_type(kind.MOSTLY_F16 if is_half else kind.ALL_F32)


def _write_vocabulary(writer: Any, tokenizer: Any, parts: Mapping[str, Any], *, rows: int) -> None:
    """Add the tokens, one for each of the `rows` of the embedding, and how texts become tokens."""
    import gguf

    added = {each["id"]: each for each in parts["added_tokens"]}
    by_id = {number: token for token, number in parts["model"]["vocab"].items()}
    by_id |= {number: each["content"] for number, each in added.items()}
    tokens, kinds = [], []
    for number in range(rows):
        tokens.append(by_id.get(number, f"[PAD{number}]"))
        if number not in by_id:
            kinds.append(gguf.TokenType.UNUSED)
        elif number not in added:
            kinds.append(gguf.TokenType.NORMAL)
        elif added[number]["special"]:
            kinds.append(gguf.TokenType.CONTROL)
        else:
            kinds.append(gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(parts["pre"])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = parts["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    for setting, number in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
    ):
        if number is not None:
            setting(number)
    writer.add_add_bos_token(bool(getattr(tokenizer, "add_bos_token", False)))
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _write_tensors(writer: Any, model: Any, dtype: Precision) -> None:
    """Add all tensors, under the names and with the order of rows that llama.cpp expects."""
    import gguf
    import numpy

    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {
        "q_proj": config.num_attention_heads,
        "k_proj": config.num_key_value_heads,
    }
    tied = config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        target = names.get_name(name, try_suffixes=(".weight",))
        if target is None:
            raise OtherModelError(f"it has a tensor {name!r:.80}")
        values = tensor.detach().float().cpu().numpy()
        module = name.split(".")[-2]
        if module in heads:
            values = _interleaved(values, heads[module])
        is_matrix = values.ndim > 1
        kind = numpy.float16 if is_matrix and dtype == "float16" else numpy.float32
        writer.add_tensor(target, numpy.ascontiguousarray(values.astype(kind)))


def _interleaved(weight: Any, heads: int) -> Any:
    """Return the rows of a projection so that the two halves of each rotary pair are neighbours.

    transformers keeps them in the two halves of a head, llama.cpp side by side.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, 2, rows // heads // 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
