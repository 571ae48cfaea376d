"""The checks of sessions with a socket: a good sandbox passes, and whatever a bad one does is found."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core import CommandResult, ConfigError, Limits, SandboxError
from grpo_kit.sandboxes.session_sockets import check_session_sockets
from grpo_kit.sandboxes.socket_attacks import ATTACKS, CLIENT, NAME

Twist = Callable[[str, "Session"], CommandResult | None]
"""Returns what becomes of an attack, by its name, or of an honest program, by "honest"; None: as usual."""
NO = CommandResult("ok", 1, "", "OSError: no")


def fixed(source: str) -> str:
    """The beginning of an attack, up to what is filled in."""
    return source.partition("BESIDE")[0].partition("PORT")[0]


class Session:
    """Asks the socket itself where an honest program would."""

    def __init__(self, path: Path | None, source: str, twist: Twist) -> None:
        self.path, self._source, self._twist = path, source, twist
        self.kept: list[socket.socket] = []

    def connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        return connection

    async def exec(self, command: str | Sequence[str], **_: Any) -> CommandResult:
        name = "honest"
        if isinstance(command, str):
            source = self._source.removeprefix(CLIENT)
            (name,) = [each.name for each in ATTACKS if source.startswith(fixed(each.source))]
        if (twisted := self._twist(name, self)) is not None:
            return twisted
        if name != "honest":
            return CommandResult("ok", 0)
        if self.path is None:
            return NO
        with self.connected() as connection:
            connection.sendall(b"hello\n")
            return CommandResult("ok", 0, connection.makefile().readline())

    async def close(self) -> None:
        for connection in self.kept:
            connection.close()


class Scripted:
    def __init__(self, twist: Twist) -> None:
        self._twist = twist

    async def session(
        self,
        files: Mapping[str, str] | None = None,
        *,
        limits: Limits | None = None,
        socket: Path | None = None,
    ) -> Session:
        return Session(socket, (files or {}).get("attack.py", ""), self._twist)


def problems(twist: Twist) -> dict[str, str]:
    results = asyncio.run(check_session_sockets(Scripted(twist)))  # type: ignore[arg-type]
    return {result.check: result.message for result in results if result.status == "invalid"}


def test_a_good_sandbox_has_no_problem() -> None:
    assert problems(lambda name, session: None) == {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [attack.name for attack in ATTACKS])
def test_an_attack_that_works_is_found(name: str) -> None:
    free = CommandResult("ok", 0, "free ('x',)\n")
    found = problems(lambda at, session: free if at == name else None)
    assert found.keys() == {f"{NAME}: {name}"}
    assert "it reached more than the socket" in found[f"{NAME}: {name}"]


@pytest.mark.slow
def test_connections_that_stay_after_their_command_are_found() -> None:
    def twist(name: str, session: Session) -> None:
        if name == "many connections":
            session.kept = [session.connected() for _ in range(3)]

    found = problems(twist)
    assert "connections stay open" in found[f"{NAME}: many connections"]


def test_a_socket_that_is_taken_from_others_is_found() -> None:
    """An honest program beside an attack gets no answer while the attack's session lives."""
    taken = []

    def twist(name: str, session: Session) -> CommandResult | None:
        if name == "huge streams":
            taken.append(session)
        elif name != "honest":
            taken.clear()
        return NO if taken and name == "honest" and session is not taken[0] else None

    assert "beside it does not reach" in problems(twist)[f"{NAME}: huge streams"]


def test_what_grows_this_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(0, 10**6, 500))
    monkeypatch.setattr("grpo_kit.sandboxes.session_sockets._memory_mb", lambda: next(sizes))
    assert len(problems(lambda name, session: None)) == len(ATTACKS)


def test_a_session_without_a_socket_that_has_one_is_found() -> None:
    answer = CommandResult("ok", 0, "grpo\n")
    found = problems(lambda name, session: answer if session.path is None else None)
    assert found.keys() == {f"{NAME}: none asked for"}


def test_a_session_that_fails_is_found_and_one_that_takes_no_socket_is_not_checked() -> None:
    def fail(name: str, session: Session) -> None:
        if name == "names":
            raise SandboxError("the jail is gone")

    assert "programs may not do that" in problems(fail)[f"{NAME}: names"]
    assert "cannot be reached" in problems(lambda name, session: NO)[NAME]
    for sandbox in without():
        (result,) = asyncio.run(check_session_sockets(sandbox))
        assert result.status == "not_checked"


def without() -> Iterator[Any]:
    class Old:
        async def session(self, files: Any = None, *, limits: Any = None) -> Any:
            raise AssertionError

    class Refusing(Scripted):
        async def session(self, *_: Any, **__: Any) -> Any:
            raise ConfigError("it has none")

    yield object()
    yield Old()
    yield Refusing(lambda name, session: None)
