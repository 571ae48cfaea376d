"""Play attempts to agents, each text once, whichever checks judge it.

An attempt by an agent costs a request or more over HTTP. Most checks ask about the verdict on what
an agent returned, and not about the agent; those that do are in `grpo_kit.dialogues.agents`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from grpo_core import Rollout, Task, TaskKey
from grpo_core.api.protocol import Script
from grpo_core.api.verify import Played, Player, Verifier, play
from grpo_kit.dialogues.scripts import split_turns

_AT_ONCE = 8
"""Agents that run at once."""
_LONGEST = 20_000
"""Characters of an attempt that is played again rather than remembered."""
_DEADLINE = "exceeded its deadline"
"""What the error of an agent says that did not end in time."""


class AgentPlays:
    """Plays attempts to the agent of an environment.

    Args:
        verifier: Runs the agent.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._rollouts: dict[tuple[TaskKey, str], Rollout] = {}
        self._running, self._since = 0, 0.0
        self._count, self._seconds = 0, 0.0
        self.hanging = ""
        """Why no agent is run any longer: one did not end in time. "" while agents are run."""

    @property
    def mean_seconds(self) -> float:
        """Return the seconds for each attempt so far, of which several went on at once."""
        return self._seconds / max(1, self._count)

    async def start(self, task: Task[Any]) -> None:
        """Play an attempt that does not count: the first one waits for a worker and its imports."""
        await self.rollout(task, "")
        self._count, self._seconds = 0, 0.0

    async def rollout(self, task: Task[Any], text: str) -> Rollout:
        """Return the rollout of an attempt, whose turns are joined by `join_turns`."""
        place = task.key, text
        if place in self._rollouts:
            return self._rollouts[place]
        rollout = (await self.play(task, split_turns(text))).rollout
        if len(text) <= _LONGEST and rollout.finish != "error":
            self._rollouts[place] = rollout
        return rollout

    async def play(self, task: Task[Any], turns: Script | Player, *, judge: bool = False) -> Played:
        """Return what comes of a policy that says some turns.

        Args:
            task: The task.
            turns: What the policy says, as for `play`.
            judge: Whether the verdict is asked for.
        """
        async with self._slots:
            return await self.play_alone(task, turns, judge=judge)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keep the agents of `play` from running in the block, in which its owner runs some."""
        async with AsyncExitStack() as stack:
            for _ in range(_AT_ONCE):
                await stack.enter_async_context(self._slots)
            yield

    async def play_alone(
        self, task: Task[Any], turns: Script | Player, *, judge: bool = False
    ) -> Played:
        """Return the same as `play`, in a block of `alone`."""
        if self.hanging:
            rollout = Rollout((), "error", error=self.hanging)
            return Played(rollout, (), False, await self._verdict(task, rollout))
        self._begin()
        try:
            played = await play(
                self._verifier,
                task,
                turns,
                max_turns=self._verifier.env.max_turns,
                judge=judge,
            )
        finally:
            self._end()
        if _DEADLINE in played.rollout.error:
            self.hanging = played.rollout.error
        return played

    async def _verdict(self, task: Task[Any], rollout: Rollout) -> Any:
        ((verdict,),) = await self._verifier.verify([task], [[rollout]])
        return verdict

    def _begin(self) -> None:
        if not self._running:
            self._since = time.monotonic()
        self._running += 1

    def _end(self) -> None:
        self._running -= 1
        self._count += 1
        if not self._running:
            self._seconds += time.monotonic() - self._since
