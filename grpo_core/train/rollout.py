"""Drives attempts: task -> tokens -> sampler -> Rollout. Every token is drawn by a number that its place in the run fixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_core.config import SamplingConfig
from grpo_core.train.policy import Policy
from grpo_core.train.sampler import Completion, Request, Sampler
from grpo_core.types import Message, Rollout, Task, TaskKey


def uniforms(key: TaskKey, *, seed: int, step: int, attempt: int, turn: int, count: int, occurrence: int = 0) -> list[float]:
    """(count,) numbers in [0, 1) fixed by (run seed, step, prompt, attempt, turn): dropped rows, micro-batches, resume and the number
    of processes change nothing in what is drawn. occurrence: tells apart equal tasks of one step."""
    words = key.rng("uniforms", seed, step, occurrence, attempt, turn).getrandbits(128)
    generator = np.random.Generator(np.random.Philox(key=np.array([words >> 64, words & (2**64 - 1)], dtype=np.uint64)))
    numbers: list[float] = generator.random(count).tolist()
    return numbers


async def roll_out(
    tasks_P: Sequence[Task[Any]],
    *,
    attempts: int,
    policy: Policy,
    sampler: Sampler,
    sampling: SamplingConfig,
    max_new_tokens: int,
    seed: int,
    step: int,
) -> tuple[list[list[Rollout]], float]:
    """`attempts` rollouts of each task, and the least probability mass that top-p, top-k and min-p kept in any draw."""
    requests = []
    seen: Counter[TaskKey] = Counter()
    for task in tasks_P:
        prompt_ids = policy.encode_checked(task.prompt, max_new_tokens=max_new_tokens)
        occurrence = seen[task.key]
        seen[task.key] += 1
        for attempt in range(attempts):
            numbers = uniforms(task.key, seed=seed, step=step, attempt=attempt, turn=0, count=max_new_tokens, occurrence=occurrence)
            requests.append(Request(prompt_ids, numbers))
    completions = await sampler.sample(requests, sampling)
    rollouts = [_rollout(policy, request, completion) for request, completion in zip(requests, completions, strict=True)]
    grouped = [rollouts[i : i + attempts] for i in range(0, len(rollouts), attempts)]
    return grouped, min((c.kept_mass for c in completions), default=1.0)


def _rollout(policy: Policy, request: Request, completion: Completion) -> Rollout:
    return Rollout(
        messages=(Message("assistant", policy.decode(completion.token_ids)),),
        finish=completion.finish,
        prompt_ids=request.prefix,
        token_ids=tuple(completion.token_ids),
        logprobs=tuple(completion.logprobs),
        trainable=(1,) * len(completion.token_ids),
    )
