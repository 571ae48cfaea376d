"""Define the interface of sandboxes.

Sandboxes run untrusted programs and report machine-readable outcomes. This module contains only
types; plugins implement them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from grpo_core.protocol.errors import ConfigError

Status = Literal[
    "ok",
    "exception",
    "timeout_cpu",
    "timeout_wall",
    "oom",
    "output_limit",
    "signal",
    "no_result",
    "bad_result",
    "infra_error",
]


SESSION_PORT = 8080
"""The port of 127.0.0.1 at which commands of a session reach the socket that it was opened with."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits the resources of each call.

    A call that exceeds a limit ends with the matching status, which is the program's own fault.
    """

    cpu_seconds: float = 2.0
    """The CPU time of a call."""
    wall_seconds: float = 5.0
    """The time from start to end of a call."""
    memory_mb: int = 256
    """The memory of a call, in MiB."""
    output_bytes: int = 64_000
    """The most bytes that the call may write to stdout, and as many to stderr."""
    result_bytes: int = 64_000
    """The most bytes that the returned value may take."""
    processes: int = 16
    """The most processes that may exist at once."""
    file_mb: int = 8
    """The largest size of a file that is written."""
    total_seconds: float | None = None
    """The wall time of all calls of a program together; None lets the sandbox decide.

    Inputs for which no time is left are not run and count as timeout_wall.
    """


@dataclass(frozen=True, slots=True)
class Program:
    """Describes a program and its inputs; each call sees one input and nothing else."""

    source: str
    """The source text, as the model wrote it: any characters, also NUL and half surrogate pairs."""
    entry: str
    """The name of the function in `source` that is called once per input."""
    inputs: Sequence[Sequence[Any]]
    """The positional arguments of each call."""
    limits: Limits = Limits()
    """The limits of each call."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Describes how one call ended."""

    status: Status
    """How the call ended; only "infra_error" is not the program's fault."""
    value: Any = None
    """The value that the program CLAIMS to return; only the caller can judge it.

    It is decoded from JSON whose size and depth are limited.
    """
    error: str = ""
    """What went wrong, in a few words; "" if nothing did."""
    stdout: str = ""
    """What the call wrote to standard output."""
    stderr: str = ""
    """What the call wrote to standard error."""
    cpu_seconds: float = 0.0
    """The CPU time that the call took."""
    wall_seconds: float = 0.0
    """The time from start to end of the call."""
    suspected: bool = False
    """The outcome rests on repeated failures, not on evidence.

    It counts, but the sandbox keeps every result that depends on it out of caches
    (`grpo_core.current_call().keep_out_of_caches()`).
    """


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Describes how one command of a session ended."""

    status: Status
    """How it ended: "ok", whatever its exit code, or which limit or signal ended it.

    "no_result" says that the command could not be started, as where there is no such program.
    Everything is the program's own fault; infrastructure that fails raises SandboxError.
    """
    exit_code: int | None = None
    """The exit code of a command that ended by itself, else None."""
    stdout: str = ""
    """What it wrote to standard output, up to the limit; bytes that are not UTF-8 are replaced."""
    stderr: str = ""
    """What it wrote to standard error, in the same form."""
    error: str = ""
    """What went wrong, in a few words; "" if nothing did."""
    cpu_seconds: float = 0.0
    """The CPU time that the command took."""
    wall_seconds: float = 0.0
    """The time from start to end of the command."""
    suspected: bool = False
    """The status rests on repeated failures, not on evidence; see `Outcome.suspected`."""


class Session(Protocol):
    """A jail with one folder that lives until it is closed, in which commands run one by one.

    What a command leaves in the folder is there for the next one; its processes are ended with it.
    There is no network, but for the socket that the session may have been opened with. Paths are
    relative to the folder.

    A jail that is lost is made again, with everything before applied again, so a command may run
    more than once. A command that ends the whole jail again and again ends the session: from then
    on `exec` returns its status, `read` returns None and `write` has no effect. So does a write for
    which commands have left no room, with the status "no_result": nothing runs afterwards that
    could take a file of the policy for one of the verifier.

    Commands that run while a verdict is asked for (`current_call().verifies`) are those of the
    verifier, and run isolated: nothing that the policy has left in the folder runs in them unless
    they name it. Their `HOME` and `TMPDIR` are an empty folder of their own, and Python finds
    neither packages of a user nor modules beside a script.

    In a session with a socket no command runs twice, since what it asked there cannot be taken
    back: once a command has begun, the loss of the jail is a SandboxError.

    All methods raise SandboxError where the infrastructure fails, and after `close`.
    """

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        input: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - the command is ended inside its jail
        of_policy: bool = False,
    ) -> CommandResult:
        """Run a command in the folder, and return how it ended.

        Args:
            command: a line for the shell, or a program and its arguments.
            input: what it reads from standard input.
            timeout: its wall time in seconds; None: `Limits.wall_seconds`, which is the most.
            of_policy: whether it runs a program of the policy, which finds its own home and modules
                also while a verdict is asked for. Never believe what it writes; compare it with
                what is not in the session.
        """
        ...

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write files, with the folders above them, in place of whatever is at their paths.

        Raises:
            ValueError: a path is absolute, empty, or leads out of the folder; a file is too large
                for the sandbox; or, before the first command, the files do not fit.
        """
        ...

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        """Return the content of a file; None if there is no regular file of at most `limit` bytes.

        Raises:
            ValueError: a path is absolute, empty, or leads out of the folder.
        """
        ...

    async def close(self) -> None:
        """End everything in the jail, and remove what it held; more than one call is harmless."""
        ...


class Sandbox(Protocol):
    """Runs programs. An `infra_error` outcome is never the program's fault; everything else is.

    A run's fingerprint includes whatever decides an outcome besides the program: the text that
    `fingerprint()` returns if the sandbox has that method, else its class and its `config`.
    """

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        """Return one list of outcomes per program, one outcome per input, in order.

        Callers wait while the sandbox is full or temporarily unavailable; the clock of
        `grpo_core.current_call()` is stopped meanwhile. The sandbox may give up a program that
        keeps running out of time or that keeps ending its jail: the remaining inputs then get the
        status of the last call.
        """
        ...

    async def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        image: str | None = None,
        limits: Limits | None = None,
        socket: str | Path | None = None,
    ) -> Session:
        """Open a session, which waits until a jail is free; the caller closes it.

        Args:
            files: the files of its folder, by path.
            image: what its jail holds besides the folder, as the sandbox names it; None: as usual.
            limits: limits of each command; `total_seconds` is the wall time of all commands.
            socket: path of a Unix socket of this machine that commands reach by TCP at port
                SESSION_PORT of 127.0.0.1, and nothing else of a network, such as that of an
                endpoint; None: they reach nothing. They then cannot listen themselves. An episode
                in a worker process may give only the socket of the endpoint that it was given.

        Raises:
            ConfigError: there is no such image or socket, or the sandbox has no sessions, as here
                by default.
            ValueError: a path is none inside the folder, or the files do not fit into it.
            SandboxError: the sandbox is unavailable.
        """
        raise ConfigError(
            f"the sandbox {type(self).__name__} has no sessions, which the environment needs; "
            "choose another one by sandbox.name"
        )

    async def close(self) -> None:
        """Release what the sandbox has opened."""
        ...
