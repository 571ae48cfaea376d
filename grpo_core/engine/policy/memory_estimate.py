"""Hold an estimate of the memory that a run needs, and say what takes most of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo_core.config.config import RunConfig
from grpo_core.engine.compute.batch import Row
from grpo_core.protocol.errors import ConfigError

MB = 2**20
"""Bytes of a mebibyte."""

HEADROOM = 0.05
"""Memory that allocators lose between tensors, as a share of the rest."""

TOLERANCE = 1.2
"""Factor within which the estimate agrees with the measured peak; a run is refused only if the
estimate exceeds the free memory by more."""

ADVICE = {
    "weights": "model.quantization=4bit, model.dtype=bfloat16 or a smaller model",
    "reference": "lora.enabled=true, which needs no copy of the model, or kl.beta=0",
    "gradients": "lora.enabled=true",
    "optimizer": "optimizer.name=adamw8bit or lora.enabled=true",
    "weights for decoding": "sampling.prepack=false",
    "keys and values": "a lower sampling.kv_mb or sampling.max_rows",
    "decoding": "a lower sampling.max_rows",
    "activations": "trainer.gradient_checkpointing=true or a lower trainer.micro_batch_tokens",
    "logits": "a lower trainer.logits_mb",
    "states of the reference": "a smaller batch, shorter completions or kl.beta=0",
}
"""Settings that lower each component, by its name."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Hold the largest batches of a run."""

    rows: Sequence[Row]
    """Rows of an optimizer step, each as long as it may become."""
    decoded: Sequence[tuple[int, int]]
    """Pairs of prompts that are sampled together and completions of each."""
    prompt: int
    """Most tokens of a prompt."""
    new: int
    """Most tokens of a completion."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Hold the estimated bytes by component."""

    always: Mapping[str, float]
    """Components that exist all the time."""
    rollout: Mapping[str, float]
    """Components that exist only while completions are sampled."""
    update: Mapping[str, float]
    """Components that exist only in the update."""
    free: float
    """What the device has left for this process, its present share included."""

    @property
    def components(self) -> dict[str, float]:
        """Return the bytes of each component at the peak."""
        phase = max(self.rollout, self.update, key=lambda phase: sum(phase.values()))
        sizes = {**self.always, **phase}
        return {
            name: size
            for name, size in {**sizes, "headroom": HEADROOM * sum(sizes.values())}.items()
            if size >= 1
        }

    @property
    def peak(self) -> float:
        """Return the bytes in use at the peak."""
        return sum(self.components.values())

    def __str__(self) -> str:
        """Describe the peak and its components for people."""
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.components.items())
        peak, free = format_bytes(self.peak), format_bytes(self.free)
        return f"{peak} at most, of {free} that are free: {parts}"

    def check(self, config: RunConfig, warn: Callable[[str], None]) -> None:
        """Check that the run fits; do nothing with trainer.memory_check=off.

        Args:
            config: the configuration of the run.
            warn: called with a message where the run may not fit.

        Raises:
            ConfigError: the run cannot fit.
        """
        if config.trainer.memory_check == "off" or self.peak <= self.free:
            return
        largest = sorted(
            (name for name in self.components if name in ADVICE),
            key=lambda name: -self.components[name],
        )
        advice = "; ".join(ADVICE[name] for name in largest[:2])
        text = f"this run is estimated to need {self}. What would help most: {advice}"
        if config.trainer.memory_check == "refuse" and self.peak > TOLERANCE * self.free:
            raise ConfigError(f"{text}. trainer.memory_check=warn starts it nevertheless")
        warn(text)


def format_bytes(size: float) -> str:
    """Format a number of bytes for people."""
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / MB:.0f} MiB" if size >= MB else f"{math.ceil(size / 2**10)} KiB"
