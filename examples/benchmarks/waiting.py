"""An environment whose verifier waits, and a sampler that waits, as if they were on other machines.

Many of them need no cores, so a machine with two can hold the layouts of scale_model.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from grpo_core import Environment, Reward, Rollout, Spec, Task, TaskKey, Verdict, hookimpl
from grpo_core.protocol.sampler import Completion, ModelToSample, Request, Weights


@dataclass(frozen=True, slots=True)
class Config:
    seconds: float = 0.3
    """How long a verdict takes."""


class Waiting(Environment[str]):
    """Reward: the share of characters that are the letter of the prompt."""

    Config = Config
    config: Config
    parts: ClassVar[Mapping[str, float]] = {"share": 1.0}
    max_new_tokens = 8

    def task(self, key: TaskKey) -> Task[str]:
        letter = "abcdefgh"[key.rng().randrange(8)]
        return Task(key, f"Write {letter}.", letter)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        time.sleep(self.config.seconds)
        share = rollout.text.count(task.data) / max(1, len(rollout.text))
        return Verdict({"share": Reward(share)}, passed=share > 0.5, answer=rollout.text)


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    batch_seconds: float = 0.5
    """How long a batch of completions takes, however few they are."""
    row_seconds: float = 0.1
    """How much longer it takes for each completion."""
    rows: int = 64
    """Most completions of a batch."""
    special: int = 4
    """Ids below this are special tokens, which are not drawn."""
    vocabulary: int = 104
    """Number of tokens of the model. Its weights are random, so all are about as likely."""


class WaitingSampler:
    """Draw tokens at random, after as long a time as an engine elsewhere would take."""

    Config = SamplerConfig
    uses_uniforms: ClassVar[bool] = True

    def __init__(self, config: SamplerConfig, model: ModelToSample) -> None:
        self._config, self._version = config, 0
        self._requests: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._batches: asyncio.Task[None] | None = None

    async def generate(self, request: Request) -> Completion:
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._requests.append((request, answer))
        if self._batches is None or self._batches.done():
            self._batches = asyncio.create_task(self._draw())
        return await answer

    async def _draw(self) -> None:
        """Answer the requests that wait, batch by batch."""
        config = self._config
        await asyncio.sleep(0)  # for the requests that come together
        while self._requests:
            batch = self._requests[: config.rows]
            del self._requests[: config.rows]
            await asyncio.sleep(config.batch_seconds + len(batch) * config.row_seconds)
            for request, answer in batch:
                if not answer.cancelled():
                    answer.set_result(self._completion(request))

    def _completion(self, request: Request) -> Completion:
        first, count = self._config.special, self._config.vocabulary - self._config.special
        ids = tuple(first + int(uniform * count) for uniform in request.uniforms)
        logprobs = (-math.log(self._config.vocabulary),) * len(ids)
        return Completion(ids, logprobs, "length", 1.0, self._version)

    async def sync(self, weights: Weights, version: int) -> None:
        self._version = version

    async def rest(self) -> None:
        """It uses no device."""

    async def close(self) -> None:
        """It holds nothing."""


@hookimpl
def grpo_samplers() -> list[Spec]:
    return [Spec("waiting", "waiting:WaitingSampler", "Waits, then draws at random.")]
