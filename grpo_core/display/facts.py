"""Put the metrics of a step and of an evaluation into words, for every kind of display."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

PHASES = {
    "rollout": "rollout",
    "verify": "verify",
    "update": "update",
    "trainer_wait": "trainer waited",
    "sampler_wait": "sampler waited",
}
"""What a step's line calls the phases in the metrics; the last two are those of a pipeline."""

UNITS = ("old", "tok/s", "s/step", "left")
"""Columns whose name follows the value in a line, as a unit does."""


class Facts:
    """Choose the main metrics of each step, and estimate the remaining time."""

    def __init__(self) -> None:
        self._start_time: float | None = None
        """The time at which the first step seen by this process began, in monotonic seconds."""

    def columns(self, step: int, total: int, metrics: Mapping[str, float]) -> dict[str, str]:
        """Return the main metrics of a step as text, by the titles of their columns.

        These are reward, pass rate, KL and generation speed, or for `grpo sft` loss and training
        speed. The estimate uses the mean duration of the steps that this process has seen.
        """
        now = time.monotonic()
        if self._start_time is None:
            self._start_time, self._start_step = now - metrics["time/step"], step - 1
        seconds_left = (now - self._start_time) / (step - self._start_step) * (total - step)
        timing = {
            "s/step": f"{metrics['time/step']:.1f}",
            "left": describe_duration(seconds_left),
        }
        if "reward/mean" not in metrics:
            speed = metrics["tokens/trained"] / max(metrics["time/update"], 1e-9)
            return {"loss": f"{metrics['loss']:.4f}", "tok/s": f"{speed:.0f}", **timing}
        shown = {"reward": f"{metrics['reward/mean']:.3f}", "pass": f"{metrics['pass_rate']:.0%}"}
        if not math.isnan(kl := metrics.get("kl", math.nan)):  # where no reference is computed
            shown["kl"] = f"{kl:.4f}"
        if "staleness/mean" in metrics:
            shown["old"] = f"{metrics['staleness/mean']:.1f}"
        if "curriculum/level" in metrics:
            shown["level"] = f"{metrics['curriculum/level']:g}"
        speed = metrics["tokens/generated"] / max(metrics["time/rollout"], 1e-9)
        return {**shown, "tok/s": f"{speed:.0f}", **timing}

    def line(self, step: int, total: int, metrics: Mapping[str, float]) -> str:
        """Return the main metrics of a step in one line."""
        return "  ".join(
            f"{text} {name}" if name in UNITS else f"{name} {text}"
            for name, text in self.columns(step, total, metrics).items()
        )


def describe_phases(metrics: Mapping[str, float]) -> str:
    """Return the seconds of each phase of a step."""
    return ", ".join(
        f"{name} {metrics[f'time/{phase}']:.1f} s"
        for phase, name in PHASES.items()
        if f"time/{phase}" in metrics
    )


def describe_evaluation(step: int, metrics: Mapping[str, float]) -> str:
    """Return a sentence with reward and pass rate of an evaluation after `step`."""
    return (
        f"held-out after step {step}: reward {metrics['eval/reward/mean']:.3f}, "
        f"pass rate {metrics['eval/pass_rate']:.1%} "
        f"({metrics['eval/tasks']:.0f} tasks, {metrics['eval/seconds']:.0f} s)"
        f"{_of_all(metrics)}"
    )


def describe_duration(seconds: float) -> str:
    """Return a duration in minutes, and in hours where it is long."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min"
        if minutes >= 10
        else f"{minutes}:{seconds:02d} min"
    )


def _of_all(metrics: Mapping[str, float]) -> str:
    """Return the pass rate with tasks that cannot be asked as not passed; "" if there are none."""
    if "eval/unasked" not in metrics:
        return ""
    return (
        f"; {metrics['eval/pass_rate/all']:.1%} with the {metrics['eval/unasked']:.0f} that cannot "
        "be asked"
    )
