"""A second process that makes the same tasks and verdicts in other surroundings.

`grpo_kit.process.observer` is that process; the checks that read its report are in
`grpo_kit.process.elsewhere` and `grpo_kit.process.side_effects`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, Spec, Task
from grpo_core.api.calls import in_thread
from grpo_core.calls.child import PARENT_PID, Child, Ending
from grpo_kit.dialogues.agent_accesses import AgentAccesses
from grpo_kit.dialogues.players import require_available
from grpo_kit.process.second_request import addressed, make_request
from grpo_kit.process.surroundings import (
    FRAGILE,
    SURROUNDINGS,
    Places,
    date_shift,
    environ_with,
    machine_name,
)
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Attempt, Subject

_SECONDS = 120.0
"""The timeout of the second process."""
_CULPRIT_SECONDS = 40.0
"""No further surrounding is examined after this time."""
_ONE_SECONDS = 8.0
"""No surrounding is examined if one process takes longer."""


class SecondProcess:
    """A process that runs once, while other checks run.

    Args:
        subject: The environment with its tasks.
        spec: How the process finds the environment; by default by its class.
    """

    def __init__(self, subject: Subject, spec: Spec | None) -> None:
        self._subject = subject
        self._spec = spec
        self._running: asyncio.Task[Mapping[str, Any]] | None = None
        self._told = False
        """Whether a check has reported that the environment ended the process."""
        self._accesses: AgentAccesses | None = None
        self.unchanged: Mapping[str, str] = {}
        """Surroundings that stayed as they are, and why."""

    def start(self) -> None:
        """Start the process, if it was not started."""
        if self._running is None:
            self._running = asyncio.ensure_future(self._run_with_fallback())

    async def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running
        if self._accesses is not None:
            await self._accesses.close()

    async def report(self, *, verdicts: bool = True) -> Mapping[str, Any]:
        """Return what the process reported.

        Args:
            verdicts: Whether the caller reads results of verdicts.

        Raises:
            NotCheckedError: There is no report, or no verdicts in it.
            BrokenPromiseError: The environment ended the process; only the first call raises this.
        """
        self.start()
        assert self._running is not None
        try:
            report = await asyncio.shield(self._running)
        except ConfigError as error:
            raise NotCheckedError(str(error)) from None
        except BrokenPromiseError as error:
            if self._told:
                raise NotCheckedError(str(error)) from None
            self._told = True
            raise
        if verdicts and self._subject.services:
            raise NotCheckedError(
                "its verdicts come from services, which a second process does not share"
            )
        if verdicts and self._subject.has_agents:
            require_available(self._subject)
        return report

    def forget(self) -> None:
        """Make the next call of `report` raise again if the environment ended the process."""
        self._told = False

    @property
    def changed(self) -> str:
        """Return the surroundings that are other ones, for messages."""
        kept_folder = {"working directory"} if self._subject.env.trusted else set()
        names = [name for name in SURROUNDINGS if name not in {*self.unchanged, *kept_folder}]
        kept = ""
        if self.unchanged:
            kept = f" (not with another {next(iter(self.unchanged))}: it failed there, "
            kept += f"{next(iter(self.unchanged.values()))})"
        return f"{', '.join(names[:-1])} and {names[-1]}{kept}"

    async def _run_with_fallback(self) -> Mapping[str, Any]:
        """Return the report; where the environment fails in new surroundings, with fewer of them.

        Raises:
            ConfigError: Another process cannot build the environment.
            NotCheckedError: There is no report, without a fault of the environment.
            BrokenPromiseError: The environment ended the process.
        """
        request = await make_request(self._subject, self._spec)
        report = await self._run({**request, "agents": await self._agents()}, SURROUNDINGS)
        failure = _failure(report)
        if failure:
            kept = FRAGILE if "build_error" in report else {"home folder"}
            request = {**request, "agents": await self._agents()}
            again = await self._run(request, set(SURROUNDINGS) - kept)
            if not _failure(again):
                self.unchanged = dict.fromkeys(sorted(kept), failure)
                return again
        if "build_error" in report:
            raise NotCheckedError(f"a second process cannot build it: {report['build_error']}")
        return report

    async def _run(
        self, request: Mapping[str, Any], changed: Collection[str], root: Path | None = None
    ) -> Mapping[str, Any]:
        """Run a process in which these surroundings are other ones, and return its report.

        Args:
            request: What it is to do.
            changed: Names of `SURROUNDINGS`.
            root: Where its folders are; by default in a temporary folder, which is removed.
        """
        with tempfile.TemporaryDirectory(prefix="grpo-kit-", ignore_cleanup_errors=True) as folder:
            places = Places.inside(root or Path(folder), changed)
            told = {
                **request,
                "date_shift": date_shift(changed),
                "machine": machine_name(changed),
                "locale": "locale" in changed,
                "working": str(places.working),
                "folders": list(map(str, (places.working, places.home, places.temporary))),
            }
            ending = await _communicate(json.dumps(told), environ_with(changed, places))
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
        return report

    async def _agents(self) -> dict[str, Any] | None:
        """Return the runs of agents that the process is to make; None if it makes none."""
        subject = self._subject
        if not subject.has_agents or subject.services or subject.unavailable:
            return None
        self._accesses = self._accesses or AgentAccesses(subject)
        return await self._accesses.plan()

    async def culprit(
        self,
        tasks: Sequence[Task[Any]],
        attempts: Sequence[Attempt],
        outcome: Callable[[Mapping[str, Any]], object],
    ) -> str:
        """Return which surrounding an outcome depends on, for a message, with advice.

        Processes in which some surroundings are other ones are compared with one in which none
        is, half of those that come into question each time.

        Args:
            tasks: The tasks that the processes make.
            attempts: The attempts that they judge.
            outcome: Returns from a report what is compared.
        """
        request = {
            **await make_request(self._subject, self._spec),
            "brief": True,
            "keys": [asdict(task.key) for task in tasks],
            "attempts": addressed(attempts),
            "calls": [],
            "executable": [],
            "wide": [],
        }
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="grpo-kit-", ignore_cleanup_errors=True) as folder:

            async def outcome_with(*changed: str) -> object:
                root = Path(folder) / "run"  # the same path each time
                try:
                    return outcome(await self._run(request, changed, root))
                finally:
                    shutil.rmtree(root, ignore_errors=True)

            unknown = f"in a process with another {self.changed}; it must not depend on any of them"
            try:
                usual = await outcome_with()
                if time.monotonic() - started > _ONE_SECONDS:
                    return unknown  # several more of these processes would take minutes
                if await outcome_with() != usual:
                    return (
                        "in every process; do not use the time of day, id(), process ids or "
                        "unseeded generators"
                    )
                names = list(SURROUNDINGS)
                while len(names) > 1 and time.monotonic() - started < _CULPRIT_SECONDS:
                    half = names[: len(names) // 2]
                    differs = await outcome_with(*half) != usual
                    names = half if differs else names[len(half) :]
                if len(names) == 1 and await outcome_with(*names) != usual:
                    article = "other" if names[0].endswith("variables") else "another"
                    return f"in a process with {article} {names[0]}; {SURROUNDINGS[names[0]]}"
            except (NotCheckedError, BrokenPromiseError):
                pass  # the difference is a fault, whatever it comes from
        return unknown


def _failure(report: Mapping[str, Any]) -> str:
    """Return why the environment failed in the process, or ""."""
    results = [*report.get("prompts", ()), *report.get("references", ())]
    failures = [str(result["error"]) for result in results if isinstance(result, Mapping)]
    return str(report.get("build_error") or "".join(failures[:1]))


async def _communicate(request: str, environ: Mapping[str, str]) -> Ending:
    """Send `request` to a second process and return how it ended, and what it wrote."""
    with Child(
        [sys.executable, "-P", "-m", "grpo_kit.process.observer", PARENT_PID], environ
    ) as child:
        # In a thread: asyncio closes pipes some time after the process ended, which no longer
        # happens if Ctrl-C ends the loop.
        return await in_thread(child.communicate, request.encode(), seconds=_SECONDS)
