"""Asks an environment every question of the kit, or those that are wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grpo_core.calls.deadline import describe
from grpo_core.calls.printable import printable
from grpo_core.kit import cost, floors, levels, second, served, tasks, verdicts
from grpo_core.kit.result import (
    BrokenPromiseError,
    CheckResult,
    NotCheckedError,
    Report,
    catalogue,
    severity,
)
from grpo_core.kit.second import Second
from grpo_core.kit.subject import Subject, prepared
from grpo_core.plugins.services import Lender
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError, GrpoError, did_you_mean
from grpo_core.protocol.spec import Spec
from grpo_core.verify.engine import Isolation, Verifier, VerifySettings

Question = Callable[[Subject], Coroutine[Any, Any, str]]
QUESTIONS: Mapping[str, Question] = {
    "declared.contract": tasks.contract,
    "task.made": tasks.made,
    "task.pure": tasks.pure,
    "task.random": tasks.untouched,
    "task.pickle": tasks.picklable,
    "task.seed": tasks.seeds,
    "task.split": tasks.splits,
    "task.secret": tasks.secret,
    "task.level": levels.rising,
    "verdict.form": verdicts.form,
    "verdict.reference": verdicts.reference,
    "verdict.repeat": verdicts.repeat,
    "verdict.swallow": verdicts.swallow,
    "verdict.outage": verdicts.outage,
    "floor.empty": floors.empty,
    "floor.junk": floors.junk,
    "floor.echo": floors.echo,
    "floor.other": floors.other,
    "floor.constant": floors.constant,
    "floor.listed": floors.listed,
    "floor.suffix": floors.suffix,
    "floor.near": floors.near,
    "floor.digits": floors.digits,
    "floor.text": floors.characters,
    "floor.nested": floors.nested,
    "floor.large": floors.large,
    "floor.cheats": floors.cheats,
    "floor.canaries": floors.canaries,
    "floor.code": served.code,
    "floor.judge": served.judge,
    "cost.time": cost.verdict_seconds,
}
WITNESSED: Mapping[str, Callable[[Second, Subject], Coroutine[Any, Any, str]]] = {
    "task.process": second.same_tasks,
    "verdict.process": second.same_verdicts,
    "safety.eval": second.executed,
    "safety.network": second.network,
    "safety.files": second.files,
    "safety.processes": second.processes,
    "cost.memory": second.memory,
}
_DEADLINE_SECONDS = 5.0
"""Of a verdict without services, where the environment allows more: a kit that waits for each hang is not used."""
_EVAL_TASKS_PER_TASK = 5
"""task() is cheap, and a leak shows only among many."""
_OF_HELD_OUT = frozenset({"task.made", "task.split", "task.seed"})
_WHOLE = ("declared.contract", "task.made")


def wanted(only: Sequence[str]) -> list[str]:
    """The names of checks, in the order of the report; `only`: names or groups ("floor"). Raises ConfigError for one that is neither."""
    known = list(catalogue())
    groups = {name.partition(".")[0] for name in known}
    for name in only:
        if name not in known and name not in groups:
            raise ConfigError(
                f"{name!r} is no check{did_you_mean(name, [*groups, *known])} Groups are {', '.join(sorted(groups))}"
            )
    return [name for name in known if not only or name in only or name.partition(".")[0] in only]


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What to ask, and of how many tasks.

    name: in task keys and the report. only: names of checks or groups. count: training tasks to look at. seed: of their stream. spec,
    overrides: how another process builds the environment, if not from its class and config. unavailable: why services that it needs
    cannot be used. reproduce: the line that asks a check again, by its name. progress: told the name of each check before it is asked.
    """

    name: str
    only: Sequence[str] = ()
    count: int = 20
    seed: int = 0
    isolation: Isolation = "auto"
    spec: Spec | None = None
    overrides: Mapping[str, Any] | None = None
    unavailable: str = ""
    reproduce: Callable[[str], str] = lambda check: ""
    progress: Callable[[str], None] = lambda check: None


