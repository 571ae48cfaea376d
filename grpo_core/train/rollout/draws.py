"""Fix the random numbers of every draw by its place in the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_core.protocol.sampler import Request, SamplingParams
from grpo_core.protocol.types import TaskKey


@dataclass(frozen=True, slots=True)
class Draws:
    """Hold the place of a completion in a run, by which its random numbers are fixed.

    Dropped rows, micro-batches, resume and the number of processes do not change what is drawn.
    """

    key: TaskKey
    """Key of the task."""
    seed: int
    """The run's."""
    step: int
    attempt: int = 0
    """Number of the rollout in its group."""
    turn: int = 0
    """Number of the turn of the policy."""
    occurrence: int = 0
    """How often the task was dealt in this step before; it tells equal tasks apart."""

    def request(self, prefix: Sequence[int], params: SamplingParams, count: int) -> Request:
        """Return the request for `count` tokens after `prefix`, with its random numbers."""
        place = (self.seed, self.step, self.occurrence, self.attempt, self.turn)
        seed = self.key.rng("sampler", *place).getrandbits(64)
        return Request(tuple(prefix), self.uniforms(count), params, seed)

    def uniforms(self, count: int) -> list[float]:
        """Return `count` random numbers in [0, 1)."""
        place = (self.seed, self.step, self.occurrence, self.attempt, self.turn)
        return draw_uniforms(self.key.rng("uniforms", *place).getrandbits(128), count)


def draw_uniforms(key: int, count: int) -> list[float]:
    """Return `count` random numbers in [0, 1), fixed by 128 bits."""
    bits = np.array([key >> 64, key & (2**64 - 1)], dtype=np.uint64)
    numbers: list[float] = np.random.Generator(np.random.Philox(key=bits)).random(count).tolist()
    return numbers
