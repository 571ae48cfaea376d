"""The engine: concurrency, deadlines, retries, and the only place that turns a failure into `Verdict.error` - never into a reward of 0."""

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
from grpo_core.verify.cache import VerdictCache, verdict_name
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """workers: processes for synchronous verifiers; None: one per core, at most 4. retries: of what could not be judged.
    timeout_seconds: deadline of one verdict (for `verify_batch`: of each group in the call); None: the environment's.
    isolation: "process" in a worker that is killed at the deadline; "inline" in this process; "auto" is inline only for trusted
    environments (and for asynchronous rungs, which hand untrusted work to services).
    max_concurrency: how many asynchronous verdicts are under way at once. weights: the run's own weights of reward parts, by name.
    task_timeout_seconds: deadline of task() and reference(). worker_start_seconds: of a worker's start, imports included.
    worker_memory_mb: a worker that holds more than this after a verdict is replaced.
    worker_environment: names of further environment variables that workers inherit, beyond those
    that `grpo_core.calls.worker_environment` lists.
    """

    workers: int | None = None
    timeout_seconds: float | None = None
    retries: int = 1
    isolation: Isolation = "auto"
    max_concurrency: int = 32
    weights: Mapping[str, float] = field(default_factory=dict)
    task_timeout_seconds: float = 30.0
    worker_start_seconds: float = 60.0
    worker_memory_mb: float = 2048.0
    worker_environment: tuple[str, ...] = ()


@dataclass(slots=True)
class VerifyStats:
    """What `verify` did. retried: calls beyond the first for an attempt (or a group). asked: of the cache; cached: found."""

    verdicts: int = 0
    errors: int = 0
    retried: int = 0
    asked: int = 0
    cached: int = 0

    @property
    def error_rate(self) -> float:
        return self.errors / self.verdicts if self.verdicts else 0.0


