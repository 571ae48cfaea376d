"""The check of sandboxes does not run programs that would end the processes of this machine."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from grpo_core import Outcome, Program
from grpo_kit.sandboxes.check import check_sandbox
from grpo_kit.sandboxes.programs import CHECKS


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


@pytest.mark.parametrize("status", ["exception", "no_result", "infra_error"])
def test_no_hostile_program_is_run_where_it_is_not_known_what_programs_reach(status: Any) -> None:
    sandbox = Failing(Outcome(status, error="broken"))
    results = {result.check: result for result in asyncio.run(check_sandbox(sandbox))}
    assert f"ended with {status} broken" in results["other processes"].message
    assert not set(sandbox.sources) & {check.source for check in CHECKS}


def test_a_sandbox_that_raises_is_a_result_and_no_traceback() -> None:
    sandbox = Failing(None)
    results = {result.check: result for result in asyncio.run(check_sandbox(sandbox))}
    assert "run() raised ValueError: no machine" in results["values"].message
    assert "run() raised ValueError: no machine" in results["other processes"].message
    assert not set(sandbox.sources) & {check.source for check in CHECKS}


class Failing(Open):
    """Runs nothing: every program has the same outcome, or raises if that is None."""

    def __init__(self, outcome: Outcome | None) -> None:
        super().__init__()
        self._given = outcome

    def _outcome(self, program: Program, arguments: Sequence[Any]) -> Outcome:
        if self._given is None:
            raise ValueError("no machine")
        return self._given
