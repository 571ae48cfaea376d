"""Run all checks of the kit on an environment, or some of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache
from typing import Any

from grpo_core import AgentEnvironment, ConfigError, Environment, GrpoError
from grpo_core.api.calls import printable
from grpo_core.api.protocol import did_you_mean
from grpo_core.api.settings import VerifyConfig
from grpo_core.api.verify import (
    CheckResult,
    Examination,
    IsolatedReplies,
    Report,
    Verifier,
    verdict_needs,
)
from grpo_core.plugins.services import Lender
from grpo_kit import declared
from grpo_kit.answers import (
    answer_times,
    balance,
    echoes,
    failing_verdicts,
    floors,
    hostile_answers,
    mutants,
    near_misses,
    spellings,
    supersets,
    verdicts,
    wide_verdicts,
)
from grpo_kit.asking import run_check
from grpo_kit.causes import mark_consequences
from grpo_kit.check import Check, registered
from grpo_kit.dialogues import (
    agent_cuts,
    agent_secrets,
    agents,
    dialogues,
    episode_ends,
    episode_files,
    episode_startup,
    episode_turns,
    episodes,
    hostile_dialogues,
    reply_secrets,
    tool_secrets,
    tools,
)
from grpo_kit.process import elsewhere, side_effects
from grpo_kit.process.second_process import SecondProcess
from grpo_kit.subject import Subject
from grpo_kit.tasks import held_out, leaks, levels, seeds, tasks, truths, variety
from grpo_kit.tasks.preparing import prepare

_MODULES = (
    declared,
    tasks,
    seeds,
    held_out,
    leaks,
    variety,
    truths,
    levels,
    verdicts,
    failing_verdicts,
    elsewhere,
    floors,
    echoes,
    balance,
    near_misses,
    supersets,
    spellings,
    hostile_answers,
    mutants,
    wide_verdicts,
    dialogues,
    reply_secrets,
    hostile_dialogues,
    episodes,
    episode_turns,
    episode_files,
    episode_startup,
    episode_ends,
    agents,
    agent_secrets,
    agent_cuts,
    tools,
    tool_secrets,
    side_effects,
    answer_times,
)
"""The modules with checks, in the order in which a report lists them within their group."""
_GROUPS = (
    *("declared", "task", "verdict", "floor", "reply", "episode", "agent", "tool", "safety"),
    "cost",
)
"""The groups of checks, in the order of a report."""
_DEADLINE_SECONDS = 5.0
"""The most seconds for a verdict without services, even where the environment allows more.

