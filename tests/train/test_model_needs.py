"""`grpo doctor --model`: which GPU a model needs, from its config alone, held against what a loaded model is measured to need."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.engine.compute.recompute import recompute
from grpo_core.engine.models.load import resolve_config
from grpo_core.engine.policy.choose import load_policy
from grpo_core.engine.policy.memory import Footprint
from grpo_core.engine.policy.prospect import WAYS, Prospect

from .tiny import tiny_model

QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
"""The config of Qwen2.5-7B, as far as sizes depend on it."""


def answered(model: Path | str, *more: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["doctor", "--model", str(model), *more])
    assert result.exit_code == status, result.output
    return result.output


def test_a_config_alone_is_answered_for_each_way_length_and_gpu(tmp_path):
    config = tiny_model().config
    config.max_position_embeddings = 4096
    config.save_pretrained(tmp_path)
    lines = json.loads(answered(tmp_path, "--json"))
    told = {line["topic"]: line["found"] for line in lines}
    assert told["model"].endswith("0 million weights, a context of 4,096 tokens")
    for way in WAYS:
        assert told[way].count("(8 GB GPU)") == 2
        assert f"{way} to 2,048 tokens" in told["16 GB GPU"]


def test_a_model_that_cannot_be_built_or_found_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    for name in (tmp_path, "smolm2-135m", tmp_path / "nowhere"):
        error = answered(name, status=2)
        assert "Traceback" not in error


@pytest.mark.slow
def test_seven_billion_weights_are_told_what_fits_on_24_gb(tmp_path):
    index = {"metadata": {"total_size": 15231233024}, "weight_map": {}}
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    told = {line["topic"]: line["found"] for line in json.loads(answered(tmp_path, "--json"))}
    assert "7.62 billion weights, 15.2 GB in its files, a context of 32,768 tok" in told["model"]
    assert told["24 GB GPU"].startswith("4-bit LoRA to 2,048 tokens; 4-bit LoRA, recomputed to 8,")
    assert told["80 GB GPU"].startswith("LoRA to 8,192 tokens; ")
    assert "full" not in told["80 GB GPU"]
    assert told["full"].count("no single GPU") == 3


@pytest.mark.heavy
def test_the_default_model_is_estimated_as_it_is_measured():
    """Counted parts agree to the byte, what passes keep within an eighth: it was 9% more, and 2% less with recomputed layers."""
    model = {"name": "smollm2-135m", "dtype": "bfloat16"}
    policy = load_policy(build_config([{"environment": "x", "model": model}]), need_reference=False)
    prospect = Prospect(resolve_config("smollm2-135m"), lora=True)
    assert prospect.cached_bytes == policy.cached_bytes
    for way, kept in (("LoRA", prospect.kept), ("LoRA, recomputed", prospect.kept_recomputed)):
        if WAYS[way].recomputes:
            recompute(policy.model)
        estimate = prospect.estimate(WAYS[way], 512, card=24 * 2**30).always
        footprint = Footprint(policy)
        assert estimate["weights"] == footprint.weights
        assert estimate["adapter"] == footprint.adapter
        assert estimate["optimizer"] == 2 * footprint.adapter
        assert kept == pytest.approx(footprint.kept[1], rel=1 / 8)
        assert prospect.layer == pytest.approx(footprint.layer, rel=1 / 4)


def test_longer_attempts_and_more_trained_weights_need_more(tmp_path):
    tiny_model().config.save_pretrained(tmp_path)
    source = resolve_config(str(tmp_path))
    card = 24 * 2**30
    lora, full = (Prospect(source, lora=is_lora) for is_lora in (True, False))
    way = WAYS["LoRA"]
    peaks = [lora.estimate(way, length, card=card).peak for length in (512, 8192)]
    assert peaks[0] < peaks[1]
    assert lora.kept_recomputed < lora.kept
    estimate = full.estimate(WAYS["full"], 512, card=card).always
    weights = sum(p.numel() for p in tiny_model().parameters())
    assert (estimate["weights"], estimate["gradients"], estimate["optimizer"]) == (
        4 * weights,
        4 * weights,
        8 * weights,
    )
    assert lora.estimate(WAYS["4-bit LoRA"], 512, card=card).always["weights"] < 2 * weights
