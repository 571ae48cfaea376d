"""Read the settings of trl_parity.py, and predict what TRL computes where it is known to differ."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parity_batch import GROUP, ROWS, Batch
from parity_float64 import Weights


@dataclass(frozen=True)
class Result:
    """Hold what a side computed in each optimizer step."""

    losses: list[float]
    gradients: list[Weights]
    change: Weights | None = None
    """Change of the weights over all steps, where the optimizer decides it."""

    def times(self, factors: Sequence[float]) -> Result:
        """Return the result with the loss and gradient of each step multiplied by its factor."""
        return Result(
            [f * loss for f, loss in zip(factors, self.losses, strict=True)],
            [
                {name: f * tensor for name, tensor in gradient.items()}
                for f, gradient in zip(factors, self.gradients, strict=True)
            ],
        )

    def plus(self, other: Result) -> Result:
        """Return the sum of both, step by step."""
        return Result(
            [a + b for a, b in zip(self.losses, other.losses, strict=True)],
            [
                {name: a[name] + b[name] for name in a}
                for a, b in zip(self.gradients, other.gradients, strict=True)
            ],
        )

    def mean(self) -> Result:
        """Return one step: the mean of all."""
        count = len(self.losses)
        return Result(
            [sum(self.losses) / count],
            [
                {
                    name: sum(gradient[name] for gradient in self.gradients) / count
                    for name in self.gradients[0]
                }
            ],
        )


@dataclass(frozen=True)
class Setting:
    """Hold what one comparison sets on each side, beyond what all of them set."""

    name: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Settings of grpo-core, as for `--set`."""
    trl: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of TRL's GRPOConfig."""
    updates: int = 3
    """Optimizer steps on the batch; the first one is on-policy."""
    unlike: str = "several updates"
    """A setting whose gradients have to be others, or this one would show nothing; "": none."""
    change: str = ""
    """What is done with the batch: the name of a function in parity_batch.py."""
    micro: int = ROWS
    """Rows of a forward pass of TRL."""
    moves: tuple[int, ...] = ()
    """Which weights each update is computed with; by default those of its number."""
    own_steps: bool = False
    """The optimizers move the weights."""
    own_head: bool = False
    """TRL computes log-probs with its own head, in float32."""
    why: str = ""
    """Why the sides differ."""
    predict: str = ""
    """By how much: a name in PREDICTIONS."""

    @property
    def visited(self) -> tuple[int, ...]:
        """Return the indices of the weights of each update."""
        return self.moves or tuple(range(self.updates))

    @property
    def minibatches(self) -> int:
        """Return the optimizer steps of a pass over the batch."""
        return int(self.ours.get("trainer.minibatches", 1))

    def but(self, **ours: Any) -> Setting:
        """Return the setting with other settings of grpo-core, section_name=value."""
        changed = {name.replace("_", ".", 1): value for name, value in ours.items()}
        return replace(self, ours={**self.ours, **changed})


def read_settings() -> list[Setting]:
    """Return the settings of parity_settings.toml."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return [Setting(**entry) for entry in tomllib.loads(text)["setting"]]


Run = Callable[[Setting], Result]
"""Computes a setting with grpo-core."""
Predict = Callable[[Setting, Batch, Run], Result]
"""Returns what TRL has to compute, from what grpo-core computes."""


def scaled(factor: Callable[[Batch], float | Sequence[float]]) -> Predict:
    """Return a prediction: the result of grpo-core times a factor, or one for each update."""

    def predict(setting: Setting, batch: Batch, run: Run) -> Result:
        found = factor(batch)
        return run(setting).times(
            [found] * setting.updates if isinstance(found, float) else list(found)
        )

    return predict


def kept_rows(batch: Batch) -> float:
    """Return the share of the rows that are not truncated."""
    return sum(rollout.finish != "length" for rollout in batch.rollouts) / ROWS


def scored_rows(batch: Batch) -> float:
    """Return the share of the rows that were scored."""
    return sum(total is not None for total in batch.totals()) / ROWS


def scored_tokens(batch: Batch) -> float:
    """Return the share of the tokens whose row was scored."""
    pairs = list(zip(batch.lengths(), batch.totals(), strict=True))
    return sum(n for n, total in pairs if total is not None) / sum(n for n, _ in pairs)


def tokens_of_halves(batch: Batch) -> list[float]:
    """Return how many tokens each half has, relative to the mean of both; in two passes."""
    lengths = batch.lengths()
    halves = [sum(lengths[: ROWS // 2]), sum(lengths[ROWS // 2 :])]
    return [2 * half / sum(halves) for half in halves] * 2


def spread_of_rewards(batch: Batch) -> float:
    """Return (std of the centred rewards + 1e-8) / (std of the rewards + 1e-4)."""
    totals = [total for total in batch.totals() if total is not None]
    groups = [totals[start : start + GROUP] for start in range(0, ROWS, GROUP)]
    centred = [reward - statistics.fmean(group) for group in groups for reward in group]
    return (statistics.stdev(centred) + 1e-8) / (statistics.stdev(totals) + 1e-4)


def mean_of_passes(setting: Setting, batch: Batch, run: Run) -> Result:
    """Return the mean over the forward passes of TRL, each with a denominator of its own."""
    passes = ROWS // setting.micro
    apart = replace(setting.but(trainer_minibatches=passes), moves=(0,) * passes)
    return run(apart).mean()


def entropy_of_tokens(setting: Setting, batch: Batch, run: Run) -> Result:
    """Return the loss as aggregated, with the bonus as a mean over tokens."""
    by_tokens = setting.but(loss_aggregation="token_mean")
    minus = run(by_tokens.but(loss_entropy=0.0)).times([-1.0] * setting.updates)
    return run(setting.but(loss_entropy=0.0)).plus(run(by_tokens)).plus(minus)


PREDICTIONS: dict[str, Predict] = {
    "kept_rows": scaled(kept_rows),
    "scored_rows": scaled(scored_rows),
    "scored_tokens": scaled(scored_tokens),
    "tokens_of_halves": scaled(tokens_of_halves),
    "spread_of_rewards": scaled(spread_of_rewards),
    "mean_of_passes": mean_of_passes,
    "entropy_of_tokens": entropy_of_tokens,
}
"""What TRL computes where it differs, by the name that a setting gives."""
