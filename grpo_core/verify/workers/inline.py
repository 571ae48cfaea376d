"""Call an environment's methods in this process, with deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any

from grpo_core.calls.call import current_call
from grpo_core.calls.deadline import Slots, in_thread, within
from grpo_core.calls.variables import inherited_variables
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.executor import VERIFYING, Op
from grpo_core.protocol.types import Task, TaskKey, Verdict
from grpo_core.verify.episodes.episodes import EpisodeSlots, OpenEpisodes
from grpo_core.verify.judge.checks import awaited, check_task


class InlineHost:
    """Run the environment in this process.

    Synchronous code runs in a thread, one call at a time, since environments need not be
    thread-safe. A thread cannot be killed: after a timeout it continues in the background. That is
    why this is for trusted code.
    """

    def __init__(
        self,
        env: Environment[Any],
        *,
        max_concurrency: int,
        replies_in_thread: bool = False,
        further_variables: Iterable[str] = (),
    ) -> None:
        """Prepare the calls.

        Args:
            env: the environment.
            max_concurrency: most asynchronous calls at once.
            replies_in_thread: run also an overridden reply() in a thread, with an event loop of its
                own, so that one that blocks does not hold the caller.
            further_variables: names of environment variables that commands of agents inherit
                besides those that workers do.
        """
        self._env = env
        self._replies_in_thread = replies_in_thread
        self._asynchronous = env.rung() == "averify"
        self._episodes = OpenEpisodes(env, inherited_variables(further_variables))
        self._thread_slot = Slots(1)
        self._await_slots = Slots(1 if env.stateful else max_concurrency)
        self._episode_slots = EpisodeSlots(1 if env.stateful else max_concurrency)

    async def task(self, key: TaskKey, *, seconds: float) -> Task[Any]:
        """Return the task of `key`; `seconds` is the timeout."""
        async with self._thread_slot.here():
            return check_task(await within(in_thread(self._env.task, key), seconds), key)

    async def call(
        self,
        op: Op,
        task: Task[Any],
        *arguments: Any,
        seconds: float,
        episode: str | None = None,
        alone: bool = False,
    ) -> Any:
        """Return the unchecked result of the environment's method `op`.

        Args:
            op: name of the method.
            task: its first argument.
            *arguments: its other arguments.
            seconds: timeout of the call.
            episode: id of an episode at the task, whose method is meant.
            alone: whether an episode that is opened needs a process of its own; here there is none.
        """
        env = self._env
        if episode is not None:
            work = self._episodes.call(op, task, episode, *arguments)
            async with self._episode_slots.here(op):
                return await within(_served(op, work), seconds)
        if op == "reply" and (self._replies_in_thread or type(env).reply is Environment.reply):
            # The inherited reply() calls the environment's tools, which are synchronous functions.
            async with self._thread_slot.here():
                return await within(in_thread(_run_reply, env, task, *arguments), seconds)
        if op == "reply" or (op == "verify" and self._asynchronous):
            name = "averify" if op == "verify" else "reply"
            async with self._await_slots.here():
                work = awaited(getattr(env, name)(task, *arguments), name)
                return await within(_served(op, work), seconds)
        async with self._thread_slot.here():
            return await within(_served(op, in_thread(getattr(env, op), task, *arguments)), seconds)

    async def open(self) -> None:
        """Do nothing: the environment exists already."""

    async def close(self) -> None:
        """Close the episodes that are still open."""
        await self._episodes.close()


def _run_reply(env: Environment[Any], task: Task[Any], *arguments: Any) -> Any:
    """Return the environment's reply, in an event loop of its own."""
    return asyncio.run(awaited(env.reply(task, *arguments), "reply"))


async def _served(op: Op, work: Awaitable[Any]) -> Any:
    """Return the result of `work`; a verdict is marked if a service requests not to cache it.

    Services that it calls know whether a verdict is asked for.
    """
    current_call().verifies |= op in VERIFYING
    result = await work
    if isinstance(result, Verdict) and not current_call().cacheable:
        return replace(result, cacheable=False)
    return result
