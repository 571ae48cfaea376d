"""Check whether the sessions of a sandbox can be trusted.

Hostile commands try the limits of a session, its isolation, and the files that a verifier writes
and reads afterwards. An honest command in the same session, a session beside it and the next
session must find everything as it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from grpo_core import Call, CommandResult, ConfigError, GrpoError, Limits, Sandbox, Session
from grpo_core.api.calls import reason
from grpo_core.api.verify import CheckResult
from grpo_kit.sandboxes.hostile_sessions import FREE, HOSTILE_SESSIONS, TRAPS, Hostile

LIMITS = Limits(
    cpu_seconds=1, wall_seconds=5, memory_mb=128, output_bytes=10_000, processes=8, file_mb=1
)
HONEST = "echo $((1 + 1)); umask; ulimit -f; ulimit -c; env | sort; pwd"
"""A command whose output is the same in every session, whatever happened before."""
HONEST_FIRST = f"ls -A; stat -c %a .; ls -A / ..; {HONEST}"
"""The same for the first command of a session."""
_KEPT = "of the neighbour\n"
_CONTENT = "of the verifier"


async def check_sessions(sandbox: Sandbox) -> list[CheckResult]:
    """Return the result of each check; "not_checked" for a sandbox without sessions."""
    try:
        neighbour = await sandbox.session({"kept": _KEPT}, limits=LIMITS)
    except (ConfigError, AttributeError) as error:
        return [CheckResult("sessions", "not_checked", f"it has none: {error}")]
    except GrpoError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's sandbox may raise anything
        return [CheckResult("sessions", "invalid", f"session() raised {reason(error)}")]
    try:
        if danger := await _danger(neighbour):
            return [CheckResult("sessions", "invalid", danger)]
        first = await _first_output(sandbox)
        return [await _made(sandbox, hostile, neighbour, first) for hostile in HOSTILE_SESSIONS]
    finally:
        await neighbour.close()


async def _danger(session: Session) -> str:
    """Return why commands may be able to end this process, or ""."""
    pid, started = os.getpid(), _start_time()
    looks = f"kill -0 {pid} 2>/dev/null || exit 3; set -- $(cat /proc/{pid}/stat); echo ${{22}}"
    result = await session.exec(looks)
    if (result.status, result.exit_code) == ("ok", 3):
        return ""
    if result.status == "ok" and result.stdout.strip() not in ("", started):
        return ""  # another process has that number in there
    return (
        f"a command may see the processes of this machine ({_summary(result)}), and could end "
        "them; give sessions a process namespace of their own, or another user"
    )


def _start_time() -> str:
    """Return when this process was started, as the kernel counts it."""
    stat = Path("/proc/self/stat")
    return stat.read_text().split()[21] if stat.exists() else ""


async def _first_output(sandbox: Sandbox) -> CommandResult:
    session = await sandbox.session(limits=LIMITS)
    try:
        return await session.exec(HONEST_FIRST)
    finally:
        await session.close()


async def _made(
    sandbox: Sandbox, hostile: Hostile, neighbour: Session, first: CommandResult
) -> CheckResult:
    """Return the result of a check; a sandbox that raises has failed it."""
    try:
        problem, summary = await _play(sandbox, hostile)
        if not problem:
            problem = await _disturbed(sandbox, neighbour, first)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's sandbox may raise anything
        return CheckResult(
            hostile.name, "invalid", f"the session raised {reason(error)}; commands may not do that"
        )
    if problem:
        return CheckResult(hostile.name, "invalid", problem)
    return CheckResult(hostile.name, "valid", summary)


async def _play(sandbox: Sandbox, hostile: Hostile) -> tuple[str, str]:
    """Run hostile commands in a session; return what is wrong with it, or "", and a summary."""
    session = await sandbox.session(limits=LIMITS)
    try:
        honest = await session.exec(HONEST)
        verdict = await _judged(session, hostile)
        results = [
            await session.exec(command, input="x\n", timeout=hostile.timeout)
            for command in hostile.commands
        ]
        summary = ", ".join(map(_summary, results))
        if any(FREE in result.stdout.split() for result in results):
            return f"an attack has worked: {summary}", summary
        if hostile.statuses and results[0].status not in hostile.statuses:
            expected = " or ".join(hostile.statuses)
            return f"the first command should end with {expected}: {summary}", summary
        if (await _judged(session, hostile)) != verdict:
            return "a file that the policy left ran in a command of the verdict", summary
        return await _spoilt(session, honest, fills=hostile.fills), summary
    finally:
        await session.close()


async def _judged(session: Session, hostile: Hostile) -> str:
    """Return the output of the command that is run for a verdict, if there is one."""
    if not hostile.judges:
        return ""
    verdict = Call(math.inf)
    verdict.verifies = True
    with verdict.current():
        return (await session.exec(hostile.judges)).stdout


async def _spoilt(session: Session, honest: CommandResult, *, fills: bool) -> str:
    """Return what a verifier finds wrong in the session after hostile commands, or ""."""
    for path in TRAPS:
        await session.read(path, limit=1000)
    await session.write(dict.fromkeys(TRAPS, _CONTENT))
    after = await session.exec(HONEST)
    if fills and after.status == "no_result":
        return ""
    if (after.status, after.stdout) != ("ok", honest.stdout):
        return f"an honest command in the session was disturbed: {_summary(after)}"
    contents = [await session.read(path) for path in TRAPS]
    if contents != [_CONTENT.encode()] * len(TRAPS):
        return f"files of the verifier were not written as they are: {contents}"
    return ""


async def _disturbed(sandbox: Sandbox, neighbour: Session, first: CommandResult) -> str:
    """Return what was disturbed outside of the hostile session, or ""."""
    beside = await neighbour.exec("cat kept")
    if (beside.status, beside.stdout) != ("ok", _KEPT):
        return f"a session beside it was disturbed: {_summary(beside)}"
    later = await _first_output(sandbox)
    if (later.status, later.stdout) != (first.status, first.stdout):
        return f"the next session was disturbed: {_summary(later)}"
    return ""


def _summary(result: CommandResult) -> str:
    parts: Sequence[str] = (
        result.status,
        "" if result.exit_code is None else str(result.exit_code),
        result.stdout[:30].strip(),
        result.error[:60],
    )
    return " ".join(" ".join(parts).split())
