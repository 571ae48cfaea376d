"""`grpo sandbox check`: a good back end passes, and whatever a bad one does is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from typer.testing import CliRunner

from grpo_core import Outcome, Program
from grpo_core.cli.app import app
from grpo_core.kit.hostile import THIEF, VICTIM
from grpo_core.kit.sandbox import check_sandbox
from grpo_core.kit.sandbox_programs import CHECKS, HONEST, UNDISTURBED, VALUES

from .test_backends import backend as backend

GOOD = {
    "CPU time": Outcome("timeout_cpu"),
    "wall clock": Outcome("timeout_wall"),
    "memory": Outcome("oom"),
    "output": Outcome("output_limit"),
    "result": Outcome("bad_result"),
    "processes": Outcome("ok", 5),
    "environment": Outcome("ok"),
    "writing elsewhere": Outcome("ok", []),
    "other processes": Outcome("ok"),
    "leaving": Outcome("no_result"),
    "equal to everything": Outcome("bad_result"),
    "daemon": Outcome("ok", 1),
    "files that stay": Outcome("ok", 1),
    "ignored signals": Outcome("timeout_wall"),
    "crash": Outcome("signal"),
    "its own end": Outcome("signal"),
    "attributes that stay": Outcome("ok", 1),
    "answers on disk": Outcome("ok", []),
    "earlier calls": Outcome("ok", []),
}
NAME_OF = {check.source: check.name for check in CHECKS}


class Scripted:
    """Does what a good sandbox does, but for what `twist` says."""

    def __init__(self, twist: Callable[[str, Outcome], Outcome]) -> None:
        self._twist = twist

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        return [
            [self._one(program, place) for place in range(len(program.inputs))]
            for program in programs
        ]

    def _one(self, program: Program, place: int) -> Outcome:
        if program == HONEST:
            return self._twist("honest", Outcome("ok", UNDISTURBED))
        if program.source in (VICTIM, THIEF):
            return self._twist("earlier calls", GOOD["earlier calls"])
        name = NAME_OF.get(program.source, "several" if "readers" in program.source else "values")
        value = (
            Outcome("ok", VALUES[place]) if name == "values" else Outcome("exception", error="no")
        )
        return self._twist(name, GOOD.get(name, value))

    async def close(self) -> None:
        """Nothing to give back."""


def problems(twist: Callable[[str, Outcome], Outcome]) -> set[str]:
    return {
        result.check
        for result in asyncio.run(check_sandbox(Scripted(twist)))
        if result.status == "invalid"
    }


def test_a_good_sandbox_has_no_problem() -> None:
    assert problems(lambda name, outcome: outcome) == set()


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_a_check_finds_the_sandbox_that_lets_its_program_do_as_it_likes(check: str) -> None:
    free = Outcome(
        "ok",
        {"processes": 1000, "environment": "seen", "writing elsewhere": ["/etc"]}.get(check, 99),
    )
    bad = Outcome("infra_error") if check in ("other processes", "attributes that stay") else free
    assert problems(lambda name, outcome: bad if name == check else outcome) == {check}


def test_a_sandbox_whose_programs_disturb_the_next_one_fails_every_check_of_that() -> None:
    left = Outcome("ok", (2, ["left"], []))
    assert problems(lambda name, outcome: left if name == "honest" else outcome) == {
        *(check.name for check in CHECKS),
        "neighbours",
    }


def test_values_of_another_type_are_found() -> None:
    assert problems(
        lambda name, outcome: Outcome("ok", str(outcome.value)) if name == "values" else outcome
    ) == {"values"}


def test_marks_of_an_earlier_call_in_a_programs_memory_are_found_and_named() -> None:
    stolen = Outcome("ok", ["kf1111111111111111zz", "kf5555555555555555zz"])
    results = asyncio.run(
        check_sandbox(
            Scripted(lambda name, outcome: stolen if name == "earlier calls" else outcome)
        )
    )
    (result,) = [result for result in results if result.status == "invalid"]
    assert (result.check, result.message) == (
        "earlier calls",
        "a program found data of another one in its memory: source, returned",
    )


def test_a_search_that_cannot_be_made_is_not_called_a_success() -> None:
    broken = Outcome("exception", error="no ctypes")
    results = asyncio.run(
        check_sandbox(
            Scripted(lambda name, outcome: broken if name == "earlier calls" else outcome)
        )
    )
    assert [result.status for result in results if result.check == "earlier calls"] == [
        "not_checked"
    ]


def test_memory_that_is_only_limited_by_process_is_said_and_no_failure() -> None:
    results = asyncio.run(
        check_sandbox(
            Scripted(lambda name, outcome: Outcome("ok", 4) if name == "several" else outcome)
        )
    )
    (found,) = [result for result in results if result.check == "memory of several"]
    assert found.status == "not_checked"
    assert "holds for each process" in found.message


def test_the_settings_of_the_command_reach_the_sandbox() -> None:
    done = CliRunner().invoke(app, ["sandbox", "check", "--name", "bubblewrap", "--set", "jials=1"])
    assert done.exit_code == 2
    assert "did you mean 'sandbox.settings.jails'?" in done.output


@pytest.mark.heavy
def test_the_back_ends_pass(backend: str) -> None:
    done = CliRunner().invoke(app, ["sandbox", "check", "--name", backend])
    assert done.exit_code == 0, done.output
    assert "invalid" not in done.output
    assert done.output.count("valid") >= len(CHECKS)
