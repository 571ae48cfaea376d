"""The check of sessions finds whatever a bad sandbox lets commands do."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from grpo_core import CommandResult, Limits, Outcome, Program, Sandbox, SandboxError
from grpo_core.testing import FakeSandbox
from grpo_kit.sandboxes.hostile_sessions import HOSTILE_SESSIONS, TRAPS
from grpo_kit.sandboxes.sessions import HONEST, HONEST_FIRST, check_sessions

NAME_OF = {hostile.commands[0]: hostile.name for hostile in HOSTILE_SESSIONS}
STATUS_OF = {
    hostile.commands[0]: hostile.statuses[0] for hostile in HOSTILE_SESSIONS if hostile.statuses
}
Twist = Callable[[str, Any], Any]
"""Returns what a bad sandbox gives instead, by the name of a check or "honest", "first", ..."""


class ScriptedSession:
    """Does what a good session does, but for what `twist` says."""

    def __init__(self, files: Mapping[str, str | bytes], twist: Twist) -> None:
        self._files = {path: str(content).encode() for path, content in files.items()}
        self._twist = twist
        self._name = ""

    async def exec(
        self,
        command: Any,
        *,
        input: str = "",
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> CommandResult:
        if command.startswith("kill -0"):
            return self._result("danger", CommandResult("ok", exit_code=3))
        if command == "cat kept":
            return self._result("beside", CommandResult("ok", 0, "of the neighbour\n"))
        if command in (HONEST, HONEST_FIRST):
            place = "first" if command == HONEST_FIRST else "after" if self._name else "before"
            return self._result(place, CommandResult("ok", 0, "first" if place == "first" else ""))
        self._name = NAME_OF.get(command, self._name)
        status: Any = STATUS_OF.get(command, "ok")
        return self._result(self._name, CommandResult(status, 0))

    def _result(self, place: str, result: CommandResult) -> CommandResult:
        twisted: CommandResult = self._twist(place, result)
        return twisted

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        self._files |= {path: str(content).encode() for path, content in files.items()}

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        content: bytes | None = self._twist("read", self._files.get(path))
        return content

    async def close(self) -> None:
        """Hold nothing."""


class Scripted(Sandbox):
    def __init__(self, twist: Twist) -> None:
        self._twist = twist

    async def run(self, programs: Any) -> Any:
        raise NotImplementedError

    async def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        image: str | None = None,
        limits: Limits | None = None,
    ) -> ScriptedSession:
        return ScriptedSession(files or {}, self._twist)

    async def close(self) -> None:
        """Hold nothing."""


def problems(twist: Twist) -> dict[str, str]:
    results = asyncio.run(check_sessions(Scripted(twist)))
    return {result.check: result.message for result in results if result.status == "invalid"}


def test_there_are_twenty_and_a_good_sandbox_passes_all() -> None:
    results = asyncio.run(check_sessions(Scripted(lambda place, result: result)))
    assert [result.status for result in results] == ["valid"] * len(HOSTILE_SESSIONS)
    assert len({result.check for result in results}) >= 20


@pytest.mark.parametrize("name", [hostile.name for hostile in HOSTILE_SESSIONS])
def test_an_attack_that_works_is_found(name: str) -> None:
    free = CommandResult("ok", 0, "free\n")
    assert problems(lambda place, result: free if place == name else result).keys() == {name}


@pytest.mark.parametrize("place", ["beside", "after", "read"])
def test_what_disturbs_others_or_a_verifier_fails_every_check(place: str) -> None:
    bad = b"of the policy" if place == "read" else CommandResult("ok", 0, "left")
    found = problems(lambda at, result: bad if at == place else result)
    assert len(found) == len(HOSTILE_SESSIONS)


def test_what_the_next_session_finds_of_the_one_before_is_found() -> None:
    firsts = iter(range(1000))

    def twist(place: str, result: Any) -> Any:
        return CommandResult("ok", 0, str(next(firsts))) if place == "first" else result

    assert "next session" in next(iter(problems(twist).values()))


def test_commands_that_make_an_error_of_a_session_are_found() -> None:
    def twist(place: str, result: Any) -> Any:
        if place == "session kill -1":
            raise SandboxError("the jail is gone")
        return result

    assert "commands may not do that" in problems(twist)["session kill -1"]


def test_no_hostile_command_runs_where_commands_see_this_process() -> None:
    places = []

    def twist(place: str, result: Any) -> Any:
        places.append(place)
        return CommandResult("ok", 0, "") if place == "danger" else result

    assert "could end them" in problems(twist)["sessions"]
    assert places == ["danger"]


def test_a_sandbox_without_sessions_is_not_checked() -> None:
    class Old:
        async def run(self, programs: list[Program]) -> list[list[Outcome]]:
            return []

    for sandbox in (FakeSandbox(lambda program, arguments: Outcome("ok")), Old()):
        (result,) = asyncio.run(check_sessions(sandbox))  # type: ignore[arg-type]
        assert result.status == "not_checked"
    assert len(TRAPS) == 2
