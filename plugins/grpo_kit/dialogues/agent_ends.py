"""Run agents in the second process, and see what they execute and what is left of them.

The scripts that answer their requests stay in the kit's own process, as a policy does: each run has
an address and a key from there (`grpo_kit.dialogues.agent_accesses`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core import AgentEnvironment, Message, Rollout, Task
from grpo_core.api.calls import DeadlineError, describe, inherited_variables, within
from grpo_core.api.verify import CUT_OFF, RETURNED, AgentRun
from grpo_kit.dialogues.endings import leftovers
from grpo_kit.process.watch import FileWatch, open_resources

ENDS: Mapping[str, str] = {
    "ended": "came to their own end",
    "cut_off": "were refused a request",
    "cancelled": "were cancelled while they waited for the policy",
}
"""How runs end, as the end of a sentence about agents."""
_SECONDS = 10.0
"""The most seconds for one run."""
_SETTLED = 2.0
"""A run has come to its last request after so many times the time of a whole run."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of an agent that is to be made."""

    task: Task[Any]
    text: str
    """What the policy says, its turns joined by `join_turns`."""
    access: Mapping[str, Any]
    """How the agent reaches the policy."""


@dataclass(slots=True)
class AgentRuns:
    """Makes runs of an agent in this process."""

    env: AgentEnvironment[Any]
    failures: list[str] = field(default_factory=list)
    """Why runs failed that were to come to their own end."""
    _usual_seconds: float = 1.0
    """The time of a whole run."""
    _hangs: bool = False
    """Whether a run did not end in time, so that no further one is made to its end."""

    async def rollout(self, run: PlannedRun) -> Rollout:
        """Return what comes of a run, as far as it is known here.

        Raises:
            Exception: whatever the agent raises.
        """
        agent = AgentRun(self.env, run.task, inherited_variables())
        await agent.open()
        seconds = min(_SECONDS, self.env.agent_seconds)
        result = await within(agent.agent(run.access), seconds)
        return Rollout(
            (Message.turn(run.text),),
            "length" if CUT_OFF in result else "stop",
            returned=result.get(RETURNED),
        )

    async def leftovers_by_end(
        self, runs: Mapping[str, Sequence[PlannedRun]], files: FileWatch
    ) -> dict[str, Any] | None:
        """Return what runs leave behind that end in each way; None where nothing tells it.

        Args:
            runs: The runs that end in each way, one more than `endings.ATTEMPTS`.
            files: Watches files; what it has seen so far is forgotten.
        """
        if open_resources() is None:
            return None
        return {how: await leftovers(self._ends(how, runs[how]), files) for how in ENDS}

    def _ends(self, how: str, runs: Sequence[PlannedRun]) -> Callable[[int], Awaitable[None]]:
        end = self._cancel if how == "cancelled" else self._finish
        return lambda number: end(runs[number], how)

    async def _finish(self, run: PlannedRun, how: str) -> None:
        if self._hangs:
            return
        started = time.monotonic()
        try:
            await self.rollout(run)
        except Exception as error:  # noqa: BLE001 - agents raise what they like
            self._hangs = isinstance(error, DeadlineError)
            if how == "ended":
                self.failures.append(describe(error))
        self._usual_seconds = time.monotonic() - started

    async def _cancel(self, run: PlannedRun, how: str) -> None:
        """Cancel a run that waits for an answer that never comes."""
        task = asyncio.ensure_future(self.rollout(run))
        await asyncio.wait([task], timeout=_SETTLED * self._usual_seconds)
        task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await task
