"""Run one check, and say how it ended and what it cost."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from grpo_core import GrpoError
from grpo_core.api.calls import describe, printable
from grpo_core.api.verify import CheckResult
from grpo_kit.check import registered
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Effort, Subject

_LONG_SECONDS = 30.0
"""A check that takes longer says why."""


async def run_check(
    check: str, subject: Subject, coroutine: Coroutine[Any, Any, str], *, preparing: float = 0.0
) -> CheckResult:
    """Return the result of a check, whatever it raises; of a slow one with the reason.

    Args:
        check: The name of the check.
        subject: The subject, whose verdicts are counted.
        coroutine: The check.
        preparing: The seconds that were spent on it before.
    """
    started, before = time.monotonic(), Effort() if preparing else subject.effort
    status, message = await _outcome(coroutine)
    seconds = preparing + time.monotonic() - started
    if seconds > _LONG_SECONDS:
        message = f"{message} ({_describe_effort(seconds, before, subject.effort)})"
    return CheckResult(
        check,
        status,
        printable(message),
        registered()[check].severity,
        seconds=round(seconds, 3),
    )


def _describe_effort(seconds: float, before: Effort, after: Effort) -> str:
    """Return why a check took `seconds`.

    Args:
        seconds: How long it took.
        before: The verdicts of all checks before it.
        after: The same at its end.
    """
    verdicts, judging = after.verdicts - before.verdicts, after.seconds - before.seconds
    if not verdicts:
        return f"took {seconds:.0f} s, for tasks, references and other processes"
    return (
        f"took {seconds:.0f} s, of which {judging:.0f} s for {verdicts} verdicts, "
        f"{judging / verdicts:.2g} s each, and the rest for tasks, references and other processes"
    )


async def _outcome(coroutine: Coroutine[Any, Any, str]) -> tuple[Any, str]:
    """Return the status of a check and its message."""
    try:
        return "valid", await coroutine
    except NotCheckedError as error:
        return "not_checked", str(error)
    except (BrokenPromiseError, GrpoError) as error:
        return "invalid", str(error)
    except Exception as error:  # noqa: BLE001 - the environment's own code raised
        return "invalid", f"the environment raised {describe(error)}"
