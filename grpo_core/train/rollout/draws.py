"""Fix the random numbers of every draw by its place in the run."""

from __future__ import annotations

import numpy as np

from grpo_core.protocol.sampler import Request, SamplingParams
from grpo_core.protocol.types import TaskKey


def make_request(
    prefix: tuple[int, ...],
    params: SamplingParams,
    key: TaskKey,
    *,
    seed: int,
    step: int,
    attempt: int,
    turn: int,
    count: int,
    occurrence: int = 0,
) -> Request:
    """Return the request for `count` tokens after `prefix`, with its random numbers.

    The other arguments are those of `uniforms`.
    """
    place = (seed, step, occurrence, attempt, turn)
    numbers = uniforms(
        key,
        seed=seed,
        step=step,
        attempt=attempt,
        turn=turn,
        count=count,
        occurrence=occurrence,
    )
    return Request(prefix, numbers, params, key.rng("sampler", *place).getrandbits(64))


def uniforms(
    key: TaskKey, *, seed: int, step: int, attempt: int, turn: int, count: int, occurrence: int = 0
) -> list[float]:
    """Return `count` random numbers in [0, 1), fixed by (run seed, step, prompt, attempt, turn).

    Dropped rows, micro-batches, resume and the number of processes do not change what is drawn.

    Args:
        attempt: number of the rollout in its group.
        occurrence: tells equal tasks of one step apart.
    """
    key_bits = key.rng("uniforms", seed, step, occurrence, attempt, turn).getrandbits(128)
    return draw_uniforms(key_bits, count)


def draw_uniforms(key: int, count: int) -> list[float]:
    """Return `count` random numbers in [0, 1), fixed by 128 bits."""
    bits = np.array([key >> 64, key & (2**64 - 1)], dtype=np.uint64)
    numbers: list[float] = np.random.Generator(np.random.Philox(key=bits)).random(count).tolist()
    return numbers
