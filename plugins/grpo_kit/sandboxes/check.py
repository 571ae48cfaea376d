"""Check whether a sandbox of any back end can be trusted.

Hostile programs try its limits, its isolation, and whether anything is left behind. Each is
followed by an honest program in the same sandbox, whose outcome must be undisturbed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

from grpo_core import GrpoError, Program, Sandbox
from grpo_core.api.calls import reason
from grpo_core.api.verify import CheckResult
from grpo_kit.sandboxes.hostile import MARKS, SECRET, SOURCES, THIEF, VICTIM
from grpo_kit.sandboxes.programs import (
    CHECKS,
    HONEST,
    LIMITS,
    LOOK,
    SEARCH_LIMITS,
    UNDISTURBED,
    VALUES,
    ProgramCheck,
)
from grpo_kit.sandboxes.session_sockets import check_session_sockets
from grpo_kit.sandboxes.sessions import check_sessions


async def check_sandbox(sandbox: Sandbox) -> list[CheckResult]:
    """Return the result of each check.

    It takes about two minutes: programs that wait are tried five times.
    """
    os.environ[SECRET] = "seen"
    try:
        values = await _made("values", _check_values(sandbox))
        if danger := await _danger(sandbox):
            return [values, *_exposed(danger)]
        return [
            values,
            *[await _made(check.name, _check_hostile_program(sandbox, check)) for check in CHECKS],
            await _made("memory of several", _check_total_memory(sandbox)),
            await _made("earlier calls", _check_earlier_calls(sandbox)),
            await _made("neighbours", _check_neighbours(sandbox)),
            *await check_sessions(sandbox),
            *await check_session_sockets(sandbox),
        ]
    finally:
        del os.environ[SECRET]


async def _danger(sandbox: Sandbox) -> str:
    """Return why programs may be able to end this process, or ""; what is not known is a danger."""
    try:
        ((outcome,),) = await sandbox.run([Program(LOOK, "f", [(os.getpid(),)], LIMITS)])
    except GrpoError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's sandbox may raise anything
        return f"a harmless program could not be run: run() raised {reason(error)}"
    if outcome.status != "ok":
        found = f"{outcome.status} {outcome.error[:80]}".strip()
        return f"a harmless program that looks for other processes ended with {found}"
    if outcome.value not in (True, _own_mark()):
        return ""
    return (
        "a program sees the processes of this machine, and could end them; give programs a process "
        "namespace of their own (a container, bubblewrap, a virtual machine), or another user"
    )


def _own_mark() -> str:
    """Return the number of this process, with the time at which it was started."""
    stat = Path("/proc/self/stat")
    return f"{os.getpid()} {stat.read_text().split()[21]}" if stat.exists() else ""


def _exposed(danger: str) -> list[CheckResult]:
    """Return the results for a sandbox whose hostile programs may reach this machine's processes.

    They end every process that they reach, so they are not run.

    Args:
        danger: why they may.
    """
    names = [check.name for check in CHECKS if check.name != "other processes"]
    fault = CheckResult("other processes", "invalid", danger)
    return [
        fault,
        *(
            CheckResult(name, "not_checked", "hostile programs might end other processes")
            for name in [*names, "memory of several", "earlier calls", "neighbours", "sessions"]
        ),
    ]


async def _made(name: str, check: Awaitable[CheckResult]) -> CheckResult:
    """Return the result of a check; a sandbox that raises has failed it."""
    try:
        return await check
    except GrpoError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's sandbox may raise anything
        return CheckResult(
            name,
            "invalid",
            f"run() raised {reason(error)}; it should return an outcome for every program",
        )


async def _check_values(sandbox: Sandbox) -> CheckResult:
    """Check that values come back equal and of the same type."""
    (outcomes,) = await sandbox.run(
        [Program("def f(x): return x", "f", [(value,) for value in VALUES], LIMITS)]
    )
    for value, outcome in zip(VALUES, outcomes, strict=True):
        if outcome.status != "ok" or (type(outcome.value), outcome.value) != (type(value), value):
            return CheckResult(
                "values",
                "invalid",
                f"{value!r} came back as {outcome.status} {outcome.value!r} {outcome.error}",
            )
    return CheckResult(
        "values", "valid", f"{len(VALUES)} kinds of values come back with their types"
    )


async def _check_hostile_program(sandbox: Sandbox, check: ProgramCheck) -> CheckResult:
    """Run a hostile program, and an honest one after it."""
    (outcome,), (after,) = await sandbox.run([Program(check.source, "f", [(1,)], LIMITS), HONEST])
    value = "" if outcome.value is None else repr(outcome.value)[:60]
    summary = f"{outcome.status} {value} {outcome.error[:80]}".strip()
    if not check.is_contained(outcome):
        return CheckResult(
            check.name,
            "invalid",
            f"the program should {check.expectation}; it ended with {summary}",
        )
    if after.status != "ok" or after.value != UNDISTURBED:
        return CheckResult(
            check.name,
            "invalid",
            f"the next program was disturbed: {after.status} {after.value!r} {after.error[:80]}",
        )
    return CheckResult(check.name, "valid", summary)


async def _check_total_memory(sandbox: Sandbox) -> CheckResult:
    """Check that the memory limit holds for all processes of a program together."""
    ((outcome,),) = await sandbox.run([Program(SOURCES["memory of several"], "f", [(1,)], LIMITS)])
    if outcome.status == "ok" and outcome.value == 4:
        return CheckResult(
            "memory of several",
            "not_checked",
            f"four processes got 40 MB each: the limit of {LIMITS.memory_mb} MB holds for each "
            "process, not for all processes of a program",
        )
    return CheckResult(
        "memory of several",
        "valid",
        f"four processes did not get 40 MB each: {outcome.status} {outcome.error[:80]}".strip(),
    )


async def _check_earlier_calls(sandbox: Sandbox) -> CheckResult:
    """Check that calls leave no data in the memory of later calls."""
    victims = [Program(VICTIM, "f", [(MARKS["input"],)], LIMITS)] * 8
    (*_, (outcome,)) = await sandbox.run([*victims, Program(THIEF, "f", [(1,)], SEARCH_LIMITS)])
    name = "earlier calls"
    marks = outcome.value if outcome.status == "ok" else None
    if marks == []:
        return CheckResult(
            name, "valid", "a program that searches its memory finds no data of other programs"
        )
    if not isinstance(marks, list):
        return CheckResult(
            name,
            "not_checked",
            f"the program that searches its memory could not: {outcome.status} "
            f"{outcome.error[:80]}",
        )
    kinds = ", ".join(kind for kind, mark in MARKS.items() if mark in marks)
    return CheckResult(
        name, "invalid", f"a program found data of another one in its memory: {kinds}"
    )


async def _check_neighbours(sandbox: Sandbox) -> CheckResult:
    """Check that honest programs are undisturbed by hostile ones that run at the same time."""
    outcomes = await asyncio.gather(
        *(
            sandbox.run([Program(check.source, "f", [(1,)], LIMITS), HONEST, HONEST])
            for check in CHECKS
        )
    )
    wrong = sum(
        outcome.value != UNDISTURBED for run_outcomes in outcomes for (outcome,) in run_outcomes[1:]
    )
    if wrong:
        return CheckResult(
            "neighbours",
            "invalid",
            f"{wrong} of {2 * len(outcomes)} honest programs beside hostile ones got another "
            "outcome",
        )
    return CheckResult(
        "neighbours",
        "valid",
        f"{2 * len(outcomes)} honest programs beside hostile ones got the right one",
    )
