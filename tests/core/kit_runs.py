"""How the tests of the kit ask for checks, and what they look at in the results."""

from functools import cache
from typing import Any

from grpo_core import Environment
from grpo_core.config.settings import Isolation
from grpo_core.testing import Report, check_environment
from grpo_core.verify.examining import CheckResult

COUNT = 8
IN_A_WORKER = ("floor.large", "safety.", "cost.")
"""Checks whose faults hang, grow or change the process that judges; the others are asked in this
process, which is faster. Whole checks of sound environments, and the catalogue in tests/kit, use
workers for all of them."""


def isolation_for(*checks: str) -> Isolation:
    return "auto" if any(check.startswith(IN_A_WORKER) for check in checks) else "inline"


def checked(
    env: Environment[Any], *only: str, tasks: int = COUNT, isolation: Isolation = "inline"
) -> Report:
    """Ask these checks or groups on a few tasks; without any, all of them."""
    return check_environment(env, tasks=tasks, only=only, isolation=isolation)


def result_of(
    env: Environment[Any], check: str, *, tasks: int = COUNT, isolation: Isolation = "inline"
) -> CheckResult:
    """Ask one check, and return its result alone."""
    (result,) = checked(env, check, tasks=tasks, isolation=isolation).results
    return result


@cache
def results(
    env: type[Environment[Any]], *only: str, tasks: int = COUNT, isolation: Isolation = "auto"
) -> dict[str, CheckResult]:
    """Return the results by their checks; what several tests ask of a class is asked once."""
    report = checked(env(), *only, tasks=tasks, isolation=isolation)
    return {result.check: result for result in report.results}


def problems(report: Report) -> set[str]:
    return {result.check for result in report.results if result.status == "invalid"}
