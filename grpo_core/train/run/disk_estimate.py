"""Estimate the disk space that a run takes at most, before its first step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config.config import RunConfig
from grpo_core.engine.models.tokenizer import stored_bytes
from grpo_core.engine.policy.memory_estimate import Workload, format_bytes
from grpo_core.train.actor import Actor

ATTEMPT_BYTES, PART_BYTES = 600, 150
"""Bytes of a line of rollouts.jsonl without its text, and of each reward part in it with a note.

Measured: 650 and 800 bytes with three parts, whole lines of 8 and 16 tokens.
"""
GROUP_BYTES, PROMPT_TOKEN_BYTES = 500, 6
"""Bytes of the line of a group, and per token of its prompt."""
TOKEN_BYTES = 12
"""Bytes per generated token: its text, with JSON's escapes, and once more in the verdict's answer.

Measured for the text alone: 4.4 for English, 5 for code, 3.5 for sums, 6 for random tokens.
"""
TOKEN_ID_BYTES, RATIO_BYTES = 20, 26
"""Bytes per token that log.tokens and log.ratios add.

Measured (examples/benchmarks/log_sizes.py): 19, and 18 where a step has one pass, so that every
ratio is 1.0; other ratios have up to nine digits.
"""
STEP_BYTES = 2_500
"""Bytes of a line of metrics.jsonl."""
TENSOR_BYTES = 1_000
"""Bytes of a checkpoint for each trained tensor besides its numbers; measured 850."""
CHECKPOINT_BYTES = 64_000
"""Bytes of a checkpoint besides: its record of the run, and the states of random generators."""
CARD_BYTES = 32_000
"""Bytes of the model card, the configs and the chat template beside the trained weights."""
WORD_BYTES = 16
"""Bytes of the text of a token in vocabulary.json, on average."""
FILE_BYTES, FILES = 4_096, 40
"""Bytes of a block of the disk, and the files of a run, each of which may fill its last one."""
PICTURES_BYTES = 400_000
"""Bytes of the pictures that `grpo plot` draws; measured 250,000."""


@dataclass(frozen=True, slots=True)
class DiskEstimate:
    """Holds the bytes that a run will take at most."""

    checkpoint: float
    """Bytes of one checkpoint."""
    kept: int
    """Checkpoints on the disk at once, including the one being written."""
    weights: float
    """Bytes of final/ and, where evaluations choose it, checkpoints/best, each with the
    tokenizer."""
    logs: float
    """Bytes of the logs as they are written, before compression, and of the pictures."""
    free: float
    """Free bytes on the disk of the run folder."""

    @property
    def total(self) -> float:
        """Return the bytes of all of it."""
        return self.kept * self.checkpoint + self.weights + self.logs

    def __str__(self) -> str:
        parts = (
            f"{self.kept} checkpoints of {format_bytes(self.checkpoint)}, trained weights and "
            f"tokenizer {format_bytes(self.weights)}, logs and pictures {format_bytes(self.logs)}"
        )
        total, free = format_bytes(self.total), format_bytes(self.free)
        return f"{total} at most, of {free} that are free: {parts}"

    def check(self, warn: Callable[[str], None]) -> None:
        """Warn if the disk may be too small."""
        if self.total > self.free:
            warn(
                f"this run may fill the disk: {self}. Make room, choose an --out on another disk, "
                "lower checkpoint.keep, or train an adapter (lora.enabled=true)"
            )


def estimate_disk(folder: Path, actor: Actor, *, steps: int, workload: Workload) -> DiskEstimate:
    """Return the estimate for a run of `steps` steps.

    Args:
        folder: the run folder; it need not exist yet.
        actor: has the weights and the settings.
        steps: number of steps that are left.
        workload: has the longest prompt and completion.
    """
    config, footprint = actor.config, actor.footprint
    assert footprint is not None  # what is trained was measured
    trained_bytes = sum(parameter.nbytes for parameter in footprint.trainable)
    reference_bytes = trained_bytes if config.kl.refresh_every is not None else 0
    saved_bytes = trained_bytes if config.lora.enabled else footprint.weights
    tensors = TENSOR_BYTES * len(footprint.trainable)
    existing_folder = next(path for path in (folder, *folder.parents) if path.exists())
    # The weights that were best before are there until the new ones are complete.
    copies = 3 if config.eval.every else 1
    return DiskEstimate(
        checkpoint=trained_bytes
        + reference_bytes
        + footprint.optimizer_bytes(config)
        + tensors
        + CHECKPOINT_BYTES,
        kept=config.checkpoint.keep + 1,
        weights=copies
        * (saved_bytes + tensors + stored_bytes(actor.policy.tokenizer) + CARD_BYTES),
        logs=_log_bytes(actor, steps, workload) + PICTURES_BYTES + FILE_BYTES * FILES,
        free=shutil.disk_usage(existing_folder).free,
    )


def _log_bytes(actor: Actor, steps: int, workload: Workload) -> float:
    """Return the most bytes of metrics.jsonl, rollouts.jsonl, log.txt and vocabulary.json."""
    config = actor.config
    evaluations = 2 + (steps // config.eval.every if config.eval.every else 0)
    held_out = config.eval.tasks * evaluations * max(1, len(actor.sources))
    groups = steps * _logged_groups(config) if config.method == "grpo" else 0
    shown = steps // config.log.samples_every if config.log.samples_every else 0
    parts = max((len(source.env.parts) for source in actor.sources), default=0)
    extra_bytes = TOKEN_ID_BYTES * config.log.tokens + RATIO_BYTES * config.log.ratios
    attempt = ATTEMPT_BYTES + PART_BYTES * parts + (TOKEN_BYTES + extra_bytes) * workload.new
    group = GROUP_BYTES + PROMPT_TOKEN_BYTES * workload.prompt
    words = WORD_BYTES * len(actor.policy.tokenizer) if config.log.tokens else 0
    return (
        (steps + evaluations) * STEP_BYTES
        + (held_out + groups) * group
        + (held_out + groups * config.group_size) * attempt
        + shown * (group + config.group_size * attempt)
        + 2 * len(json.dumps(config.model_dump(mode="json")))
        + words
    )


def _logged_groups(config: RunConfig) -> int:
    """Return the most groups of a training step that are logged."""
    sampled = config.prompts_per_step * (1 + config.sampling.refills)
    return {"all": sampled, "sample": min(sampled, config.log.sample_groups), "none": 0}[
        config.log.rollouts
    ]
