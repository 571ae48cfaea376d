"""The list of architectures comes from transformers, and its tiny models are fit to show mistakes."""

import re

import pytest
import torch
from transformers import PreTrainedModel

from .architectures import (
    RULES,
    causal_types,
    masked_types,
    tiny_config,
    tiny_masked,
    tiny_model,
    tokens,
)

# One of each sort: plain, windows by layer, chunks, top-k of an indexer, soft caps, sinks, ALiBi,
# shared keys, latent keys with experts, linear attention, state spaces.
SORTS = [
    *("llama", "gemma2", "llama4_text", "deepseek_v32", "gemma3n_text", "gpt_oss", "bloom"),
    *("gemma4_text", "deepseek_v3", "qwen3_next", "mamba2", "lfm2"),
]


def test_sixty_of_every_third_type_have_a_tiny_config():
    def width(model_type: str) -> int:
        try:
            config = tiny_config(model_type).get_text_config(decoder=True)
        except Exception:  # noqa: BLE001 - what a config cannot be, transformers says in many ways
            return 0
        return int(getattr(config, "hidden_size", 0))

    assert len(causal_types()) >= 190
    widths = [width(model_type) for model_type in causal_types()[::3]]
    assert sum(0 < each <= 128 for each in widths) >= 60


@torch.no_grad()
def logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, use_cache=False).logits.float()


def changes(model: PreTrainedModel, ids: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return how log-probs differ for other tokens, in nats."""
    first, second = (logits(model, some).log_softmax(-1) for some in (ids, other))
    return (first - second)[0].abs()


@pytest.fixture
def texts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, the same with another last token, and the same with all others changed."""
    ids, earlier = tokens(2, 24, seed=1).split(1)
    earlier[:, -1] = ids[:, -1]
    return ids, torch.cat([ids[:, :-1], ids[:, -2:-1]], dim=1), earlier


@pytest.mark.parametrize("model_type", SORTS)
def test_a_type_runs_and_an_earlier_token_changes_what_comes_next(model_type, texts):
    model, wide = tiny_model(model_type), tiny_model(model_type, window=None)
    ids, later, earlier = texts
    assert changes(model, ids, later)[:-1].max() < 1e-4
    assert changes(model, ids, earlier)[-1].mean() > 0.1
    assert 1 <= logits(model, ids).std() <= 5
    fields = vars(model.config.get_text_config(decoder=True))
    windowed = any(re.fullmatch(RULES["window"]["fields"], n) and v for n, v in fields.items())
    bound = (logits(model, ids) - logits(wide, ids))[0, -1].abs().max() > 1e-4
    assert bound == windowed


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert"])
def test_a_masked_model_sees_both_directions(model_type, texts):
    assert model_type in masked_types()
    model = tiny_masked(model_type)
    ids, later, earlier = texts
    assert changes(model, ids, later)[:-1].max() > 1e-4
    assert changes(model, ids, earlier)[-1].mean() > 0.1


def test_all_sorts_of_layers_of_a_type_are_in_its_few_layers():
    assert set(tiny_config("nemotron_h").layers_block_type) == {
        *("linear_attention", "moe", "full_attention", "mlp")
    }
    kimi = tiny_config("kimi_linear")
    assert set(kimi.layer_types) == {"linear_attention", "full_attention"}
    assert set(kimi.mlp_layer_types) == {"dense", "sparse"}
    assert set(tiny_config("qwen2").layer_types) == {"full_attention", "sliding_attention"}
    assert set(tiny_config("qwen2", window=None).layer_types) == {"full_attention"}
    assert tiny_config("llama", num_hidden_layers=5).num_hidden_layers == 5
