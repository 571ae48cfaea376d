"""`loss_from_batch` on values worked by hand from the pseudo-code of seed 002."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from .seed_loss import AS_WRITTEN, loss_from_batch


def batch(**changes: Any) -> dict[str, Any]:
    """Two prompts with two answers each, in mixed order."""
    found = {
        "prompts": ["a", "b", "a", "b"],
        "responses": ["w", "x", "y", "z"],
        "rewards": [1.0, 0.3, 0.0, 0.1],
        "logprobs": [-10.0, -20.0, -30.0, -40.0],
        "ref_logprobs": [-10.1, -20.5, -30.0, -39.5],
        "prompt_ids": [7, 3, 7, 3],
    }
    return {**found, **changes}


def test_the_loss_is_that_of_the_seed_worked_by_hand():
    """Advantages 0.5, 0.1, -0.5, -0.1, clipped to 0.2; ratios exp(0.1), exp(0.5), 1, exp(-0.5)."""
    surrogates = [
        min(math.exp(0.1) * 0.2, 1.2 * 0.2),  # 0.22103: inside the clip
        min(math.exp(0.5) * 0.1, 1.2 * 0.1),  # 0.12: clipped
        1.0 * -0.2,
        min(math.exp(-0.5) * -0.1, 0.8 * -0.1),  # -0.08: clipped
    ]
    assert surrogates == pytest.approx([0.221034, 0.12, -0.2, -0.08], abs=1e-6)
    kl = (0.1 + 0.5 + 0.0 - 0.5) / 4
    expected = -sum(surrogates) / 4 + 0.001 * kl
    assert expected == pytest.approx(-0.0152336, abs=1e-7)
    assert loss_from_batch(batch()).item() == pytest.approx(expected, rel=1e-12)


def test_it_equals_the_pseudo_code_on_random_batches_with_groups_of_any_size():
    rng = random.Random(0)
    for _ in range(50):
        size = rng.randint(1, 12)
        prompts = [rng.randrange(3) for _ in range(size)]
        rewards = [rng.choice([0.0, rng.random(), 1.0]) for _ in range(size)]
        present = [rng.uniform(-9, 0) for _ in range(size)]
        reference = [value + rng.gauss(0, 0.4) for value in present]
        texts = {"prompts": [""] * size, "responses": [""] * size, "prompt_ids": prompts}
        numbers = {"rewards": rewards, "logprobs": present, "ref_logprobs": reference}
        total = 0.0
        for reward, prompt, now, ref in zip(rewards, prompts, present, reference, strict=True):
            group = [r for r, p in zip(rewards, prompts, strict=True) if p == prompt]
            advantage = max(-0.2, min(0.2, reward - sum(group) / len(group)))
            ratio = math.exp(now - ref)
            total -= min(ratio * advantage, max(0.8, min(1.2, ratio)) * advantage)
            total += 0.001 * (now - ref)
        found = loss_from_batch(batch(**texts, **numbers)).item()
        assert found == pytest.approx(total / size, rel=1e-9, abs=1e-12)


def test_the_gradient_goes_through_the_log_probs_alone():
    logprobs, reference = (
        torch.tensor(batch()[name], dtype=torch.float64, requires_grad=True)
        for name in ("logprobs", "ref_logprobs")
    )
    loss_from_batch(batch(logprobs=logprobs, ref_logprobs=reference)).backward()
    inside = -math.exp(0.1) * 0.2 / 4 + 0.001 / 4
    expected = [inside, 0.001 / 4, 0.2 / 4 + 0.001 / 4, 0.001 / 4]
    assert logprobs.grad.tolist() == pytest.approx(expected)
    assert reference.grad is None


def test_any_other_algorithm_can_be_named():
    config = AS_WRITTEN.model_copy(update={"kl": AS_WRITTEN.kl.model_copy(update={"beta": 0.0})})
    without_kl = loss_from_batch(batch()).item() - 0.001 * 0.025
    assert loss_from_batch(batch(), config).item() == pytest.approx(without_kl)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": [1.0]}, "must have the same length"),
        ({key: [] for key in batch()}, "at least 1"),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        loss_from_batch(batch(**changes))
    incomplete = batch()
    del incomplete["prompt_ids"]
    with pytest.raises(ValueError, match="lacks prompt_ids"):
        loss_from_batch(incomplete)
