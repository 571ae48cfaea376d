"""Run an attempt by an agent: start it where the environment's code runs, and await its end."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any

from grpo_core.calls.call import Call, SharedCall, current_call
from grpo_core.protocol.agent import AgentEnvironment
from grpo_core.protocol.endpoint import (
    Access,
    CompletionRequest,
    Endpoint,
    RefusedRequestError,
)
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.sampler import SamplingParams
from grpo_core.protocol.types import Message, Rollout, Task, Verdict
from grpo_core.verify.agents.agent_run import CUT_OFF, RETURNED
from grpo_core.verify.episodes.conversation import Losses
from grpo_core.verify.episodes.printed import Printed
from grpo_core.verify.judge.judging import describe_failure
from grpo_core.verify.workers.hosts import Host
from grpo_core.verify.workers.pool import WorkerLostError

_CLOSE_SECONDS = 10.0
"""How long the end of a run may take."""


@dataclass(frozen=True, slots=True)
class AgentResult:
    """Describe how the run of an agent ended."""

    returned: Any = None
    """What the agent returned."""
    cut_off: str = ""
    """The refusal of a request that ended it; "" if it ended by itself."""


Admit = Callable[[Call], AbstractAsyncContextManager[Access]]
"""Begins an attempt anew and returns its access, which is valid in the block. It gets the clock of
the agent, to be stopped while the agent waits for the policy."""


class AgentConversation:
    """Run and judge one attempt by an agent (a `Conversation` without replies)."""

    def __init__(
        self,
        env: Environment[Any],
        task: Task[Any],
        host: Host,
        *,
        endpoint: Endpoint,
        retries: int,
        start_seconds: float,
        judge: Callable[[Task[Any], Rollout], Awaitable[Verdict]],
    ) -> None:
        """Prepare the attempt; nothing is started yet.

        Args:
            env: the environment, an AgentEnvironment.
            task: the task.
            host: runs the agent.
            endpoint: where the agent reaches the policy.
            retries: how often an agent that failed is started again; one that was lost with its
                worker is started again as `Losses` says.
            start_seconds: how long it may take to load what the agent needs.
            judge: judges the attempt.
        """
        assert isinstance(env, AgentEnvironment)
        self._env, self._task, self._host = env, task, host
        self.endpoint = endpoint
        self._retries, self._start_seconds, self._judge = retries, start_seconds, judge
        self._printed = Printed()

    def without_retries(self) -> AgentConversation:
        """Return the same with an agent that is not started again where it fails."""
        return AgentConversation(
            self._env,
            self._task,
            self._host,
            endpoint=self.endpoint,
            retries=0,
            start_seconds=self._start_seconds,
            judge=self._judge,
        )

    async def open(self) -> Sequence[Message]:
        """Return nothing: the agent speaks first."""
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return None: the agent asks the policy, and nobody asks the agent."""
        return None

    async def verdict(self, rollout: Rollout) -> Verdict:
        """Judge the attempt."""
        return self._printed.before(await self._judge(self._task, rollout))

    async def close(self) -> None:
        """Do nothing: `run` leaves nothing open."""

    async def run(self, admit: Admit) -> AgentResult:
        """Run the agent to its end.

        One that fails is started again, with a new access, and what it had the policy do before is
        forgotten. The policy's draws depend on the attempt alone, so it hears the same again.

        Raises:
            GrpoError: it failed every time.
        """
        failures, losses, failure = 0, Losses(), ""
        while failures <= self._retries:
            try:
                with self._printed.kept():
                    return await self._run_once(admit, alone=losses.alone)
            except WorkerLostError as error:
                failure = self._described(error)
                if not losses.allow_another():
                    break
            except Exception as error:  # noqa: BLE001 - agents raise what they like
                failure = self._described(error)
                failures += 1
        key = self._task.key
        raise GrpoError(f"the agent of environment {key.env!r} failed for {key}: {failure}")

    async def _run_once(self, admit: Admit, *, alone: bool) -> AgentResult:
        name, clock, seconds = secrets.token_hex(16), SharedCall(), self._env.agent_seconds
        host, task = self._host, self._task
        clock.output = current_call().output
        try:
            await host.call("open", task, seconds=self._start_seconds, episode=name, alone=alone)
            async with admit(clock) as access:
                with clock.current():
                    result = await host.call(
                        "agent", task, asdict(access), seconds=seconds, episode=name
                    )
        finally:
            await self._end(name)
        return AgentResult(result.get(RETURNED), result.get(CUT_OFF, ""))

    async def _end(self, name: str) -> None:
        """End a run; a failure is logged, since the results matter more."""
        try:
            await self._host.call("close", self._task, seconds=_CLOSE_SECONDS, episode=name)
        except Exception as error:  # noqa: BLE001 - agents raise what they like
            logging.getLogger(__name__).warning(
                "an agent could not be ended: %s", describe_failure(error, "close", _CLOSE_SECONDS)
            )

    def _described(self, error: Exception) -> str:
        return describe_failure(error, "agent", self._env.agent_seconds)


def check_agent_request(
    request: CompletionRequest, params: SamplingParams, *, used: int, most: int
) -> None:
    """Raise RefusedRequestError if a request contradicts the run, or is one too many.

    Args:
        request: the request.
        params: how the run samples.
        used: the completions of the attempt so far.
        most: how many it may ask for.
    """
    for name, wanted, own in (
        ("temperature", request.temperature, params.temperature),
        ("top_p", request.top_p, params.top_p),
    ):
        if wanted is not None and wanted != own:
            raise RefusedRequestError(
                f"{name} is {wanted:g}, but this run samples with {name}={own:g}, on which "
                f"its training depends; leave {name} out, or set sampling.{name} of the run"
            )
    if request.seed is not None:
        raise RefusedRequestError(
            "seed cannot be chosen: with one seed all attempts at a task would be the same; "
            "leave it out, the run has a seed of its own"
        )
    if used + request.count > most:
        raise RefusedRequestError(
            f"this attempt may ask for {most} completions (max_turns), and this would be "
            f"number {used + request.count}",
            code="turns_exceeded",
        )