class Verifier:
    """Asks one environment for tasks and verdicts; use it as `async with Verifier(env) as verifier`.

    spec, overrides: how a worker builds its own copy of `env`; without them they are derived from the class and config of `env`.
    closes_env: `close` closes `env`, too; its owner may want to go on using it. cache: where verdicts are kept; it is not used for
    environments whose verdicts depend on more than the attempt. stats: of all verdicts so far, or since the owner put new ones there.
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
        self.env = env
        self._closes_env = closes_env
        self.settings = settings or VerifySettings()
        self.stats = VerifyStats()
        self._rung = env.rung()
        self._seconds = self.settings.timeout_seconds or env.timeout_seconds
        self._groups = Slots(1 if env.stateful else self.settings.max_concurrency)
        self._cache = (
            cache
            if env.deterministic and not env.stateful and self._rung != "verify_batch"
            else None
        )
        self._fingerprint = fingerprint(env) if self._cache else ""
        self._host: Host = _host(env, spec, overrides, self.settings)
        for name in self.settings.weights:
            if name not in env.parts:
                hint = did_you_mean(name, env.parts)
                raise ConfigError(
                    f"weights.{name} names no reward part{hint} The environment has {', '.join(env.parts)}"
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
        """End the workers (none is left when this returns) and close the environment."""
        await self._host.close()
        if not self._closes_env:
            return
        try:
            await within(self.env.close(), _CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - what was computed is worth more than a tidy end
            logging.getLogger(__name__).warning(
                "the environment could not be closed: %s", _failure(error, "close", _CLOSE_SECONDS)
            )

    @property
    def one_by_one(self) -> bool:
        """Whether the verdict of an attempt depends on no other: neither of its group, nor of those before."""
        return self._rung != "verify_batch" and not self.env.stateful

    async def tasks(
        self, keys: Sequence[TaskKey], draws: Sequence[int] | int = 0
    ) -> list[Task[Any]]:
        """The tasks of `keys`, each with its draw; raises GrpoError if one cannot be made."""
        draws_P = [draws] * len(keys) if isinstance(draws, int) else draws
        tasks = await asyncio.gather(*(self._task(key) for key in keys))
        return [replace(task, draw=draw) for task, draw in zip(tasks, draws_P, strict=True)]

    async def verify(
        self, tasks_P: Sequence[Task[Any]], rollouts_PG: Sequence[Sequence[Rollout]]
    ) -> list[list[Verdict]]:
        """One verdict per attempt, under the run's weights. Whatever the environment does, this returns, and every row is marked."""
        groups = [
            Group(task, rollouts) for task, rollouts in zip(tasks_P, rollouts_PG, strict=True)
        ]
        verdicts_PG = await (
            self._by_batch(groups) if self._rung == "verify_batch" else self._by_row(groups)
        )
        verdicts = [v for group in verdicts_PG for v in group]
        self.stats.verdicts += len(verdicts)
        self.stats.errors += sum(not v.scored for v in verdicts)
        return [[reweigh(v, self.settings.weights) for v in group] for group in verdicts_PG]

    async def reference(self, task: Task[Any]) -> str | None:
        """The environment's own answer; raises GrpoError if it cannot be had."""
        seconds = self.settings.task_timeout_seconds
        return await self._insist(
            "reference",
            task.key,
            lambda: self._host.call("reference", task, seconds=seconds),
            seconds,
        )

    async def audit(self, task: Task[Any], rollout: Rollout) -> float | None:
        """The stricter check that training never sees; raises GrpoError if it fails."""

        async def asked() -> float | None:
            return check_audit(await self._host.call("audit", task, rollout, seconds=self._seconds))

        return await self._insist("audit", task.key, asked, self._seconds)

    async def audited(self, group: Group[Any]) -> Group[Any]:
        """The group with its audits as the metric `audit` of each verdict that was given. One that fails says nothing of the attempt: it is
        left out, `audit/failed` is 1 instead of 0, and the reason stands in the verdict's detail."""
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
        """The environment's next turn; raises GrpoError if it fails (the attempt then ends with finish="error")."""

        async def asked() -> Sequence[Message] | None:
            return check_reply(
                await self._host.call("reply", task, messages, seconds=self._seconds)
            )

        return await self._insist("reply", task.key, asked, self._seconds)

    async def _task(self, key: TaskKey) -> Task[Any]:
        seconds = self.settings.task_timeout_seconds
        return await self._insist(
            "task", key, lambda: self._host.task(key, seconds=seconds), seconds
        )

    async def _insist(
        self, op: str, key: TaskKey, call: Callable[[], Coroutine[Any, Any, T]], seconds: float
    ) -> T:
        failure = ""
        for _ in range(1 + self.settings.retries):
            try:
                return await call()
            except Exception as error:  # noqa: BLE001 - environments raise what they like
                failure = _failure(error, op, seconds)
        raise GrpoError(f"environment {key.env!r} failed in {op}() for {key}: {failure}")

    async def _by_row(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        rows = await asyncio.gather(
            *(self._row(group.task, rollout) for group in groups for rollout in group.rollouts)
        )
        verdicts = iter(rows)
        return [[next(verdicts) for _ in group.rollouts] for group in groups]

    async def _row(self, task: Task[Any], rollout: Rollout) -> Verdict:
        if rollout.finish == "error":
            return _broken(rollout)
        if self._cache is None:
            return await self._insistently(task, rollout)
        name = verdict_name(self._fingerprint, task, rollout)
        verdict, known = await self._cache.verdict(
            name,
            lambda: self._insistently(task, rollout),
            check=lambda kept: check_verdict(kept, self.env),
        )
        self.stats.asked += 1
        self.stats.cached += known
        return verdict

    async def _insistently(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = await self._judge(task, rollout)
        for _ in range(self.settings.retries):
            if verdict.scored:
                break
            self.stats.retried += 1
            verdict = await self._judge(task, rollout)
        return verdict

    async def _judge(self, task: Task[Any], rollout: Rollout) -> Verdict:
        try:
            return check_verdict(
                await self._host.call("verify", task, rollout, seconds=self._seconds), self.env
            )
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            return Verdict.failed(_failure(error, "verify", self._seconds))

    async def _by_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        """All groups in one call; then each group that has an error alone, once more even without retries if it failed with others."""
        whole = [Group(g.task, [r for r in g.rollouts if r.finish != "error"]) for g in groups]
        asked = [g for g in whole if g.rollouts]
        verdicts = await self._batch(asked) if asked else []
        alone = self.settings.retries or int(len(asked) > 1)
        judged = iter(
            await asyncio.gather(
                *(self._regroup(g, v, alone) for g, v in zip(asked, verdicts, strict=True))
            )
        )
        found = [iter(next(judged) if g.rollouts else []) for g in whole]
        return [
            [_broken(r) if r.finish == "error" else next(verdicts) for r in group.rollouts]
            for group, verdicts in zip(groups, found, strict=True)
        ]

    async def _regroup(
        self, group: Group[Any], verdicts: list[Verdict], times: int
    ) -> list[Verdict]:
        for _ in range(times):
            if all(v.scored for v in verdicts):
                break
            self.stats.retried += 1
            async with self._groups.here():
                again = (await self._batch([group]))[0]
            verdicts = min(again, verdicts, key=lambda found: sum(not v.scored for v in found))
        return verdicts

    async def _batch(self, groups: list[Group[Any]]) -> list[list[Verdict]]:
        """One call of verify_batch; a list of the right length for each group, whatever came back."""
        seconds = self._seconds * len(groups)
        try:
            found: Any = await within(self.env.verify_batch(groups), seconds)
            if not isinstance(found, (list, tuple)) or len(found) != len(groups):
                raise BrokenContractError(
                    f"verify_batch returned {_count(found)} for {len(groups)} groups; return one list for each"
                )
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            return [
                _all_failed(group, _failure(error, "verify_batch", seconds)) for group in groups
            ]
        return [
            self._checked(group, verdicts) for group, verdicts in zip(groups, found, strict=True)
        ]

    def _checked(self, group: Group[Any], verdicts: Any) -> list[Verdict]:
        if not isinstance(verdicts, (list, tuple)) or len(verdicts) != len(group.rollouts):
            text = f"verify_batch returned {_count(verdicts)} for {len(group.rollouts)} attempts; return one verdict for each"
            return _all_failed(group, text)
        return [self._checked_one(verdict) for verdict in verdicts]

    def _checked_one(self, verdict: object) -> Verdict:
        try:
            return check_verdict(verdict, self.env)
        except BrokenContractError as error:
            return Verdict.failed(clip(str(error)))


def _host(
    env: Environment[Any],
    spec: Spec | None,
    overrides: Mapping[str, Any] | None,
    settings: VerifySettings,
) -> Host:
    synchronous = env.rung() == "verify"
    if settings.isolation == "process" and not synchronous:
        raise ConfigError(
            f"verify.isolation=process is for a synchronous verify(); {type(env).__qualname__} has {env.rung()}(): use auto"
        )
    if settings.isolation == "inline" or (
        settings.isolation == "auto" and (env.trusted or not synchronous)
    ):
        return InlineHost(env, max_concurrency=settings.max_concurrency)
    if env.needs:
        raise ConfigError(
            f"{type(env).__qualname__} needs {', '.join(sorted(env.needs))}, which a worker process cannot reach; "
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


def _failure(error: Exception, op: str, seconds: float) -> str:
    if isinstance(error, DeadlineError):
        return f"{op}() exceeded its deadline of {seconds:g} s{error}"
    if isinstance(error, WorkerLostError):  # with the worker's last output, which is bounded, too
        return str(error)
    return clip(str(error)) if isinstance(error, BrokenContractError) else describe(error)


def _broken(rollout: Rollout) -> Verdict:
    """Return the verdict of a dialogue that broke."""
    reason = f": {rollout.error}" if rollout.error else ""
    return Verdict.failed(
        clip(f"the dialogue broke before its end, so the attempt was not judged{reason}")
    )


def _all_failed(group: Group[Any], text: str) -> list[Verdict]:
    return [Verdict.failed(text) for _ in group.rollouts]


def _count(found: object) -> str:
    return (
        f"{len(found)} items" if isinstance(found, (list, tuple)) else f"a {type(found).__name__}"
    )
