"""What a second process sees of an environment: the same tasks and verdicts, and what judging does beside judging."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from grpo_core.calls.deadline import DeadlineError, in_thread, within
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import Subject, got, place, shown
from grpo_core.kit.texts import EXECUTABLE
from grpo_core.kit.verdicts import ordinary
from grpo_core.kit.witness import digest
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Verdict
from grpo_core.verify.hosts import boot_message

_SECONDS = 120.0
_REFERENCE_SECONDS = 1.0
"""A reference that takes longer is not asked for in the second process."""
_PIPES_SECONDS = 5.0
_HASH_SEED = "20261"
_EACH = 20
"""Of what was left behind: so much comes from every verdict, less may be a pool that was opened once."""
_GROWTH_MB = 24.0
_GROWTH_KB_EACH = 50.0


class Second:
    """Asked once, when a check first wants to know. spec: how the process finds the environment, if not by its class."""

    def __init__(self, subject: Subject, spec: Spec | None) -> None:
        self._subject = subject
        self._spec = spec
        self._found: Mapping[str, Any] | None = None
        self._why = ""

    async def found(self, *, verdicts: bool = True) -> Mapping[str, Any]:
        """What it reported; raises NotCheckedError where the environment cannot be taken there."""
        if self._found is None and not self._why:
            self._why = "the second process did not come to an end"  # asked once, told once
            await self._ask()
        if self._found is None:
            raise NotCheckedError(self._why)
        if verdicts and self._subject.env.needs:
            raise NotCheckedError(
                "its verdicts come from services, which a second process does not share"
            )
        return self._found

    async def _ask(self) -> None:
        subject = self._subject
        if not subject.tasks:
            self._why = "there are no tasks in the train split"
            return
        try:
            boot = boot_message(
                subject.env, self._spec, subject.settings if self._spec is not None else None
            )
        except ConfigError as error:
            self._why = str(error)
            return
        attempts = [] if subject.env.needs else ordinary(subject)[::-1]
        executable = [
            (task, whole)
            for task in subject.tasks[:2]
            for text in EXECUTABLE
            for whole in subject.inside(text)
        ]
        request = {
            "boot": boot,
            "references": subject.reference_seconds < _REFERENCE_SECONDS
            and not subject.reference_error,
            "keys": [asdict(task.key) for task in reversed(subject.tasks)],
            "attempts": [[_place(task), text] for task, text in attempts],
            "executable": []
            if subject.env.needs
            else [[_place(task), text] for task, text in executable],
        }
        try:
            status, output, errors = await within(_heard(json.dumps(request)), _SECONDS)
        except DeadlineError:
            self._why = f"the second process took more than {_SECONDS:g} s"
            return
        except NotCheckedError as error:
            self._why = str(error)
            return
        if status == -signal.SIGKILL:
            self._why = "the second process was killed, as happens where memory is short"
            return
        if status or not output:
            last = (errors.strip().splitlines() or ["no output"])[-1]
            self._why = f"in a process of its own it ended with status {status}: {last}"
            raise BrokenPromiseError(self._why)
        found = json.loads(output)
        if "unbuilt" in found:
            self._why = f"a second process cannot build it: {found['unbuilt']}"
        else:
            self._found = found


def _place(task: Any) -> list[Any]:
    return [task.key.split, task.key.index, task.key.level]


async def _heard(request: str) -> tuple[int, str, str]:
    """Status, output and errors of the second process."""
    with _witness() as process:
        # In threads: asyncio closes its pipes some time after the process ended, which a loop that Ctrl-C ends no longer does.
        told = asyncio.ensure_future(in_thread(process.communicate, request.encode()))
        await in_thread(process.wait)
        _end(process)  # what it left behind holds its pipes open
        if not (await asyncio.wait({told}, timeout=_PIPES_SECONDS))[0]:
            raise NotCheckedError(
                "the second process started one that left its process group and holds its output open"
            )
        output, errors = told.result()
    return process.returncode, output.decode(), errors.decode(errors="replace")


@contextlib.contextmanager
def _witness() -> Iterator[subprocess.Popen[bytes]]:
    """The second process, which is gone afterwards, with whatever it left behind."""
    with tempfile.TemporaryDirectory(prefix="grpo-kit-", ignore_cleanup_errors=True) as folder:
        importable = os.pathsep.join(map(os.path.abspath, sys.path))
        environ = os.environ | {
            "PYTHONHASHSEED": _HASH_SEED,
            "TMPDIR": folder,
            "PYTHONPATH": importable,
        }
        command = [sys.executable, "-P", "-m", "grpo_core.kit.witness", str(os.getpid())]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                _end(process)
            process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def same_tasks(second: Second, subject: Subject) -> str:
    found = await second.found(verdicts=False)
    prompts = found["prompts"]
    for task, told in zip(reversed(subject.tasks), prompts, strict=True):
        if digest(task) != told:
            raise BrokenPromiseError(
                f"{place(task)} has another prompt in a process with another PYTHONHASHSEED; do not iterate over sets, nor use "
                "hash(), id() or the time"
            )
    for task, here, there in zip(
        reversed(subject.tasks),
        reversed(subject.references),
        found["references"] or (),
        strict=False,
    ):
        if here != there:
            raise BrokenPromiseError(
                f"the reference of {place(task)} is {shown(here)} in one process and {shown(there)} in one with another PYTHONHASHSEED; "
                "do not iterate over sets"
            )
    return f"{len(prompts)} tasks are the same in another process with another PYTHONHASHSEED"


async def same_verdicts(second: Second, subject: Subject) -> str:
    if not subject.env.deterministic:
        raise NotCheckedError("the environment says that it is not deterministic")
    told = (await second.found())["verdicts"]
    attempts = ordinary(subject)[::-1][: len(told)]  # as many as there was time for
    for (task, text), here, there in zip(
        attempts, await subject.verdicts(attempts), told, strict=True
    ):
        if isinstance(there, str):
            raise BrokenPromiseError(
                f"the answer {shown(text)} at {place(task)} {got(here)}, and in another process it ended so: {there}"
            )
        elsewhere = Verdict.from_json({**there, "metrics": {}, "detail": {}})
        if here.scored and (here.rewards, here.passed, here.answer) != (
            elsewhere.rewards,
            elsewhere.passed,
            elsewhere.answer,
        ):
            raise BrokenPromiseError(
                f"the answer {shown(text)} at {place(task)} {got(here)}, and in a process with another PYTHONHASHSEED it {got(elsewhere)}"
            )
    return (
        f"{len(told)} attempts got the same verdicts in another process with another PYTHONHASHSEED"
    )


async def executed(second: Second, subject: Subject) -> str:
    deeds = (await second.found())["deeds"]
    if "eval" in deeds:
        raise BrokenPromiseError(
            f"the verifier executed what the policy wrote ({deeds['eval']}): no eval(), exec() or sympy's parser on answers; "
            "parse, or use a sandbox"
        )
    return f"{len(EXECUTABLE)} answers that are code were not executed"


async def network(second: Second, subject: Subject) -> str:
    deeds = (await second.found())["deeds"]
    if "network" in deeds:
        raise BrokenPromiseError(
            f"the verifier used the network ({deeds['network']}); bring the data along, or ask a service"
        )
    return "judging used no network"


async def files(second: Second, subject: Subject) -> str:
    left: list[str] = (await second.found())["files"]
    if len(left) >= _EACH:
        raise BrokenPromiseError(
            f"judging left {len(left)} files or more behind, such as {left[0]!r}; write into a folder that is removed"
        )
    return "judging left no files behind"


async def processes(second: Second, subject: Subject) -> str:
    found = await second.found()
    for kind in ("processes", "threads", "open files"):
        left = _left(found, kind)
        if len(left) >= _EACH:
            raise BrokenPromiseError(
                f"judging left {len(left)} {kind} or more behind, such as {left[-1]!r}; close what a verdict opened"
            )
    return "judging left no processes, threads or open files behind"


def _left(found: Mapping[str, Any], kind: str) -> list[str]:
    if found["left"] is None:
        raise NotCheckedError("this platform does not tell what a process holds")
    left: list[str] = found["left"][kind]
    return left


async def memory(second: Second, subject: Subject) -> str:
    growth = (await second.found())["growth"]
    if growth is None:
        raise NotCheckedError("this platform does not tell how much memory a process has")
    each = 1000 * growth["mb"] / growth["verdicts"]
    if growth["mb"] > _GROWTH_MB and each > _GROWTH_KB_EACH:
        raise BrokenPromiseError(
            f"{growth['verdicts']} verdicts left {growth['mb']:.0f} MB behind, {each:.0f} kB each; something keeps them"
        )
    return f"{growth['verdicts']} verdicts changed the process by {growth['mb']:+.1f} MB"