Otherwise each verdict that hangs would make the kit too slow to be used.
"""
_EVAL_TASKS_PER_TASK = 5
"""Held-out tasks for each training task: task() is cheap, and a leak shows only among many."""
_HELD_OUT_CHECKS = frozenset({"task.made", "task.split", "task.seed"})
"""The checks that need held-out tasks."""


@cache
def catalogue() -> Mapping[str, Check]:
    """Return every check by name, in the order of a report."""
    modules = [module.__name__ for module in _MODULES]

    def place(check: Check) -> tuple[int, int, int]:
        function = check.function
        group = _GROUPS.index(check.name.partition(".")[0])
        return group, modules.index(function.__module__), function.__code__.co_firstlineno

    return {check.name: check for check in sorted(registered().values(), key=place)}


def wanted(only: Sequence[str] = ()) -> list[str]:
    """Return the names of the chosen checks, in the order of the report.

    Args:
        only: Names of checks or of groups ("floor"); empty: all checks.

    Raises:
        ConfigError: A name is neither a check nor a group.
    """
    checks = list(catalogue())
    groups = {name.partition(".")[0] for name in checks}
    for name in only:
        if name not in checks and name not in groups:
            raise ConfigError(
                f"{name!r} is not a check{did_you_mean(name, [*groups, *checks])} Groups are "
                f"{', '.join(sorted(groups))}"
            )
    return [name for name in checks if not only or name in only or name.partition(".")[0] in only]


async def examine(
    env: Environment[Any], examination: Examination, lender: Lender | None = None
) -> Report:
    """Run the chosen checks on `env` and return their report. Closes `env` and `lender` at the end.

    A fault that makes every other check impossible is in the report even if its check was not
    chosen.

    Args:
        env: The environment.
        examination: Which checks to run.
        lender: The lender of the environment's services, if it has one.

    Raises:
        ConfigError: `examination.only` names an unknown check.
    """
    names = wanted(examination.only)
    async with AsyncExitStack() as stack:
        if lender is not None:
            stack.push_async_callback(lender.close)
        waived = [
            CheckResult(name, "waived", printable(reason), catalogue()[name].severity)
            for name, reason in declared.waivers(env).items()
        ]
        asked = [name for name in names if name not in declared.waivers(env)]
        results = [*await _run_checks(env, asked, examination), *waived]
        results.sort(key=lambda result: list(catalogue()).index(result.check))
    return Report(
        examination.name,
        mark_consequences(
            replace(result, reproduce=examination.reproduce(result.check))
            if result.status == "invalid"
            else result
            for result in results
            if result.check in names
            or (result.check in declared.UNWAIVABLE and result.status == "invalid")
        ),
        tuple(sorted(verdict_needs(env))),
    )


async def _run_checks(
    env: Environment[Any], names: Sequence[str], examination: Examination
) -> list[CheckResult]:
    """Return the results of `declared.contract` and of the checks in `names`."""
    try:
        verifier = _make_verifier(env, examination)
    except ConfigError as error:
        fault = CheckResult("declared.contract", "invalid", str(error))
        return [
            fault,
            *_not_checked(names, "the environment cannot be used", reported=(fault.check,)),
        ]
    results: list[CheckResult] = []
    replies = IsolatedReplies(
        env, settings=verifier.settings, spec=examination.spec, overrides=examination.overrides
    )
    async with verifier, replies, AsyncExitStack() as stack:
        inline_settings = verifier.settings.model_copy(update={"isolation": "inline"})
        subject = Subject(
            examination.name,
            env,
            Verifier(env, settings=inline_settings, closes_env=False),
            verifier,
            replies,
            examination.seed,
            unavailable=examination.unavailable,
            settings=examination.overrides or {},
        )
        results.append(
            await run_check("declared.contract", subject, declared.check_contract(subject))
        )
        examination.progress("task.made")
        held_out_per_task = 0 if _HELD_OUT_CHECKS.isdisjoint(names) else _EVAL_TASKS_PER_TASK
        started = time.monotonic()
        try:
            await prepare(
                subject, count=examination.count, held_out=examination.count * held_out_per_task
            )
        except GrpoError as error:
            return [
                *results,
                CheckResult("task.made", "invalid", printable(str(error))),
                *_not_checked(names, "no tasks could be made", reported=declared.UNWAIVABLE),
            ]
        prepared = time.monotonic() - started
        if not subject.tasks:
            reason = "there are no tasks in the train split"
            return [*results, *_not_checked(names, reason, reported=("declared.contract",))]
        results += await _run_prepared(subject, names, examination, stack, prepared)
    return sorted(results, key=lambda result: list(catalogue()).index(result.check))


async def _run_prepared(
    subject: Subject,
    names: Sequence[str],
    examination: Examination,
    stack: AsyncExitStack,
    prepared: float,
) -> list[CheckResult]:
    """Return the results of the checks in `names` of which `declared.contract` is not one.

    Args:
        subject: The environment, with its tasks.
        names: The checks.
        examination: What is examined, and who hears of the progress.
        stack: Closes the second process, whose report the checks share.
        prepared: Seconds that the tasks took.
    """
    process = SecondProcess(subject, examination.spec)
    stack.push_async_callback(process.close)
    if any(catalogue()[name].second_process for name in names):
        process.start()
    results = list[CheckResult]()
    for name in sorted(names, key=_turn):
        if name != "declared.contract":
            examination.progress(name)
            seconds = prepared if name == "task.made" else 0.0
            check = catalogue()[name]
            given = (process, subject) if check.second_process else (subject,)
            results.append(
                await run_check(name, subject, check.function(*given), preparing=seconds)
            )
    return results


def _turn(name: str) -> int:
    """Return when a check runs: late if it waits for the second process, last if it measures."""
    return 2 if name.startswith("cost.") else int(catalogue()[name].second_process)


def _not_checked(
    names: Sequence[str], reason: str, *, reported: Sequence[str]
) -> list[CheckResult]:
    """Return a "not_checked" result for each check in `names` that is not reported already."""
    return [
        CheckResult(name, "not_checked", reason, catalogue()[name].severity)
        for name in names
        if name not in reported
    ]


def _make_verifier(env: Environment[Any], examination: Examination) -> Verifier:
    """Return a verifier in a worker process, as in a run, or inline if `env` cannot be imported.

    Raises:
        ConfigError: The environment breaks the contract, or `isolation` cannot be met.
    """
    settings = VerifyConfig(
        isolation=examination.isolation,
        retries=0,
        timeout_seconds=None
        if verdict_needs(env) or env.timeout_seconds <= _DEADLINE_SECONDS
        else _DEADLINE_SECONDS,
        workers=1 if isinstance(env, AgentEnvironment) else None,  # where agents could meet
    )
    try:
        return Verifier(
            env,
            settings=settings,
            spec=examination.spec,
            overrides=examination.overrides,
            blames_answers=False,  # the checks look at what the verifier itself does
        )
    except ConfigError:
        if examination.isolation != "auto":
            raise
        return Verifier(env, settings=settings.model_copy(update={"isolation": "inline"}))


class Kit:
    """Offer the checks to `grpo_core.testing`, as `Checks` says."""

    names = staticmethod(wanted)
    examine = staticmethod(examine)