async def examine(
    env: Environment[Any], asked: Examination, lender: Lender | None = None
) -> Report:
    """Closes `env` at the end, and the lender of its services.

    A fault that leaves nothing to look at is in the report whatever was asked.
    """
    names = wanted(asked.only)
    async with AsyncExitStack() as stack:
        if lender is not None:
            stack.push_async_callback(lender.close)
        results = await _results(env, names, asked)
    told = [
        result
        for result in results
        if result.check in names or (result.check in _WHOLE and result.status == "invalid")
    ]
    return Report(asked.name, tuple(_reproducible(result, asked) for result in told))


def _reproducible(result: CheckResult, asked: Examination) -> CheckResult:
    return (
        replace(result, reproduce=asked.reproduce(result.check))
        if result.status == "invalid"
        else result
    )


async def _results(
    env: Environment[Any], names: Sequence[str], asked: Examination
) -> list[CheckResult]:
    try:
        verifier = _verifier(env, asked)
    except ConfigError as error:
        fault = CheckResult("declared.contract", "invalid", str(error))
        return [fault, *_left(names, "the environment cannot be asked", told=(fault.check,))]
    results: list[CheckResult] = []
    async with verifier:
        here = Verifier(
            env, settings=replace(verifier.settings, isolation="inline"), closes_env=False
        )
        bare = Subject(
            asked.name,
            env,
            here,
            verifier,
            asked.seed,
            unavailable=asked.unavailable,
            settings=asked.overrides or {},
        )
        results.append(await _settled("declared.contract", tasks.contract(bare)))
        asked.progress("task.made")
        held_out = asked.count * _EVAL_TASKS_PER_TASK if _OF_HELD_OUT.intersection(names) else 0
        try:
            subject = await prepared(bare, count=asked.count, held_out=held_out)
        except GrpoError as error:
            return [
                *results,
                CheckResult("task.made", "invalid", printable(str(error))),
                *_left(names, "no tasks could be made", told=_WHOLE),
            ]
        questions = {**QUESTIONS, **_witnessed(subject, asked.spec)}
        for each in names:
            if each != "declared.contract":
                asked.progress(each)
                results.append(await _settled(each, questions[each](subject)))
    return results


def _left(names: Sequence[str], why: str, *, told: Sequence[str]) -> list[CheckResult]:
    """What can no longer be looked at; `told`: what is known already."""
    return [
        CheckResult(each, "not_checked", why, severity(each)) for each in names if each not in told
    ]


def borrowed(lender: Lender, environment_class: type[Environment[Any]]) -> tuple[Services, str]:
    """What `environment_class` needs, or nothing and why."""
    try:
        return lender.services(environment_class), ""
    except ConfigError as error:
        return Services(), str(error)


def _witnessed(subject: Subject, spec: Spec | None) -> Mapping[str, Question]:
    """One second process for all checks that want to know what it saw."""
    witness = Second(subject, spec)
    return {each: partial(ask, witness) for each, ask in WITNESSED.items()}


def _verifier(env: Environment[Any], asked: Examination) -> Verifier:
    """In a worker process, as a run does, unless the class cannot be found by name."""
    seconds = None if env.needs else min(env.timeout_seconds, _DEADLINE_SECONDS)
    settings = VerifySettings(isolation=asked.isolation, retries=0, timeout_seconds=seconds)
    try:
        return Verifier(env, settings=settings, spec=asked.spec, overrides=asked.overrides)
    except ConfigError:
        if asked.isolation != "auto":
            raise
        return Verifier(env, settings=replace(settings, isolation="inline"))


async def _settled(check: str, question: Coroutine[Any, Any, str]) -> CheckResult:
    """What became of a check, whatever it raised."""
    started = time.monotonic()
    status, message = await _status(question)
    return CheckResult(
        check,
        status,
        printable(message),
        severity(check),
        seconds=round(time.monotonic() - started, 3),
    )


async def _status(question: Coroutine[Any, Any, str]) -> tuple[Any, str]:
    try:
        return "valid", await question
    except NotCheckedError as error:
        return "not_checked", str(error)
    except (BrokenPromiseError, GrpoError) as error:
        return "invalid", str(error)
    except Exception as error:  # noqa: BLE001 - the environment's own code raised
        return "invalid", f"the environment raised {describe(error)}"
