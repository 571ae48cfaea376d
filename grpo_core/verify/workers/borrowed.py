"""Stand in for sandboxes and judges in a worker process: each call is made by the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from grpo_core.calls.service_wire import (
    Files,
    pack,
    pack_files,
    unpack,
    unpack_content,
    unpack_list,
)
from grpo_core.protocol.environment import Services
from grpo_core.protocol.judge import Judgement, JudgeRequest
from grpo_core.protocol.sandbox import CommandResult, Limits, Outcome, Program, Session

CallService = Callable[[str, str, Mapping[str, Any]], Awaitable[Any]]
"""Makes a call (service, method, arguments) and returns its result as JSON data."""


def borrowed_services(names: Mapping[str, Any], call: CallService) -> Services:
    """Return what stands in for the services of the host.

    Args:
        names: the lists of names `sandboxes`, and `judges` with their fingerprints.
        call: makes the calls.
    """
    return Services(
        sandboxes={name: BorrowedSandbox(name, call) for name in names.get("sandboxes", ())},
        judges={
            name: BorrowedJudge(name, text, call) for name, text in names.get("judges", {}).items()
        },
    )


def names_of(services: Services) -> dict[str, Any]:
    """Return the names of services as `borrowed_services` takes them."""
    judges = {name: judge.fingerprint() for name, judge in services.judges.items()}
    return {"sandboxes": list(services.sandboxes), "judges": judges}


class BorrowedSandbox:
    """Forward calls to a `Sandbox` of the host."""

    def __init__(self, name: str, call: CallService) -> None:
        self._name, self._call = name, call

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        """Return the outcomes of each program; see `Sandbox.run`."""
        arguments = {"name": self._name, "programs": pack(list(programs))}
        rows = await self._call("sandbox", "run", arguments)
        return [unpack_list(Outcome, row) for row in rows]

    async def session(
        self,
        files: Files | None = None,
        *,
        image: str | None = None,
        limits: Limits | None = None,
        socket: str | Path | None = None,
    ) -> Session:
        """Open a session; see `Sandbox.session`."""
        arguments = {
            "name": self._name,
            "files": pack_files(files or {}),
            "image": image,
            "limits": pack(limits),
            "socket": None if socket is None else str(socket),
        }
        handle = await self._call("sandbox", "session", arguments)
        return BorrowedSession(handle, self._call)

    async def close(self) -> None:
        """Do nothing: the host closes its sandbox."""


class BorrowedSession:
    """Forward calls to a `Session` of the host."""

    def __init__(self, handle: int, call: CallService) -> None:
        self._handle, self._call = handle, call

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        input: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - the command is ended inside its jail
        of_policy: bool = False,
    ) -> CommandResult:
        """Run a command; see `Session.exec`."""
        arguments = {
            "handle": self._handle,
            "command": command if isinstance(command, str) else list(command),
            "input": input,
            "timeout": timeout,
            "of_policy": of_policy,
        }
        return unpack(CommandResult, await self._call("session", "exec", arguments))

    async def write(self, files: Files) -> None:
        """Write files; see `Session.write`."""
        arguments = {"handle": self._handle, "files": pack_files(files)}
        await self._call("session", "write", arguments)

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        """Return the content of a file; see `Session.read`."""
        arguments = {"handle": self._handle, "path": path, "limit": limit}
        content = await self._call("session", "read", arguments)
        return None if content is None else cast(bytes, unpack_content(content))

    async def close(self) -> None:
        """End everything in the jail; see `Session.close`."""
        await self._call("session", "close", {"handle": self._handle})


class BorrowedJudge:
    """Forward calls to a `Judge` of the host."""

    def __init__(self, name: str, fingerprint: str, call: CallService) -> None:
        self._name, self._fingerprint, self._call = name, fingerprint, call

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """Return one judgement per request; see `Judge.judge`."""
        arguments = {"name": self._name, "requests": pack(list(requests))}
        return unpack_list(Judgement, await self._call("judge", "judge", arguments))

    def fingerprint(self) -> str:
        """Return the text that identifies the host's judge."""
        return self._fingerprint

    async def close(self) -> None:
        """Do nothing: the host closes its judge."""
