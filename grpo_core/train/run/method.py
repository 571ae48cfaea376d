"""Declare what a run expects of a training method: `collect` rollouts, `update` on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from grpo_core.engine.compute.batch import Row
from grpo_core.engine.policy.memory_estimate import Workload
from grpo_core.protocol.events import BatchCollected
from grpo_core.protocol.types import Task
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.tasks import TaskStream
from grpo_core.train.update.updater import Updater


class Clock:
    """Adds the seconds since the last lap to a phase, at each lap.

    Args:
        start: when it started, by `time.perf_counter`; now if left out.
    """

    def __init__(self, start: float | None = None) -> None:
        self._start = self._last = time.perf_counter() if start is None else start
        self._phases: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """End a lap: add its seconds to `phase`."""
        now = time.perf_counter()
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._last
        self._last = now

    def phases(self, *names: str) -> dict[str, float]:
        """Return the seconds of each phase as time/..., 0 for those of `names` that never were."""
        phases = dict.fromkeys(names, 0.0) | self._phases
        return {f"time/{phase}": seconds for phase, seconds in phases.items()}

    def metrics(self) -> dict[str, float]:
        """Return the seconds of each phase and of the whole step, as time/..."""
        return {**self.phases(), "time/step": time.perf_counter() - self._start}


Rows = Sequence[Sequence[Row]]
"""The rows of each optimizer step of a batch."""


class Method(Protocol):
    """Train a policy, one batch after another; `grpo_core.train.build` makes it."""

    name: str
    """Name in messages and titles."""
    actor: Actor
    updater: Updater
    total: int
    """Number of steps of the run."""
    stream: TaskStream
    """Deals the tasks; a checkpoint stores its state, besides weights and optimizer."""
    leaves_out_unasked: bool
    """Whether training leaves out the tasks that cannot be asked."""

    async def prepare(self) -> None:
        """Raise UserError for what would fail in the first step, as far as it can be known.

        It is called, with open sources, before anything is written.
        """
        ...

    async def first_tasks(self) -> list[Task[Any]]:
        """Return tasks of the first step, which are tried before anything is written."""
        ...

    def example_texts(self) -> Sequence[str] | None:
        """Return the prompts of the file that is learned from, as texts; None without a file."""
        ...

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload:
        """Estimate the largest batches from the tokens of the first tasks' prompts."""
        ...

    def collecting(self) -> AbstractAsyncContextManager[None]:
        """Return a context around steps; what was begun for later ones is given up at its end."""
        ...

    async def collect(self, step: int, clock: Clock) -> tuple[BatchCollected, Rows]:
        """Return the batch of step 1, 2, ... and its rows; change no weights.

        Args:
            step: the number of the step.
            clock: measures its phases.

        Returns:
            What is emitted, and what is trained on. The first number of each `Row.source` is a
            place in `BatchCollected.chosen`.
        """
        ...

    async def update(self, batch: BatchCollected, rows: Rows, clock: Clock) -> dict[str, float]:
        """Train on the rows of a batch; return the metrics of the step.

        The display needs loss, tokens/trained, time/update and time/step, and with reward/mean also
        pass_rate, tokens/generated and time/rollout.
        """
        ...
