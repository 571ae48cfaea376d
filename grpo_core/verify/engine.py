"""Call an environment with concurrency, timeouts and retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Self, TypeVar

from grpo_core.calls.deadline import within
from grpo_core.calls.namespace import why_no_namespace
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.agent import AgentEnvironment
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, GrpoError, did_you_mean
from grpo_core.protocol.executor import Op
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Group, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.verify.agents.agents import AgentConversation
from grpo_core.verify.episodes.conversation import (
    Conversation,
    EpisodeConversation,
    LiveEpisode,
    Losses,
    PlainConversation,
    replayed,
)
from grpo_core.verify.judge.blame import AnswerBlame, check_declaration
from grpo_core.verify.judge.cache import VerdictCache
from grpo_core.verify.judge.checks import (
    check_audit,
    check_cheats,
    check_reference,
    check_reply,
    reweigh,
)
from grpo_core.verify.judge.judging import (
    Ask,
    GroupJudging,
    RolloutJudging,
    VerifyStats,
    describe_failure,
)
from grpo_core.verify.workers.hosts import (
    Host,
    PlaceHost,
    Placement,
    boot_message,
    create_agent_host,
    create_host,
)
from grpo_core.verify.workers.inline import InlineHost
from grpo_core.verify.workers.main_module import settings_for

T = TypeVar("T")
_CLOSE_SECONDS = 10.0
"""Timeout for closing an environment."""


class Verifier:
    """Get tasks and verdicts from one environment.

    Use it as `async with Verifier(env) as verifier`.

    Attributes:
        env: the environment.
        settings: workers, timeouts and retries.
        weights: the run's own weights of reward parts, by name.
        stats: counts of all verdicts so far, or since the owner reset them.
    """

    def __init__(
        self,
        env: Environment[Any],
        *,
        spec: Spec | None = None,
        overrides: Mapping[str, Any] | None = None,
        settings: VerifyConfig | None = None,
        weights: Mapping[str, float] | None = None,
        closes_env: bool = True,
        cache: VerdictCache | None = None,
        placement: Placement | None = None,
        blames_answers: bool = True,
    ) -> None:
        """Prepare the verifier; no worker is started yet.

        Args:
            env: the environment.
            spec: Spec by which a worker builds its own copy of `env`; None: derived from the class
                of `env`.
            overrides: settings of that copy; None: those of `env`.
            settings: workers, timeouts and retries; None: the defaults.
            weights: the run's own weights of reward parts, by name.
            closes_env: whether `close` also closes `env`; false if its owner continues to use it.
            cache: the verdict cache. It is not used for environments whose verdicts depend on more
                than the rollout.
            placement: where the environment verifies; None: on this machine.
            blames_answers: whether an answer may get the floor because the verifier raises at it,
                where the environment declares `raises_at_answers`.

        Raises:
            ConfigError: the settings do not fit the environment.
        """
        check_declaration(env)
        self.env = env
        self._closes_env = closes_env
        self.settings = settings_for(env, spec, settings)
        self.weights = weights or {}
        self.stats = VerifyStats()
        self._timeout_seconds = self.settings.timeout_seconds or env.timeout_seconds
        self._placement = placement or Placement()
        self._host = create_host(env, spec, overrides, self.settings, self._placement)
        self._agents: Host | None = None
        """Runs the agents of an environment that has them."""
        if isinstance(env, AgentEnvironment):
            env.has_command()  # which checks that there is an agent
            self._agents = create_agent_host(env, spec, overrides, self.settings)
        self._blame = self._answer_blame(spec, overrides) if blames_answers else None
        ask = partial(self._host.call, "verify", seconds=self._timeout_seconds)
        self._rollouts = RolloutJudging(
            env,
            self._replayed if self.has_episodes else ask,
            settings=self.settings,
            cache=cache,
            stats=self.stats,
            blame=None if self._blame is None else self._blame.verdict,
        )
        self._groups: GroupJudging | None = None
        """Judges whole groups, where the environment does."""
        if env.rung() == "verify_batch":
            self._groups = GroupJudging(env, settings=self.settings, stats=self.stats)
        for name in self.weights:
            if name not in env.parts:
                raise ConfigError(
                    f"weights.{name} does not name a reward part{did_you_mean(name, env.parts)} "
                    f"The environment has {', '.join(env.parts)}"
                )

    async def __aenter__(self) -> Self:
        try:
            await self._host.open()
            if self._agents is not None:
                await self._agents.open()
                for endpoint in self.env.services.endpoints.values():
                    await endpoint.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all workers, wait until they have ended, and close the environment."""
        if self._agents is not None:
            await self._agents.close()
        if self._blame is not None:
            await self._blame.close()
        await self._host.close()
        if not self._closes_env:
            return
        try:
            await within(self.env.close(), _CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the results matter more than a clean shutdown
            logging.getLogger(__name__).warning(
                "the environment could not be closed: %s",
                describe_failure(error, "close", _CLOSE_SECONDS),
            )

    @property
    def one_by_one(self) -> bool:
        """Return whether the verdict of a rollout depends on no other rollout.

        Others are those of its group and those judged earlier.
        """
        return self._groups is None and not self.env.stateful

    @property
    def is_in_this_process(self) -> bool:
        """Return whether the environment runs in this process. A call that hangs there goes on."""
        return isinstance(self._host, InlineHost)

    @property
    def exposure(self) -> str:
        """Return what worker processes can read of this one, as a sentence; "" if nothing."""
        hosts = [self._host] if self._placement.executor.in_process else []
        hosts += [self._agents] if self._agents is not None else []
        if not any(isinstance(host, PlaceHost) for host in hosts):
            return ""
        return why_no_namespace(self.settings.namespace)

    @property
    def has_agents(self) -> bool:
        """Return whether an agent makes the attempts."""
        return self._agents is not None

    @property
    def has_episodes(self) -> bool:
        """Return whether an attempt has state, by which it is judged while that exists."""
        return self.env.rung() == "episode"

    async def tasks(
        self, keys: Sequence[TaskKey], draws: Sequence[int] | int = 0
    ) -> list[Task[Any]]:
        """Return the tasks of `keys`.

        Args:
            keys: (P,) the task keys.
            draws: (P,) the draw of each task, or one draw for all of them.

        Raises:
            GrpoError: a task cannot be created.
        """
        draws_P = [draws] * len(keys) if isinstance(draws, int) else draws
        return list(
            await asyncio.gather(
                *(self.task(key, draw) for key, draw in zip(keys, draws_P, strict=True))
            )
        )

    async def task(self, key: TaskKey, draw: int = 0) -> Task[Any]:
        """Return the task of a key.

        Raises:
            GrpoError: it cannot be created.
        """
        task = await self._call_with_retries("task", key, partial(self._host.task, key))
        return replace(task, draw=draw)

    async def judge(self, task: Task[Any], rollout: Rollout, ways: Sequence[Ask] = ()) -> Verdict:
        """Judge one rollout.

        No exception of the environment passes through: if its verifier fails, the verdict is an
        error.

        Args:
            task: its task.
            rollout: the rollout.
            ways: how the verifier is asked; empty: in the usual way.

        Returns:
            The verdict, with the run's weights.
        """
        if self._groups is None:
            verdict = await self._rollouts.judge(task, rollout, ways)
        else:
            ((verdict,),) = await self._groups.judge([Group(task, (rollout,))])
        self.stats.count(verdict)
        return reweigh(verdict, self.weights) if self.weights else verdict

    async def verify(
        self, tasks_P: Sequence[Task[Any]], rollouts_PG: Sequence[Sequence[Rollout]]
    ) -> list[list[Verdict]]:
        """Judge all rollouts, as `judge` does; where the environment judges groups, together.

        Args:
            tasks_P: the tasks.
            rollouts_PG: the rollouts of each task.

        Returns:
            One verdict per rollout, in the same order.
        """
        groups = zip(tasks_P, rollouts_PG, strict=True)
        if self._groups is not None:
            verdicts_PG = await self._groups.judge([Group(*group) for group in groups])
            for verdict in chain.from_iterable(verdicts_PG):
                self.stats.count(verdict)
            if not self.weights:
                return verdicts_PG
            return [[reweigh(verdict, self.weights) for verdict in row] for row in verdicts_PG]
        places = [(task, rollout) for task, rollouts in groups for rollout in rollouts]
        verdicts = iter(await asyncio.gather(*(self.judge(*place) for place in places)))
        return [[next(verdicts) for _ in rollouts] for rollouts in rollouts_PG]

    def conversation(self, task: Task[Any]) -> Conversation:
        """Return a conversation about a task, which is one attempt at it.

        Its owner opens it before the policy's first turn, and closes it.
        """
        if self._agents is not None:
            return AgentConversation(
                self.env,
                task,
                self._agents,
                endpoint=self.env.services.endpoint(),
                retries=self.settings.retries,
                start_seconds=self.settings.worker_start_seconds,
                judge=self.judge,
            )
        if not self.has_episodes:
            return PlainConversation(self, task, self.judge)
        return EpisodeConversation(
            self.env,
            task,
            self._episode,
            retries=self.settings.retries,
            seconds=self._timeout_seconds,
            judge=self.judge,
        )

    async def reference(self, task: Task[Any]) -> str | tuple[str, ...] | None:
        """Return the environment's reference answer to a task; None if it has none.

        It is the text of one turn, or the texts of several.

        Raises:
            GrpoError: the environment fails to give it.
        """
        return await self._call("reference", task, check=check_reference)

    async def cheats(self, task: Task[Any]) -> list[str | tuple[str, ...]]:
        """Return the answers that must get the floor, each as `reference` gives them.

        Raises:
            GrpoError: the environment fails to give them.
        """
        return await self._call("cheats", task, check=check_cheats)

    async def audit(self, task: Task[Any], rollout: Rollout) -> float | None:
        """Return the score of a rollout by the stricter check that training never sees.

        Raises:
            GrpoError: the check fails.
        """
        return await self._call("audit", task, rollout, check=check_audit)

    async def audited(self, group: Group[Any]) -> Group[Any]:
        """Return the group with the audit of each scored rollout.

        The audit becomes the metric `audit` of the verdict. A failed audit says nothing about the
        rollout: the metric is then left out, `audit/failed` is 1 instead of 0, and the verdict's
        detail holds the reason.
        """
        if type(self.env).audit is Environment.audit:
            return group

        async def with_audit(rollout: Rollout, verdict: Verdict) -> Verdict:
            if not verdict.scored:
                return verdict
            try:
                value = await self.audit(group.task, rollout)
            except GrpoError as error:
                return replace(
                    verdict,
                    metrics={**verdict.metrics, "audit/failed": 1.0},
                    detail={**verdict.detail, "audit": str(error)},
                )
            audits = {} if value is None else {"audit": value}
            return replace(verdict, metrics={**verdict.metrics, "audit/failed": 0.0, **audits})

        pairs = zip(group.rollouts, group.verdicts, strict=True)
        return replace(
            group,
            verdicts=await asyncio.gather(
                *(with_audit(rollout, verdict) for rollout, verdict in pairs)
            ),
        )

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's next turn after `messages`; None if it ends the dialogue.

        An environment with episodes has to be replayable: the turns are played to a fresh one.

        Raises:
            GrpoError: the environment fails; the rollout then ends with finish="error".
        """
        if not self.has_episodes:
            return await self._call("reply", task, messages, check=check_reply)
        conversation = self.conversation(task)
        try:
            return await conversation.reply(messages)
        finally:
            await conversation.close()

    def _episode(self, task: Task[Any], *, alone: bool) -> LiveEpisode:
        return LiveEpisode(self._host, task, seconds=self._timeout_seconds, alone=alone)

    async def _replayed(self, task: Task[Any], rollout: Rollout) -> Any:
        """Return the verdict, unchecked, of a fresh episode that hears a recorded attempt."""
        return await replayed(self.env, task, self._episode, rollout, Losses())

    def _answer_blame(
        self, spec: Spec | None, overrides: Mapping[str, Any] | None
    ) -> AnswerBlame | None:
        """Return what decides whether an answer is to blame for an exception; None if none ever is.

        It needs fresh workers on this machine.
        """
        in_workers = isinstance(self._host, PlaceHost) and self._placement.executor.in_process
        if not self.env.raises_at_answers or not in_workers:
            return None
        boot = boot_message(self.env, spec, overrides)
        return AnswerBlame(self.env, boot, self.settings, seconds=self._timeout_seconds)

    async def _call(self, op: Op, task: Task[Any], *arguments: Any, check: Callable[[Any], T]) -> T:
        """Return the checked result of the environment's method `op`.

        Raises:
            GrpoError: every call failed.
        """

        async def call(*, seconds: float) -> T:
            return check(await self._host.call(op, task, *arguments, seconds=seconds))

        return await self._call_with_retries(op, task.key, call)

    async def _call_with_retries(
        self, op: str, key: TaskKey, call: Callable[..., Coroutine[Any, Any, T]]
    ) -> T:
        """Return the result of `call`, which is repeated after a failure.

        Args:
            op: name of the called method, for the error message.
            key: key of its task, for the error message.
            call: makes the call, with the timeout as its argument `seconds`.

        Raises:
            GrpoError: every call failed.
        """
        seconds = (
            self.settings.task_timeout_seconds
            if op in ("task", "reference", "cheats")
            else self._timeout_seconds
        )
        failure = ""
        for _ in range(1 + self.settings.retries):
            try:
                return await call(seconds=seconds)
            except Exception as error:  # noqa: BLE001 - environments raise what they like
                failure = describe_failure(error, op, seconds)
        raise GrpoError(f"environment {key.env!r} failed in {op}() for {key}: {failure}")
