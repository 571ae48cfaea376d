"""The KL over the whole vocabulary, of every kind of policy and reference, against plain forward passes in float64."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from grpo_core.config.overrides import build_config
from grpo_core.config.settings import KLConfig, LoraConfig
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.compute.recompute import recompute
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.load import ModelSource
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Segment

from .tiny import tiny_model, tiny_tokenizer

TEMPERATURE = 0.7


def perturb(model: Any, share: str = "", std: float = 0.2) -> None:
    """Add noise to the trained weights whose name holds `share`."""
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and share in name:
                shift = torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype)
                parameter += std * shift


def with_adapter(*targets: str, recomputed: bool = False, **options: Any) -> Policy:
    model = add_adapter(
        tiny_model(),
        LoraConfig(targets=targets or ("all-linear",)),
        ModelSource("tiny", "tiny"),
        task="CAUSAL_LM",
    ).double()
    perturb(model, "lora_")
    if recomputed:
        recompute(model)
    return Policy(model, tiny_tokenizer(), **options)


def followed() -> Policy:
    """The reference was moved to a policy that has moved on since."""
    policy = with_adapter("q_proj", "lm_head", logits_bytes=5000)
    policy.reference.follow()
    policy.reference.refresh(KLConfig(refresh_every=1, refresh_rate=0.5), 1)
    perturb(policy.model, "lora_", std=0.1)
    return policy


def copied(**options: Any) -> Policy:
    model = tiny_model().requires_grad_(True)
    reference = copy.deepcopy(model).requires_grad_(False)
    perturb(model, std=0.05)
    return Policy(model, tiny_tokenizer(), reference=reference, **options)


POLICIES: dict[str, Callable[[], Policy]] = {
    "adapter": with_adapter,
    "adapter, chunks of few rows": lambda: with_adapter(logits_bytes=10_000),
    "adapter, rows that share nothing": lambda: with_adapter(shared_prefix=False),
    "adapter, layers recomputed": lambda: with_adapter(recomputed=True),
    "adapter on the head, too": lambda: with_adapter("q_proj", "lm_head", logits_bytes=10_000),
    "adapter on the head, layers recomputed": lambda: with_adapter(
        "q_proj", "lm_head", recomputed=True, logits_bytes=10_000
    ),
    "reference that follows": followed,
    "all weights": copied,
    "all weights, chunks of few rows": lambda: copied(logits_bytes=10_000),
    "all logits at once": lambda: with_adapter(logits_bytes=0),
    "all logits at once, all weights": lambda: copied(logits_bytes=0),
}


def rows() -> list[Row]:
    rng = random.Random(0)
    completions = [tuple(rng.randrange(4, 100) for _ in range(length)) for length in (7, 3, 5)]
    completions += [(*completions[0][:4], 9)]
    prompts = [(5, 6, 7, 8), (5, 6, 7, 8), (9, 10), (5, 6, 7, 8)]
    return [
        Row(Segment(prompt, ids, (0.0,) * len(ids), (1,) * len(ids)), 0.0, 0.0)
        for prompt, ids in zip(prompts, completions, strict=True)
    ]


def plain(model: Any, row: Row) -> torch.Tensor:
    """Return log-probs (T, V) by a pass of this row alone."""
    prompt, ids = row.segment.prompt_ids, row.segment.token_ids
    logits = model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1] / TEMPERATURE, dim=-1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", POLICIES)
def test_value_and_gradient_are_those_of_plain_passes(kind):
    policy = POLICIES[kind]()
    weights = [parameter for _, parameter in policy.trainable()]
    expected, defined = [], torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(rows()):
        with policy.reference.model() as reference, torch.no_grad():
            other_TV = plain(reference, row)
        own_TV = plain(policy.model, row)
        kl_T = (own_TV.exp() * (own_TV - other_TV)).sum(dim=-1)
        chosen = torch.arange(len(kl_T)), torch.tensor(row.segment.token_ids)
        expected.append((own_TV[chosen], other_TV[chosen], kl_T))
        defined = defined + (i + 1) * (kl_T.square().sum() + own_TV[chosen].sum())
    expected_gradients = torch.autograd.grad(defined, weights, allow_unused=True)
    assert min(float(kl_T.min()) for *_, kl_T in expected) > 1e-3

    number = {row.segment: i for i, row in enumerate(rows())}
    total = torch.zeros((), dtype=torch.float64)
    for micro in list(policy.micro_batches(rows(), max_tokens=20, dtype=torch.float64)):
        states = policy.reference_states(micro)
        values = policy.token_values(micro, states, temperature=TEMPERATURE, kl=True)
        assert values.reference is not None
        assert values.kl is not None
        for b, row in enumerate(micro.rows):
            i, count = number[row.segment], len(row.segment.token_ids)
            found = tuple(
                value[b, :count] for value in (values.logprob, values.reference, values.kl)
            )
            torch.testing.assert_close(found, expected[i], rtol=1e-9, atol=1e-10)
            total = total + (i + 1) * (found[2].square().sum() + found[0].sum())
    gradients = torch.autograd.grad(total, weights, allow_unused=True)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        if theirs is None:
            assert ours is None
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("setting", [{"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.02}])
def test_the_full_kl_is_refused_where_the_sampler_cuts_the_distribution(setting):
    with pytest.raises(ConfigError, match="draws from a part of them"):
        build_config([{"environment": "letters", "kl": {"estimator": "full"}, "sampling": setting}])


def test_the_full_kl_takes_no_importance():
    config = {"environment": "letters", "kl": {"estimator": "full"}, "trainer": {"mu": 3}}
    assert not build_config([config]).kl_importance
    with pytest.raises(ConfigError, match=r"remove kl\.importance"):
        build_config([{**config, "kl": {"estimator": "full", "importance": True}}])
