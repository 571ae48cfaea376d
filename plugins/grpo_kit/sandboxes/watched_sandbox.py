"""A sandbox whose sessions are watched: what is written and run in them, and which stay open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_core import (
    CommandResult,
    Environment,
    Limits,
    Outcome,
    Program,
    Sandbox,
    Services,
    Session,
)

AfterCommand = Callable[[str, bool], Awaitable[None]]
"""Is told a command as text, and whether it runs a program of the policy."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that the environment wrote into a session."""

    path: str
    content: bytes
    is_early: bool
    """Whether it was written before the verdict was asked for."""


@dataclass(slots=True)
class WatchedSandbox:
    """Wrap the sandbox of an environment, and watch its sessions; the owner closes the sandbox."""

    sandbox: Sandbox
    sessions: list[WatchedSession] = field(default_factory=list)
    """The sessions that were opened."""

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        """Pass a call on."""
        return await self.sandbox.run(programs)

    async def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        image: str | None = None,
        limits: Limits | None = None,
        socket: str | Path | None = None,
    ) -> Session:
        """Open a session, and watch it."""
        session = WatchedSession(
            await self.sandbox.session(files, image=image, limits=limits, socket=socket)
        )
        session.note(files or {})
        self.sessions.append(session)
        return session

    async def close(self) -> None:
        """Do nothing: the sandbox is borrowed."""


@dataclass(slots=True, eq=False)
class WatchedSession:
    """Wrap a session; record what the environment writes and what its verdict runs and reads."""

    session: Session
    is_judging: bool = False
    """Whether the verdict was asked for."""
    is_open: bool = True
    written: list[Written] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    """The commands that the verdict ran, and the paths that it read, as texts."""
    after: AfterCommand | None = None
    """Is called after each command of the verdict."""
    read_last: list[str] = field(default_factory=list)
    """The paths of files that the verdict read."""

    def note(self, files: Mapping[str, str | bytes]) -> None:
        """Note that the environment wrote these files."""
        self.written += [
            Written(
                path,
                content if isinstance(content, bytes) else content.encode("utf-8", "replace"),
                not self.is_judging,
            )
            for path, content in files.items()
        ]

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        input: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - passed on
        of_policy: bool = False,
    ) -> CommandResult:
        """Run a command, and note it if the verdict does."""
        text = command if isinstance(command, str) else " ".join(command)
        if self.is_judging:
            self.commands.append(text)
        further = {"of_policy": True} if of_policy else {}
        result = await self.session.exec(command, input=input, timeout=timeout, **further)
        if self.is_judging and self.after is not None:
            await self.after(text, of_policy)
        return result

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write files, and note them."""
        self.note(files)
        await self.session.write(files)

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        """Return the content of a file; one that the verdict reads counts as used by it."""
        if self.is_judging:
            self.commands.append(path)
            self.read_last.append(path)
        return await self.session.read(path, limit=limit)

    async def close(self) -> None:
        """Close the session."""
        self.is_open = False
        await self.session.close()


def with_watched_sandboxes(
    env: Environment[Any],
) -> tuple[Environment[Any], list[WatchedSandbox]]:
    """Return a copy of an environment whose sandboxes are watched, and these."""
    watched = {name: WatchedSandbox(box) for name, box in env.services.sandboxes.items()}
    services: Services = replace(env.services, sandboxes=watched)
    return type(env)(env.config, services), list(watched.values())
