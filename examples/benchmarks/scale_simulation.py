"""Simulate the steps of a run on trainers, samplers and verifiers, event by event.

The model knows these rules and no others:

* Completions of a step are dealt evenly to the samplers, which draw them in batches; all
  completions of a batch end together.
* A verdict begins when its completion has ended and a verifier is free. Where each process has
  verifiers of its own (`pools`), they judge what it has drawn.
* A step is updated when all its verdicts are there, by all trainers, each with its share of rows.
* Rollouts of step s may begin when step s - 1 - staleness has been updated, and its weights have
  reached the samplers.
* Where trainers sample themselves (`shared`), a process does one of the two at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import simpy


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that each piece of work takes one machine."""

    sample_batch: float
    """Of a batch of completions, however few they are."""
    sample_row: float
    """Of each completion in it."""
    verdict: float
    update_step: float
    """Of an update, however few rows it has."""
    update_row: float
    """Of each row in it."""
    sync: float
    """Until new weights are where completions are drawn."""
    exchange: float = 0.0
    """Of each step, where several trainers exchange verdicts and gradients."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The machines of a run, and its work per step."""

    prompts: int
    group: int
    trainers: int = 1
    samplers: int = 1
    verifiers: int = 1
    pools: int = 1
    """Groups of verifiers; each belongs to the samplers of one process."""
    shared: bool = True
    """The trainers are the samplers, so `samplers` counts the same machines."""
    staleness: int = 0
    batch_rows: int = 64
    """Most completions that a sampler draws at once."""

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def machines(self) -> int:
        return self.verifiers + self.trainers + (0 if self.shared else self.samplers)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Hold the time of a step, and the share of it in which each kind of machine is busy."""

    seconds: float
    sampling: float
    verifying: float
    updating: float

    @property
    def busiest(self) -> str:
        """The kind of machine that works the largest share of the time."""
        shares = {
            "samplers": self.sampling,
            "verifiers": self.verifying,
            "trainers": self.updating,
        }
        return max(shares, key=lambda kind: shares[kind])


def simulate(costs: Costs, layout: Layout) -> Predicted:
    """Return what a step takes, as the mean over steps after a warm-up.

    The pattern of steps repeats after staleness + 1 of them. Later ones are begun as well, since
    they keep the machines busy meanwhile.
    """
    period = layout.staleness + 1
    return _Simulation(costs, layout, 4 * period).run(warm_up=2 * period, counted=period)


class _Simulation:
    """One simulated run."""

    def __init__(self, costs: Costs, layout: Layout, steps: int) -> None:
        self.costs, self.layout, self.steps = costs, layout, steps
        self.env = simpy.Environment()
        self.judged = [self.env.event() for _ in range(steps)]
        self.updated = [self.env.event() for _ in range(steps)]
        self.missing = [layout.rows] * steps
        self.updated_at: list[float] = []
        self.verifiers = [
            simpy.Resource(self.env, capacity=layout.verifiers // layout.pools)
            for _ in range(layout.pools)
        ]
        self.processes = [simpy.Resource(self.env) for _ in range(layout.samplers)]
        self.worked = {"sample": 0.0, "verify": 0.0, "update": 0.0}

    def run(self, warm_up: int, counted: int) -> Predicted:
        for number in range(self.layout.samplers):
            self.env.process(self._sampler(number))
        self.env.process(self._trainers())
        self.env.run()
        ends, layout = self.updated_at, self.layout
        total = ends[-1]
        return Predicted(
            seconds=(ends[warm_up + counted - 1] - ends[warm_up - 1]) / counted,
            sampling=self.worked["sample"] / layout.samplers / total,
            verifying=self.worked["verify"] / layout.verifiers / total,
            updating=self.worked["update"] / total,
        )

    def _sampler(self, number: int) -> Iterator[Any]:
        """Draw this sampler's share of each step's completions."""
        layout = self.layout
        for step in range(self.steps):
            if (needed := step - 1 - layout.staleness) >= 0:
                yield self.updated[needed]
                yield self.env.timeout(self.costs.sync)
            share = len(range(number, layout.rows, layout.samplers))
            while share:
                rows = min(share, layout.batch_rows)
                share -= rows
                seconds = self.costs.sample_batch + rows * self.costs.sample_row
                with self.processes[number].request() as process:
                    yield process
                    yield self.env.timeout(seconds)
                self.worked["sample"] += seconds
                for _ in range(rows):
                    self.env.process(self._verdict(step, number % layout.pools))

    def _verdict(self, step: int, pool: int) -> Iterator[Any]:
        with self.verifiers[pool].request() as verifier:
            yield verifier
            yield self.env.timeout(self.costs.verdict)
        self.worked["verify"] += self.costs.verdict
        self.missing[step] -= 1
        if not self.missing[step]:
            self.judged[step].succeed()

    def _trainers(self) -> Iterator[Any]:
        """Update on one step after the other, all trainers together."""
        costs, layout = self.costs, self.layout
        seconds = costs.update_step + math.ceil(layout.rows / layout.trainers) * costs.update_row
        seconds += costs.exchange if layout.trainers > 1 else 0.0
        for step in range(self.steps):
            yield self.judged[step]
            held = [process.request() for process in self.processes] if layout.shared else []
            yield simpy.AllOf(self.env, held)
            yield self.env.timeout(seconds)
            for process, request in zip(self.processes, held, strict=False):
                process.release(request)
            self.worked["update"] += seconds
            self.updated_at.append(self.env.now)
            self.updated[step].succeed()
