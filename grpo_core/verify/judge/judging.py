"""Judge rollouts by an environment's verifier: one rollout in, one verdict out; or whole groups.

This is the only place that turns a failure into `Verdict.error`. A failure never becomes a reward
of 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_core.calls.call import current_call, hearing
from grpo_core.calls.deadline import DeadlineError, Slots, describe, within
from grpo_core.calls.isolation import clip
from grpo_core.calls.output import Output
from grpo_core.config.settings import VerifyConfig
from grpo_core.plugins.services import fingerprint
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.types import Group, Rollout, Task, Verdict
from grpo_core.verify.judge.cache import VerdictCache, verdict_key
from grpo_core.verify.judge.checks import BrokenContractError, check_verdict
from grpo_core.verify.workers.pool import WorkerLostError

Blame = Callable[[Task[Any], Rollout, Exception], Awaitable[Verdict | None]]
"""Returns the floor if the answer is to blame for an exception of the verifier, else None."""
Ask = Callable[[Task[Any], Rollout], Awaitable[Any]]
"""Returns the verdict, unchecked, of one call of a verifier."""


class ReplayError(Exception):
    """A recorded attempt cannot be played to a fresh episode; the message says why."""


@dataclass(slots=True)
class VerifyStats:
    """Count what `Verifier.verify` did."""

    verdicts: int = 0
    """Verdicts, including errors."""
    errors: int = 0
    """Verdicts that are errors."""
    raised: int = 0
    """Floors of answers at which the verifier raises."""
    retried: int = 0
    """Calls for a rollout (or a group) beyond the first."""
    cache_lookups: int = 0
    """Verdicts that were looked up in the cache."""
    cache_hits: int = 0
    """Verdicts that the cache held."""

    def count(self, verdict: Verdict) -> None:
        """Count a verdict."""
        self.verdicts += 1
        self.errors += not verdict.scored
        self.raised += bool(verdict.raised)

    def reset(self) -> None:
        """Set all counts to 0."""
        self.verdicts = self.errors = self.raised = self.retried = 0
        self.cache_lookups = self.cache_hits = 0


class RolloutJudging:
    """Judge each rollout by one call of the verifier, or from the cache."""

    def __init__(
        self,
        env: Environment[Any],
        ask: Ask,
        *,
        settings: VerifyConfig,
        cache: VerdictCache | None,
        stats: VerifyStats,
        blame: Blame | None = None,
    ) -> None:
        self._env, self._ask, self._stats, self._blame = env, ask, stats, blame
        self._retries = settings.retries
        self._seconds = settings.timeout_seconds or env.timeout_seconds
        repeatable = env.replayable or env.rung() != "episode"
        self._cache = cache if env.deterministic and not env.stateful and repeatable else None
        self._fingerprint = fingerprint(env) if self._cache else ""

    async def judge(self, task: Task[Any], rollout: Rollout, ways: Sequence[Ask] = ()) -> Verdict:
        """Return the verdict of a rollout, from the cache if possible.

        It has the weights of the environment.

        Args:
            task: its task.
            rollout: the rollout.
            ways: how the verifier is asked: each way if the one before failed every time. Empty:
                in the usual way.
        """
        ways = ways or (self._ask,)
        if rollout.finish == "error":
            return _failed_dialogue_verdict(rollout)
        if self._cache is None:
            return await self._judge(task, rollout, ways)
        verdict, was_cached = await self._cache.verdict(
            verdict_key(self._fingerprint, task, rollout),
            lambda: self._judge(task, rollout, ways),
            check=lambda cached_verdict: check_verdict(cached_verdict, self._env, rollout),
        )
        self._stats.cache_lookups += 1
        self._stats.cache_hits += was_cached
        return verdict

    async def _judge(self, task: Task[Any], rollout: Rollout, ways: Sequence[Ask]) -> Verdict:
        """Return the first scored verdict of a rollout, or the error of the last call.

        An exception of the verifier becomes an error. Where an answer may be blamed for it, and is,
        the verdict is the floor.
        """
        verdict: Verdict | None = None
        output = Output(current_call().output)
        for ask in (ask for ask in ways for _ in range(1 + self._retries)):
            self._stats.retried += verdict is not None
            if verdict is not None and output.text:
                output.write_lines("(the verifier is asked again)")
            try:
                with hearing(output):
                    answer = await ask(task, rollout)
                verdict = check_verdict(answer, self._env, rollout)
            except Exception as error:  # noqa: BLE001 - environments raise what they like
                verdict = await self._failed(task, rollout, error)
            if verdict.scored:
                break
        assert verdict is not None, "there is a way to ask"
        return replace(verdict, output=output.text)

    async def _failed(self, task: Task[Any], rollout: Rollout, error: Exception) -> Verdict:
        """Return the verdict for an exception of the verifier: the floor, or an error."""
        with hearing(Output()):  # what is printed at other answers says nothing of this one
            floor = None if self._blame is None else await self._blame(task, rollout, error)
        if floor is not None:
            return floor
        op = "verdict" if self._env.rung() == "episode" else "verify"
        return Verdict.failed(describe_failure(error, op, self._seconds))


class GroupJudging:
    """Judge whole groups by `verify_batch`."""

    def __init__(
        self, env: Environment[Any], *, settings: VerifyConfig, stats: VerifyStats
    ) -> None:
        self._env, self._stats = env, stats
        self._retries = settings.retries
        self._seconds = settings.timeout_seconds or env.timeout_seconds
        self._slots = Slots(1 if env.stateful else settings.max_concurrency)

    async def judge(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        """Return the verdicts of each group, by one call of verify_batch for all groups.

        A group with an error is then judged again by itself: at most `retries` times, but at least
        once if it shared its first call with other groups. The verdicts have the weights of the
        environment.
        """
        judged_groups = [
            Group(group.task, complete)
            for group in groups
            if (complete := [rollout for rollout in group.rollouts if rollout.finish != "error"])
        ]
        first_verdicts = await self._call_verify_batch(judged_groups) if judged_groups else []
        retries = self._retries or int(len(judged_groups) > 1)
        final_verdicts = await asyncio.gather(
            *(
                self._retry(group, verdicts, retries)
                for group, verdicts in zip(judged_groups, first_verdicts, strict=True)
            )
        )
        verdicts = iter([verdict for group in final_verdicts for verdict in group])
        return [
            [
                _failed_dialogue_verdict(rollout) if rollout.finish == "error" else next(verdicts)
                for rollout in group.rollouts
            ]
            for group in groups
        ]

    async def _retry(
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
            self._stats.retried += 1
            async with self._slots.here():
                new_verdicts = (await self._call_verify_batch([group]))[0]
            verdicts = max(new_verdicts, verdicts, key=lambda vs: sum(v.scored for v in vs))
        return verdicts

    async def _call_verify_batch(self, groups: list[Group[Any]]) -> list[list[Verdict]]:
        """Return the checked verdicts of one call of verify_batch; failures become errors.

        There is always one verdict for each rollout of each group.
        """
        with hearing() as output:
            verdicts_PG = await self._checked_verdicts(groups)
        text, count = output.text, sum(len(group.rollouts) for group in groups)
        if text and count > 1:
            text = (
                f"(printed while {count} attempts were judged together, and kept with the first of "
                f"each group)\n{text}"
            )
        return [
            [replace(verdict, output=text if n == 0 else "") for n, verdict in enumerate(verdicts)]
            for verdicts in verdicts_PG
        ]

    async def _checked_verdicts(self, groups: list[Group[Any]]) -> list[list[Verdict]]:
        """Return the verdicts of `_call_verify_batch`, without what was printed."""
        seconds = self._seconds * len(groups)
        try:
            results: Any = await within(self._judge_groups(groups), seconds)
            if not isinstance(results, (list, tuple)) or len(results) != len(groups):
                raise BrokenContractError(
                    f"verify_batch returned {_describe_length(results)} for {len(groups)} groups; "
                    "return one list for each"
                )
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            failed = Verdict.failed(describe_failure(error, "verify_batch", seconds))
            return [[failed] * len(group.rollouts) for group in groups]
        return [
            self._check_group(group, verdicts)
            for group, verdicts in zip(groups, results, strict=True)
        ]

    async def _judge_groups(self, groups: list[Group[Any]]) -> Any:
        """Return what the environment answers; services that it calls know what for."""
        current_call().verifies = True
        return await self._env.verify_batch(groups)

    def _check_group(self, group: Group[Any], verdicts: Any) -> list[Verdict]:
        """Return the checked verdicts of one group; those that break the protocol become errors."""
        if not isinstance(verdicts, (list, tuple)) or len(verdicts) != len(group.rollouts):
            failed = Verdict.failed(
                f"verify_batch returned {_describe_length(verdicts)} for {len(group.rollouts)} "
                "rollouts; return one verdict for each"
            )
            return [failed] * len(group.rollouts)
        return [
            self._check_or_fail(verdict, rollout)
            for verdict, rollout in zip(verdicts, group.rollouts, strict=True)
        ]

    def _check_or_fail(self, verdict: object, rollout: Rollout) -> Verdict:
        """Return the checked verdict of a rollout, or an error if it breaks the protocol."""
        try:
            return check_verdict(verdict, self._env, rollout)
        except BrokenContractError as error:
            return Verdict.failed(clip(str(error)))


def describe_failure(error: Exception, op: str, seconds: float) -> str:
    """Return the message for an exception of the environment's method `op`.

    Args:
        error: the exception.
        op: name of the method.
        seconds: its timeout.
    """
    if isinstance(error, DeadlineError):
        return (
            f"{op}() exceeded its deadline of {seconds:g} s{error} (verify.timeout_seconds and "
            "the environment's timeout_seconds set it)"
        )
    if isinstance(error, WorkerLostError):
        # Not clipped: it ends with the worker's last output, whose length is limited as well.
        return str(error)
    if isinstance(error, BrokenContractError | ReplayError):
        return clip(str(error))
    return describe(error)


def _failed_dialogue_verdict(rollout: Rollout) -> Verdict:
    """Return the verdict of a rollout whose dialogue failed."""
    reason = f": {rollout.error}" if rollout.error else ""
    return Verdict.failed(
        clip(f"the dialogue failed before its end, so the rollout was not judged{reason}")
    )


def _describe_length(value: object) -> str:
    return (
        f"{len(value)} items" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
    )
