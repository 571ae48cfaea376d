"""Checks that compare an environment with a second process, and that observe its side effects.

The second process (`grpo_core.kit.observer`) makes the same tasks and verdicts, and reports what
else the verifier does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from grpo_core.calls.child import PARENT_PID, Child, Ending
from grpo_core.calls.deadline import in_thread
from grpo_core.calls.wire import prompt_digest
from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import Attempt, Subject, describe_verdict, task_label
from grpo_core.kit.texts import COMMANDS, EXECUTABLE
from grpo_core.kit.tool_calls import usable_tools
from grpo_core.kit.verdicts import comparable_fields, ordinary_attempts
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Verdict
from grpo_core.report.floors import shorten
from grpo_core.verify.hosts import boot_message

_SECONDS = 120.0
"""The timeout of the second process."""
_REFERENCE_SECONDS = 1.0
"""A reference that takes longer is not computed in the second process."""
_HASH_SEED = "20261"
"""The PYTHONHASHSEED of the second process."""
_LEAK_COUNT = 20
"""This many leftovers come from every verdict; fewer may be a pool that was opened once."""
_GROWTH_MB = 24.0
"""The check of memory fails if it grows by more than this in total and for each verdict (below)."""
_GROWTH_KB_PER_VERDICT = 50.0
"""The allowed growth for each verdict."""


class SecondProcess:
    """A process that runs once, when a check first needs its report.

    Args:
        subject: The environment with its tasks.
        spec: How the process finds the environment; by default by its class.
    """

    def __init__(self, subject: Subject, spec: Spec | None) -> None:
        self._subject = subject
        self._spec = spec
        self._report: Mapping[str, Any] | None = None
        self._failure = ""
        """Why there is no report; "" if there is one, or the process has not run."""

    async def report(self, *, verdicts: bool = True) -> Mapping[str, Any]:
        """Return what the process reported.

        Args:
            verdicts: Whether the caller reads results of verdicts.

        Raises:
            NotCheckedError: There is no report, or no verdicts in it.
            BrokenPromiseError: The environment ended the process; only the first call raises this.
        """
        if self._report is None and not self._failure:
            # stays if the run below is interrupted, so that the process is not started again
            self._failure = "the second process did not come to an end"
            try:
                self._report = await self._run()
            except (ConfigError, NotCheckedError) as error:
                self._failure = str(error)
            except BrokenPromiseError as error:
                self._failure = str(error)
                raise
        if self._report is None:
            raise NotCheckedError(self._failure)
        if verdicts and self._subject.env.needs:
            raise NotCheckedError(
                "its verdicts come from services, which a second process does not share"
            )
        return self._report

    async def _run(self) -> Mapping[str, Any]:
        """Run the process and return its report.

        Raises:
            ConfigError: Another process cannot build the environment.
            NotCheckedError: There is no report, without a fault of the environment.
            BrokenPromiseError: The environment ended the process.
        """
        ending = await _communicate(json.dumps(self._request()))
        if ending.status is None:
            raise NotCheckedError(f"the second process took more than {_SECONDS:g} s")
        if ending.status == -signal.SIGKILL:
            raise NotCheckedError("the second process was killed, as happens where memory is short")
        if ending.problem:
            raise NotCheckedError(f"the second process gave no report: {ending.problem}")
        if ending.status or not ending.output:
            last_line = (ending.last_words.splitlines() or ["no output"])[-1]
            raise BrokenPromiseError(
                f"in a process of its own it ended with status {ending.status}: {last_line}"
            )
        report: Mapping[str, Any] = json.loads(ending.output)
        if "build_error" in report:
            raise NotCheckedError(f"a second process cannot build it: {report['build_error']}")
        return report

    def _executable_calls(self) -> list[str]:
        """Return calls of tools whose arguments are code."""
        try:
            tools = usable_tools(self._subject.env)
        except NotCheckedError:  # the subject of tool.form
            return []
        if self._subject.env.needs:
            return []
        return [call for tool in tools for text in COMMANDS for call in tool.calls_with_text(text)]

    def _request(self) -> dict[str, Any]:
        """Return what the process is to build and to do.

        Raises:
            ConfigError: Another process cannot build the environment.
        """
        subject = self._subject
        attempts, executable = list[Attempt](), list[Attempt]()
        if not subject.env.needs:
            attempts = ordinary_attempts(subject)[::-1]
            executable = [
                (task, reply)
                for task in subject.tasks[:2]
                for text in EXECUTABLE
                for reply in subject.reply_variants(text)
            ]
        return {
            "boot": boot_message(
                subject.env, self._spec, None if self._spec is None else subject.settings
            ),
            "references": subject.reference_seconds < _REFERENCE_SECONDS
            and not subject.reference_error,
            "keys": [asdict(task.key) for task in reversed(subject.tasks)],
            "attempts": [[_task_address(task), text] for task, text in attempts],
            "calls": [
                [_task_address(task), call]
                for task in subject.tasks[:1]
                for call in self._executable_calls()
            ],
            "executable": [[_task_address(task), text] for task, text in executable],
        }


def _task_address(task: Any) -> list[Any]:
    """Return what names a task in the request to the process."""
    return [task.key.split, task.key.index, task.key.level]


async def _communicate(request: str) -> Ending:
    """Send `request` to a second process and return how it ended, and what it wrote."""
    with tempfile.TemporaryDirectory(prefix="grpo-kit-", ignore_cleanup_errors=True) as folder:
        environ = os.environ | {
            "PYTHONHASHSEED": _HASH_SEED,
            "TMPDIR": folder,
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        with Child(
            [sys.executable, "-P", "-m", "grpo_core.kit.observer", PARENT_PID], environ
        ) as child:
            # In a thread: asyncio closes pipes some time after the process ended, which no longer
            # happens if Ctrl-C ends the loop.
            return await in_thread(child.communicate, request.encode(), seconds=_SECONDS)


async def check_same_tasks(process: SecondProcess, subject: Subject) -> str:
    """Check that a second process makes the same prompts and references."""
    report = await process.report(verdicts=False)
    prompts = report["prompts"]
    for task, reported_digest in zip(reversed(subject.tasks), prompts, strict=True):
        if prompt_digest(task) != reported_digest:
            raise BrokenPromiseError(
                f"{task_label(task)} has another prompt in a process with another PYTHONHASHSEED; "
                "do not iterate over sets, nor use hash(), id() or the time"
            )
    for task, local_result, remote_result in zip(
        reversed(subject.tasks),
        reversed(subject.references),
        report["references"] or (),
        strict=False,
    ):
        if local_result != remote_result:
            raise BrokenPromiseError(
                f"the reference of {task_label(task)} is {shorten(local_result)} in one process "
                f"and {shorten(remote_result)} in one with another PYTHONHASHSEED; do not iterate "
                "over sets"
            )
    return f"{len(prompts)} tasks are the same in another process with another PYTHONHASHSEED"


async def check_same_verdicts(process: SecondProcess, subject: Subject) -> str:
    """Check that a second process gives the same verdicts."""
    if not subject.env.deterministic:
        raise NotCheckedError("the environment declares deterministic = False")
    verdicts = (await process.report())["verdicts"]
    # the process reports as many verdicts as it had time for
    attempts = ordinary_attempts(subject)[::-1][: len(verdicts)]
    for (task, text), local_result, remote_result in zip(
        attempts, await subject.verdicts(attempts), verdicts, strict=True
    ):
        if isinstance(remote_result, str):
            raise BrokenPromiseError(
                f"the answer {shorten(text)} at {task_label(task)} "
                f"{describe_verdict(local_result)}, and in another process failed: {remote_result}"
            )
        elsewhere = Verdict.from_json({**remote_result, "metrics": {}, "detail": {}})
        if local_result.scored and comparable_fields(local_result) != comparable_fields(elsewhere):
            raise BrokenPromiseError(
                f"the answer {shorten(text)} at {task_label(task)} "
                f"{describe_verdict(local_result)}, and in a process with another PYTHONHASHSEED "
                f"it {describe_verdict(elsewhere)}"
            )
    return (
        f"{len(verdicts)} attempts got the same verdicts in another process with another "
        "PYTHONHASHSEED"
    )


async def check_executed(process: SecondProcess, subject: Subject) -> str:
    """Check that the verifier does not execute text of the policy in its own process."""
    if execution := (await process.report())["side_effects"].get("eval"):
        raise BrokenPromiseError(
            f"the verifier executed what the policy wrote ({execution}): no eval(), "
            "exec() or sympy's parser on answers; parse, or use a sandbox"
        )
    return f"{len(EXECUTABLE)} answers that are code were not executed"


async def check_network(process: SecondProcess, subject: Subject) -> str:
    """Check that the verifier uses no network."""
    if use := (await process.report())["side_effects"].get("network"):
        raise BrokenPromiseError(
            f"the verifier used the network ({use}); bring the data along, or ask a service"
        )
    return "judging used no network"


async def check_files(process: SecondProcess, subject: Subject) -> str:
    """Check that judging leaves no files behind."""
    leftovers = (await process.report())["files"]
    if len(leftovers) >= _LEAK_COUNT:
        raise BrokenPromiseError(
            f"judging left {len(leftovers)} files or more behind, such as {leftovers[0]!r}; write "
            "into a folder that is removed"
        )
    return "judging left no files behind"


async def check_processes(process: SecondProcess, subject: Subject) -> str:
    """Check that judging leaves no processes, threads or open files behind."""
    leftovers = (await process.report())["leftovers"]
    if leftovers is None:
        raise NotCheckedError("this platform does not tell what a process holds")
    for kind, names in leftovers.items():
        if len(names) >= _LEAK_COUNT:
            raise BrokenPromiseError(
                f"judging left {len(names)} {kind} or more behind, such as {names[-1]!r}; close "
                "what a verdict opened"
            )
    return "judging left no processes, threads or open files behind"


async def check_memory(process: SecondProcess, subject: Subject) -> str:
    """Check that memory does not grow over many verdicts."""
    growth = (await process.report())["growth"]
    if growth is None:
        raise NotCheckedError("this platform does not tell how much memory a process has")
    kb_per_verdict = 1000 * growth["mb"] / growth["verdicts"]
    if growth["mb"] > _GROWTH_MB and kb_per_verdict > _GROWTH_KB_PER_VERDICT:
        raise BrokenPromiseError(
            f"{growth['verdicts']} verdicts left {growth['mb']:.0f} MB behind, "
            f"{kb_per_verdict:.0f} kB each; something keeps them"
        )
    return f"{growth['verdicts']} verdicts changed the process by {growth['mb']:+.1f} MB"
