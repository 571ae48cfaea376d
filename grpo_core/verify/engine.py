"""Run verifiers with concurrency, timeouts and retries.

This is the only place that turns a failure into `Verdict.error`. A failure never becomes a reward
of 0.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from grpo_core.calls.deadline import DeadlineError, Slots, describe, within
from grpo_core.calls.isolation import clip
from grpo_core.plugins.services import fingerprint
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, GrpoError, did_you_mean
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Group, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.verify.cache import VerdictCache, verdict_key
from grpo_core.verify.checks import (
    BrokenContractError,
    check_audit,
    check_reply,
    check_verdict,
    reweigh,
)
from grpo_core.verify.error_rate import ErrorRate
from grpo_core.verify.hosts import Host, InlineHost, ProcessHost, boot_message
from grpo_core.verify.pool import WorkerLostError, WorkerPool

__all__ = ["ErrorRate", "Verifier", "VerifySettings", "VerifyStats"]

Isolation = Literal["auto", "process", "inline"]
T = TypeVar("T")
_CLOSE_SECONDS = 10.0
"""Timeout for closing an environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """Set the workers, timeouts and retries of a Verifier."""

    workers: int | None = None
    """Worker processes for synchronous verifiers; None: one per core, at most 4."""
    timeout_seconds: float | None = None
    """Timeout of one verdict (for `verify_batch`: of each group in the call); None: the
    environment's timeout."""
    retries: int = 1
    """How many times a failed call is repeated."""
    isolation: Isolation = "auto"
    """process: in a worker that is killed at the timeout; inline: in this process; auto: inline
    only for trusted environments (and for asynchronous verifiers, which run untrusted work in
    services)."""
    max_concurrency: int = 32
    """Maximum number of asynchronous verdicts in progress at the same time."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The run's own weights of reward parts, by name."""
    task_timeout_seconds: float = 30.0
    """Timeout of task() and reference()."""
    worker_start_seconds: float = 60.0
    """Timeout of a worker's start, including imports."""
    worker_memory_mb: float = 2048.0
    """A worker that uses more memory than this after a verdict is replaced."""
    worker_environment: tuple[str, ...] = ()
    """Names of environment variables that workers inherit in addition to those that
    `grpo_core.calls.worker_environment` lists."""


@dataclass(slots=True)
class VerifyStats:
    """Count what `Verifier.verify` did."""

    verdicts: int = 0
    """Verdicts, including errors."""
    errors: int = 0
    """Verdicts that are errors."""
    retried: int = 0
    """Calls for a rollout (or a group) beyond the first."""
    cache_lookups: int = 0
    """Verdicts that were looked up in the cache."""
    cache_hits: int = 0
    """Verdicts that the cache held."""

    @property
    def error_rate(self) -> float:
        """Return the share of verdicts that are errors; 0 if there are no verdicts."""
        return self.errors / self.verdicts if self.verdicts else 0.0


