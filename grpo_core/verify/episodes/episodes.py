"""Hold the open episodes of an environment, in the process that runs its code."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from grpo_core.calls.deadline import Slots
from grpo_core.protocol.agent import AgentEnvironment
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.episode import Episode
from grpo_core.protocol.executor import Op
from grpo_core.protocol.types import Message, Task
from grpo_core.verify.agents.agent_run import AgentRun
from grpo_core.verify.judge.checks import BrokenContractError, awaited, check_opening, check_reply
from grpo_core.verify.workers.pool import WorkerLostError


class EpisodeSlots:
    """Limit how many requests about episodes are worked on at once.

    An episode that is being opened may wait for what open ones hold, such as a session of the
    sandbox. So it never keeps one of those from going on, and what is closed waits for nobody.
    """

    def __init__(self, most: int) -> None:
        """Prepare the slots: `most` for episodes that are opened, and as many for open ones."""
        self._opening, self._open = Slots(most), Slots(most)

    def here(self, op: Op) -> AbstractAsyncContextManager[None]:
        """Return a block of work on a request, which begins when it is its turn."""
        if op in ("close", "agent"):  # an agent waits for the policy most of the time
            return nullcontext()
        return (self._opening if op == "open" else self._open).here()


class OpenEpisodes:
    """Open the episodes of an environment, ask them by their ids, and close them.

    Args:
        env: the environment.
        variables: the environment variables of the commands of its agents.
    """

    def __init__(self, env: Environment[Any], variables: Mapping[str, str]) -> None:
        self._env, self._variables = env, variables
        self._episodes: dict[str, Episode] = {}

    async def call(self, op: Op, task: Task[Any], episode: str, *arguments: Any) -> Any:
        """Return the result of an episode's method; that of `verdict` is not checked.

        Args:
            op: name of the method; "open" makes the episode first.
            task: its task.
            episode: its id.
            *arguments: the arguments of the method.

        Raises:
            WorkerLostError: there is no such episode here.
            BrokenContractError: the episode breaks the protocol.
        """
        if op == "close":
            await self._close(episode)
            return None
        if op == "open":
            return await self._open(task, episode)
        if episode not in self._episodes:
            raise WorkerLostError("the episode is lost: it is not open in this process")
        method = getattr(self._episodes[episode], op)
        result = await awaited(method(*arguments), f"the episode's {op}")
        return check_reply(result) if op == "reply" else result

    async def close(self) -> None:
        """Close all episodes; the first error is raised at the end."""
        results = await asyncio.gather(
            *(self._close(episode) for episode in list(self._episodes)), return_exceptions=True
        )
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _open(self, task: Task[Any], name: str) -> Sequence[Message]:
        episode: object = (
            AgentRun(self._env, task, self._variables)
            if isinstance(self._env, AgentEnvironment)
            else self._env.episode(task)
        )
        if not isinstance(episode, Episode):
            raise BrokenContractError(
                f"episode() returned a {type(episode).__name__}; it must return an Episode"
            )
        self._episodes[name] = episode
        return check_opening(await awaited(episode.open(), "the episode's open"))

    async def _close(self, name: str) -> None:
        """Close an episode, unless that was done or it was never made."""
        episode = self._episodes.pop(name, None)
        if episode is not None:
            await awaited(episode.close(), "the episode's close")
