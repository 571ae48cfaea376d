"""What samplers that only draw for a test share."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from grpo_core.config.settings import VerifyConfig
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.sampler import Completion, Request, Weights
from grpo_core.protocol.types import Rollout, TaskKey
from grpo_core.train.rollout.budget import Budget
from grpo_core.verify.engine import Verifier

from .arrange import rolled_out


class Copyless:
    """A sampler without weights of its own."""

    uses_uniforms: ClassVar[bool] = True
    samples_during_updates: ClassVar[bool] = False

    async def sync(self, weights: Weights, version: int) -> None:
        """Nothing has to be taken over."""

    async def rest(self) -> None:
        """Nothing is kept on a device."""

    async def close(self) -> None:
        """Nothing is held."""


class Scripted(Copyless):
    """A sampler that says what it is told, token by token, and remembers what it was asked to continue."""

    def __init__(self, *turns: Sequence[int]) -> None:
        self.turns = list(turns)
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        turn = tuple(self.turns[len(self.requests) - 1])
        tokens = turn[: len(request.uniforms)]
        return Completion(tokens, (-1.0,) * len(tokens), "stop" if tokens == turn else "length")


def said(policy: Policy, *texts: str) -> list[list[int]]:
    """The tokens of texts; "!" stands for the end of a turn."""
    ended = [text.replace("!", "<|im_end|>") for text in texts]
    return policy.tokenizer(ended, add_special_tokens=False)["input_ids"]


def play(
    policy: Policy,
    sampler: Any,
    env: Environment[Any],
    budget: Budget,
    *,
    settings: VerifyConfig,
    tasks: int = 1,
    attempts: int = 1,
    overlap: bool = False,
) -> list[Rollout]:
    """Return the attempts at the first tasks of an environment."""

    async def through() -> list[Rollout]:
        async with Verifier(env, settings=settings) as verifier:
            asked = await verifier.tasks([TaskKey("games", "train", i) for i in range(tasks)])
            more = {"attempts": attempts, "budget": budget, "overlap": overlap}
            rolled = await rolled_out(policy, sampler, asked, replies=verifier, **more)
            return [rollout for group in rolled for rollout in group]

    return asyncio.run(through())
