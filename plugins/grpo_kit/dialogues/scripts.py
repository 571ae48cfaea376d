"""Scripts of several turns as one text, so that checks can change, list and compare them as texts.

The checks put things before, behind and in place of the answer in a reference. In a dialogue the
answer stands in one of several turns, and the others have to be said as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, overload

from grpo_core import AgentEnvironment, Environment, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.api.protocol import Script
from grpo_core.api.verify import (
    Conversation,
    Conversations,
    IsolatedReplies,
    PlainConversation,
    Verifier,
    play,
    turns_of,
)

RolloutOf = Callable[[Task[Any], str], Awaitable[Rollout]]
"""Returns the rollout of an attempt."""
_MARK = "\n⟪next turn⟫\n"
"""What stands between two turns; no ordinary answer contains it."""


@overload
def join_turns(script: Script) -> str: ...


@overload
def join_turns(script: None) -> None: ...


@overload
def join_turns(script: Script | None) -> str | None: ...


def join_turns(script: Script | None) -> str | None:
    """Return a script as one text, with a mark between its turns; None for None."""
    return None if script is None else _MARK.join(turns_of(script))


def split_turns(text: str) -> tuple[str, ...]:
    """Return the turns of a text that `join_turns` made, or that a check made from one."""
    return tuple(text.split(_MARK))


def with_last_turn(text: str, turn: str) -> str:
    """Return the text of a script with another last turn."""
    return join_turns((*split_turns(text)[:-1], turn))


async def attempt_rollout(
    env: Environment[Any], replies: Conversations, task: Task[Any], text: str
) -> Rollout:
    """Return the rollout of an attempt; one of several turns, and of an agent, is played."""
    turns = split_turns(text)
    hears_all = env.rung() == "episode" or isinstance(env, AgentEnvironment)
    if len(turns) == 1 and not hears_all:
        return Rollout.of(text)
    # An episode and an agent hear every turn; otherwise no reply to the last one is asked for.
    max_turns = env.max_turns if hears_all else min(env.max_turns, len(turns))
    return (await play(replies, task, turns, max_turns=max_turns)).rollout


async def attempt_verdicts(
    verifier: Verifier,
    attempts: Sequence[tuple[Task[Any], str]],
    rollout_of: RolloutOf | None = None,
) -> list[Verdict]:
    """Return the verdict on each attempt.

    Args:
        verifier: Judges them.
        attempts: The attempts.
        rollout_of: Returns the rollout of an attempt that has no episode; None: the verifier plays
            it.
    """
    if verifier.has_episodes:
        return await _episode_verdicts(verifier, attempts)
    play_one = rollout_of or partial(attempt_rollout, verifier.env, verifier)
    if verifier.has_agents:
        rollouts = await asyncio.gather(*(play_one(task, text) for task, text in attempts))
    else:  # one after the other, since many begin with the same turns
        rollouts = [await play_one(task, text) for task, text in attempts]
    groups = await verifier.verify(
        [task for task, _ in attempts], [[rollout] for rollout in rollouts]
    )
    return [verdict for (verdict,) in groups]


async def _episode_verdicts(
    verifier: Verifier, attempts: Sequence[tuple[Task[Any], str]]
) -> list[Verdict]:
    """Return the verdict of an episode on each attempt, which is played to it.

    An attempt that ends a worker takes the episodes beside it along: those without a verdict are
    played again one by one, up to the first that has none then either.
    """

    async def verdict(task: Task[Any], text: str) -> Verdict:
        played = await play(
            verifier, task, split_turns(text), max_turns=verifier.env.max_turns, judge=True
        )
        assert played.verdict is not None
        return played.verdict

    verdicts = list(await asyncio.gather(*(verdict(task, text) for task, text in attempts)))
    for index, (task, text) in enumerate(attempts):
        if len(attempts) > 1 and not verdicts[index].scored:
            verdicts[index] = await verdict(task, text)
            if not verdicts[index].scored:
                break
    return verdicts


@dataclass(slots=True)
class RememberedReplies:
    """Asks for each reply once, since many attempts begin with the same turns.

    Episodes have state, so each attempt has one of its own, which also judges it.
    """

    replies: IsolatedReplies
    verifier: Verifier
    """Judges the attempts that have no episode."""
    known: dict[tuple[TaskKey, tuple[Message, ...]], Sequence[Message] | None] = field(
        default_factory=dict
    )

    def conversation(self, task: Task[Any]) -> Conversation:
        """Return a conversation about a task."""
        if self.verifier.has_agents:
            return self.verifier.conversation(task)
        if self.verifier.has_episodes:
            return self.replies.conversation(task)
        return PlainConversation(self, task, self._verdict)

    async def _verdict(self, task: Task[Any], rollout: Rollout) -> Verdict:
        ((verdict,),) = await self.verifier.verify([task], [[rollout]])
        return verdict

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's reply; raise GrpoError if it fails."""
        place = (task.key, tuple(messages))
        if place not in self.known:
            self.known[place] = await self.replies.reply(task, messages)
        return self.known[place]
