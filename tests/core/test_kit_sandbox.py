"""The check of sandboxes does not run programs that would end the processes of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpo_core import Outcome, Program
from grpo_core.kit.sandbox import CHECKS, check_sandbox


class Open:
    """A sandbox that is none: programs run in this very process. It remembers their sources."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        self.sources += [program.source for program in programs]
        return [[self._outcome(program, given) for given in program.inputs] for program in programs]

    async def close(self) -> None:
        """Hold nothing."""

    def _outcome(self, program: Program, arguments: Sequence[Any]) -> Outcome:
        assert "kill(-1" not in program.source
        names: dict[str, Any] = {}
        exec(program.source, names)
        return Outcome("ok", names[program.entry](*arguments))


def test_a_sandbox_that_shows_our_processes_fails_and_runs_no_hostile_program() -> None:
    sandbox = Open()
    results = {result.check: result for result in asyncio.run(check_sandbox(sandbox))}
    assert results["other processes"].status == "invalid"
    assert "could end them" in results["other processes"].message
    assert {check.name for check in CHECKS} | {"neighbours", "earlier calls"} <= results.keys()
    not_run = {name for name, result in results.items() if result.status == "not_checked"}
    assert not_run == results.keys() - {"values", "other processes"}
    assert not set(sandbox.sources) & {check.source for check in CHECKS}