class Verifier:
    """Get tasks and verdicts from one environment.

    Use it as `async with Verifier(env) as verifier`.

    Attributes:
        env: the environment.
        settings: workers, timeouts and retries.
        stats: counts of all verdicts so far, or since the owner replaced this object.
    """

    def __init__(
        self,
        env: Environment[Any],
        *,
        spec: Spec | None = None,
        overrides: Mapping[str, Any] | None = None,
        settings: VerifySettings | None = None,
        closes_env: bool = True,
        cache: VerdictCache | None = None,
    ) -> None:
        """Prepare the verifier; no worker is started yet.

        Args:
            env: the environment.
            spec: Spec by which a worker builds its own copy of `env`; None: derived from the class
                of `env`.
            overrides: settings of that copy; None: those of `env`.
            settings: workers, timeouts and retries; None: the defaults.
            closes_env: whether `close` also closes `env`; false if its owner continues to use it.
            cache: the verdict cache. It is not used for environments whose verdicts depend on more
                than the rollout.

        Raises:
            ConfigError: the settings do not fit the environment.
        """
        self.env = env
        self._closes_env = closes_env
        self.settings = settings or VerifySettings()
        self.stats = VerifyStats()
        self._verify_method = env.rung()
        self._timeout_seconds = self.settings.timeout_seconds or env.timeout_seconds
        self._group_slots = Slots(1 if env.stateful else self.settings.max_concurrency)
        self._cache = (
            cache
            if env.deterministic and not env.stateful and self._verify_method != "verify_batch"
            else None
        )
        self._fingerprint = fingerprint(env) if self._cache else ""
        self._host: Host = _create_host(env, spec, overrides, self.settings)
        for name in self.settings.weights:
            if name not in env.parts:
                hint = did_you_mean(name, env.parts)
                raise ConfigError(
                    f"weights.{name} does not name a reward part{hint} "
                    f"The environment has {', '.join(env.parts)}"
                )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all workers, wait until they have ended, and close the environment."""
        await self._host.close()
        if not self._closes_env:
            return
        try:
            await within(self.env.close(), _CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the results matter more than a clean shutdown
            logging.getLogger(__name__).warning(
                "the environment could not be closed: %s",
                _describe_failure(error, "close", _CLOSE_SECONDS),
            )

    @property
    def one_by_one(self) -> bool:
        """Return whether the verdict of a rollout depends on no other rollout.

        Others are those of its group and those judged earlier.
        """
        return self._verify_method != "verify_batch" and not self.env.stateful

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
        tasks = await asyncio.gather(*(self._task(key) for key in keys))
        return [replace(task, draw=draw) for task, draw in zip(tasks, draws_P, strict=True)]

    async def verify(
        self, tasks_P: Sequence[Task[Any]], rollouts_PG: Sequence[Sequence[Rollout]]
    ) -> list[list[Verdict]]:
        """Judge all rollouts.

        No exception of the environment passes through: a rollout whose verifier failed gets a
        verdict with an error.

        Args:
            tasks_P: the tasks.
            rollouts_PG: the rollouts of each task.

        Returns:
            One verdict per rollout, in the same order, with the run's weights.
        """
        groups = [
            Group(task, rollouts) for task, rollouts in zip(tasks_P, rollouts_PG, strict=True)
        ]
        verdicts_PG = await (
            self._judge_groups(groups)
            if self._verify_method == "verify_batch"
            else self._judge_rollouts(groups)
        )
        verdicts = [verdict for group in verdicts_PG for verdict in group]
        self.stats.verdicts += len(verdicts)
        self.stats.errors += sum(not verdict.scored for verdict in verdicts)
        weights = self.settings.weights
        return [[reweigh(verdict, weights) for verdict in group] for group in verdicts_PG]

    async def reference(self, task: Task[Any]) -> str | None:
        """Return the environment's reference answer to a task; None if it has none.

        Raises:
            GrpoError: the environment fails to give it.
        """
        seconds = self.settings.task_timeout_seconds
        return await self._call_with_retries(
            "reference",
            task.key,
            lambda: self._host.call("reference", task, seconds=seconds),
            seconds,
        )

    async def audit(self, task: Task[Any], rollout: Rollout) -> float | None:
        """Return the score of a rollout by the stricter check that training never sees.

        Raises:
            GrpoError: the check fails.
        """

        async def call_audit() -> float | None:
            return check_audit(
                await self._host.call("audit", task, rollout, seconds=self._timeout_seconds)
            )

        return await self._call_with_retries("audit", task.key, call_audit, self._timeout_seconds)

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
                metrics, detail = (
                    {**verdict.metrics, "audit/failed": 1.0},
                    {**verdict.detail, "audit": str(error)},
                )
                return replace(verdict, metrics=metrics, detail=detail)
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

        Raises:
            GrpoError: the environment fails; the rollout then ends with finish="error".
        """

        async def call_reply() -> Sequence[Message] | None:
            return check_reply(
                await self._host.call("reply", task, messages, seconds=self._timeout_seconds)
            )

        return await self._call_with_retries("reply", task.key, call_reply, self._timeout_seconds)

    async def _task(self, key: TaskKey) -> Task[Any]:
        seconds = self.settings.task_timeout_seconds
        return await self._call_with_retries(
            "task", key, lambda: self._host.task(key, seconds=seconds), seconds
        )

    async def _call_with_retries(
        self, op: str, key: TaskKey, call: Callable[[], Coroutine[Any, Any, T]], seconds: float
    ) -> T:
        """Return the result of `call`, which is repeated after a failure.

        Args:
            op: name of the called method, for the error message.
            key: key of its task, for the error message.
            call: makes the call.
            seconds: timeout of the call, for the error message.

        Raises:
            GrpoError: every call failed.
        """
        failure = ""
        for _ in range(1 + self.settings.retries):
            try:
                return await call()
            except Exception as error:  # noqa: BLE001 - environments raise what they like
                failure = _describe_failure(error, op, seconds)
        raise GrpoError(f"environment {key.env!r} failed in {op}() for {key}: {failure}")

    async def _judge_rollouts(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        """Return the verdicts of each group, by one call for each rollout."""
        flat_verdicts = await asyncio.gather(
            *(
                self._judge_rollout(group.task, rollout)
                for group in groups
                for rollout in group.rollouts
            )
        )
        verdicts = iter(flat_verdicts)
        return [[next(verdicts) for _ in group.rollouts] for group in groups]

    async def _judge_rollout(self, task: Task[Any], rollout: Rollout) -> Verdict:
        """Return the verdict of a rollout, from the cache if possible."""
        if rollout.finish == "error":
            return _failed_dialogue_verdict(rollout)
        if self._cache is None:
            return await self._judge_with_retries(task, rollout)
        key = verdict_key(self._fingerprint, task, rollout)
        verdict, was_cached = await self._cache.verdict(
            key,
            lambda: self._judge_with_retries(task, rollout),
            check=lambda cached_verdict: check_verdict(cached_verdict, self.env),
        )
        self.stats.cache_lookups += 1
        self.stats.cache_hits += was_cached
        return verdict

    async def _judge_with_retries(self, task: Task[Any], rollout: Rollout) -> Verdict:
        """Return the first scored verdict of a rollout, or the error of the last call."""
        verdict = await self._judge_once(task, rollout)
        for _ in range(self.settings.retries):
            if verdict.scored:
                break
            self.stats.retried += 1
            verdict = await self._judge_once(task, rollout)
        return verdict

    async def _judge_once(self, task: Task[Any], rollout: Rollout) -> Verdict:
        """Return the verdict of one call of the verifier; an exception becomes an error."""
        try:
            return check_verdict(
                await self._host.call("verify", task, rollout, seconds=self._timeout_seconds),
                self.env,
            )
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            return Verdict.failed(_describe_failure(error, "verify", self._timeout_seconds))

    async def _judge_groups(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        """Return the verdicts of each group, by one call of verify_batch for all groups.

        A group with an error is then judged again by itself: at most `retries` times, but at least
        once if it shared its first call with other groups.
        """
        complete_groups = [
            Group(group.task, [rollout for rollout in group.rollouts if rollout.finish != "error"])
            for group in groups
        ]
        judged_groups = [group for group in complete_groups if group.rollouts]
        first_verdicts = await self._call_verify_batch(judged_groups) if judged_groups else []
        retries = self.settings.retries or int(len(judged_groups) > 1)
        final_verdicts = iter(
            await asyncio.gather(
                *(
                    self._retry_group(group, verdicts, retries)
                    for group, verdicts in zip(judged_groups, first_verdicts, strict=True)
                )
            )
        )
        verdicts_by_group = [
            iter(next(final_verdicts) if group.rollouts else []) for group in complete_groups
        ]
        return [
            [
                _failed_dialogue_verdict(rollout) if rollout.finish == "error" else next(verdicts)
                for rollout in group.rollouts
            ]
            for group, verdicts in zip(groups, verdicts_by_group, strict=True)
        ]

    async def _retry_group(
        self, group: Group[Any], verdicts: list[Verdict], retries: int
    ) -> list[Verdict]:
        """Judge a group again while it has errors; return the verdicts with the fewest errors.

        Args:
            group: the group.
            verdicts: its verdicts so far.
            retries: maximum number of calls.
        """
        for _ in range(retries):
            if all(verdict.scored for verdict in verdicts):
                break
            self.stats.retried += 1
            async with self._group_slots.here():
                new_verdicts = (await self._call_verify_batch([group]))[0]
            verdicts = min(new_verdicts, verdicts, key=_count_errors)
        return verdicts

    async def _call_verify_batch(self, groups: list[Group[Any]]) -> list[list[Verdict]]:
        """Return the checked verdicts of one call of verify_batch; failures become errors.

        There is always one verdict for each rollout of each group.
        """
        seconds = self._timeout_seconds * len(groups)
        try:
            results: Any = await within(self.env.verify_batch(groups), seconds)
            if not isinstance(results, (list, tuple)) or len(results) != len(groups):
                raise BrokenContractError(
                    f"verify_batch returned {_describe_length(results)} for {len(groups)} groups; "
                    "return one list for each"
                )
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            return [
                _all_failed(group, _describe_failure(error, "verify_batch", seconds))
                for group in groups
            ]
        return [
            self._check_group(group, verdicts)
            for group, verdicts in zip(groups, results, strict=True)
        ]

    def _check_group(self, group: Group[Any], verdicts: Any) -> list[Verdict]:
        """Return the checked verdicts of one group; those that break the protocol become errors."""
        if not isinstance(verdicts, (list, tuple)) or len(verdicts) != len(group.rollouts):
            error = (
                f"verify_batch returned {_describe_length(verdicts)} for {len(group.rollouts)} "
                "rollouts; return one verdict for each"
            )
            return _all_failed(group, error)
        return [self._check_or_fail(verdict) for verdict in verdicts]

    def _check_or_fail(self, verdict: object) -> Verdict:
        """Return the checked verdict, or an error if it breaks the protocol."""
        try:
            return check_verdict(verdict, self.env)
        except BrokenContractError as error:
            return Verdict.failed(clip(str(error)))


def _create_host(
    env: Environment[Any],
    spec: Spec | None,
    overrides: Mapping[str, Any] | None,
    settings: VerifySettings,
) -> Host:
    """Return what runs the environment's code: this process or a pool of workers.

    Args:
        env: the environment.
        spec: Spec by which a worker builds its own copy; None: derived from the class of `env`.
        overrides: settings of that copy; None: those of `env`.
        settings: isolation and workers.

    Raises:
        ConfigError: the isolation does not fit the environment.
    """
    synchronous = env.rung() == "verify"
    if settings.isolation == "process" and not synchronous:
        raise ConfigError(
            "verify.isolation=process is for a synchronous verify(); "
            f"{type(env).__qualname__} has {env.rung()}(): use verify.isolation=auto"
        )
    if settings.isolation == "inline" or (
        settings.isolation == "auto" and (env.trusted or not synchronous)
    ):
        return InlineHost(env, max_concurrency=settings.max_concurrency)
    if env.needs:
        raise ConfigError(
            f"{type(env).__qualname__} needs {', '.join(sorted(env.needs))}, "
            "which a worker process cannot reach; "
            "write averify() instead of verify(), or set verify.isolation=inline"
        )
    boot = boot_message(env, spec, overrides)
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    size = 1 if env.stateful else settings.workers or min(4, cores)
    pool = WorkerPool(
        boot,
        size=size,
        start_seconds=settings.worker_start_seconds,
        memory_mb=settings.worker_memory_mb,
        further_variables=settings.worker_environment,
    )
    return ProcessHost(pool)


def _describe_failure(error: Exception, op: str, seconds: float) -> str:
    """Return the message for an exception of the environment's method `op`.

    Args:
        error: the exception.
        op: name of the method.
        seconds: its timeout.
    """
    if isinstance(error, DeadlineError):
        return f"{op}() exceeded its deadline of {seconds:g} s{error}"
    if isinstance(error, WorkerLostError):
        # Not clipped: it ends with the worker's last output, whose length is limited as well.
        return str(error)
    return clip(str(error)) if isinstance(error, BrokenContractError) else describe(error)


def _failed_dialogue_verdict(rollout: Rollout) -> Verdict:
    """Return the verdict of a rollout whose dialogue failed."""
    reason = f": {rollout.error}" if rollout.error else ""
    return Verdict.failed(
        clip(f"the dialogue failed before its end, so the rollout was not judged{reason}")
    )


def _all_failed(group: Group[Any], error: str) -> list[Verdict]:
    """Return a verdict with this error for each rollout of a group."""
    return [Verdict.failed(error) for _ in group.rollouts]


def _count_errors(verdicts: Sequence[Verdict]) -> int:
    return sum(not verdict.scored for verdict in verdicts)


def _describe_length(value: object) -> str:
    return (
        f"{len(value)} items" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
    )
