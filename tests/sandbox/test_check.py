"""`grpo sandbox check`: a good back end passes, and whatever a bad one does is found."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from typer.testing import CliRunner

from grpo_core import Outcome, Program
from grpo_core.cli.app import app
from grpo_core.verify.examining import CheckResult
from grpo_kit.sandboxes.check import check_sandbox
from grpo_kit.sandboxes.hostile import THIEF, VICTIM
from grpo_kit.sandboxes.programs import CHECKS, HONEST, UNDISTURBED, VALUES

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
        if name == "values":
            return self._twist(name, Outcome("ok", VALUES[place]))
        return self._twist(name, GOOD.get(name, Outcome("exception", error="no")))

    async def close(self) -> None:
        """Nothing to give back."""


def checked(**changed: Outcome) -> dict[str, CheckResult]:
    """Return the results of a sandbox with other outcomes of some programs, spaces as underscores."""

    def twist(name: str, outcome: Outcome) -> Outcome:
        return changed.get(name.replace(" ", "_"), outcome)

    results = asyncio.run(check_sandbox(Scripted(twist)))
    return {result.check: result for result in results}


def problems(**changed: Outcome) -> set[str]:
    return {name for name, found in checked(**changed).items() if found.status == "invalid"}


def test_a_good_sandbox_has_no_problem() -> None:
    assert problems() == set()


@pytest.mark.parametrize("check", [*(check.name for check in CHECKS), "values"])
def test_a_check_finds_the_sandbox_that_lets_its_program_do_as_it_likes(check: str) -> None:
    odd = {"processes": 1000, "environment": "seen", "writing elsewhere": ["/etc"], "values": "1"}
    free = Outcome("ok", odd.get(check, 99))
    bad = Outcome("infra_error") if check in ("other processes", "attributes that stay") else free
    assert problems(**{check.replace(" ", "_"): bad}) == {check}


def test_a_sandbox_whose_programs_disturb_the_next_one_fails_every_check_of_that() -> None:
    left = Outcome("ok", (2, ["left"], []))
    assert problems(honest=left) == {*(check.name for check in CHECKS), "neighbours"}


def test_marks_of_an_earlier_call_in_a_programs_memory_are_found_and_named() -> None:
    stolen = Outcome("ok", ["kf1111111111111111zz", "kf5555555555555555zz"])
    found = checked(earlier_calls=stolen)["earlier calls"]
    assert found.status == "invalid"
    assert found.message == "a program found data of another one in its memory: source, returned"


def test_what_cannot_be_told_is_not_called_a_success_or_a_failure() -> None:
    broken = Outcome("exception", error="no ctypes")
    assert checked(earlier_calls=broken)["earlier calls"].status == "not_checked"
    by_process = checked(several=Outcome("ok", 4))["memory of several"]
    assert by_process.status == "not_checked"
    assert "holds for each process" in by_process.message


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
