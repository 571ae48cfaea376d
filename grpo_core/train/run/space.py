"""Estimates how much disk a run will take, before its first step."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config.config import RunConfig
from grpo_core.train.policy.memory import Footprint, said

ATTEMPT_BYTES = 700
"""A line of rollouts.jsonl without what was written: key, verdict, reward parts."""
TOKEN_BYTES = 5
"""Of what was written, with JSON's escapes; measured: 4.4 for English, 5 for code, 3.5 for sums."""
STEP_BYTES = 2_500
"""A line of metrics.jsonl."""


@dataclass(frozen=True, slots=True)
class DiskEstimate:
    """Bytes that a run will take at most.

    Attributes:
        checkpoint: one checkpoint.
        kept: how many are there at once, with the one that is being written.
        weights: final/ and, where evaluations choose it, checkpoints/best.
        logs: as they are written, before they are compressed.
        free: what the disk of the run folder has left.
    """

    checkpoint: float
    kept: int
    weights: float
    logs: float
    free: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.kept * self.checkpoint + self.weights + self.logs

    def __str__(self) -> str:
        parts = f"{self.kept} checkpoints of {said(self.checkpoint)}, trained weights {said(self.weights)}, logs {said(self.logs)}"
        return f"{said(self.total)} at most, of {said(self.free)} that are free: {parts}"

    def check(self, warn: Callable[[str], None]) -> None:
        """Warn where the disk may be too small."""
        if self.total > self.free:
            warn(
                f"this run may fill the disk: {self}. Make room, choose an --out on another disk, lower checkpoint.keep, or train an "
                "adapter (lora.enabled=true)"
            )


def estimate_disk(
    folder: Path, footprint: Footprint, config: RunConfig, *, steps: int, new_tokens: int
) -> DiskEstimate:
    """Return the estimate for a run of `steps` steps whose attempts have at most `new_tokens` tokens.

    Args:
        folder: of the run; it need not exist yet.
    """
    trained = sum(parameter.nbytes for parameter in footprint.trainable)
    reference = trained if config.kl.refresh_every is not None else 0
    saved = trained if config.lora.enabled else footprint.weights
    evaluations = 2 + (steps // config.eval.every if config.eval.every else 0)
    attempts = config.eval.tasks * evaluations
    if config.method == "grpo":
        attempts += (
            steps * config.prompts_per_step * config.group_size * (1 + config.sampling.refills)
        )
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return DiskEstimate(
        checkpoint=trained + reference + footprint.optimizer_bytes(config),
        kept=config.checkpoint.keep + 1,
        weights=saved * (2 if config.eval.every else 1),
        logs=steps * STEP_BYTES + attempts * (ATTEMPT_BYTES + TOKEN_BYTES * new_tokens),
        free=shutil.disk_usage(existing).free,
    )
