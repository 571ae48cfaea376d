"""Plays episodes without an engine, as an environment's own tests need it."""

import asyncio
from collections.abc import Sequence
from typing import Any

from grpo_core import Environment, Message, Rollout, Task, Verdict


def play(
    env: Environment[Any], task: Task[Any], turns: str | Sequence[str]
) -> tuple[list[Message], Verdict]:
    """Return the messages of an episode with a scripted policy, and its verdict."""

    async def played() -> tuple[list[Message], Verdict]:
        episode = env.episode(task)
        try:
            messages = list(await episode.open())
            for number, text in enumerate([turns] if isinstance(turns, str) else turns, 1):
                messages.append(Message("assistant", text))
                reply = None if number == env.max_turns else await episode.reply(tuple(messages))
                if reply is None:
                    break
                messages += reply
            if messages[-1].role != "assistant":
                messages.pop()
            return messages, await episode.verdict(Rollout(tuple(messages)))
        finally:
            await episode.close()

    return asyncio.run(played())


def total(env: Environment[Any], verdict: Verdict) -> float:
    """Return the total reward under the environment's weights."""
    return sum(weight * verdict.rewards[name].value for name, weight in env.parts.items())
