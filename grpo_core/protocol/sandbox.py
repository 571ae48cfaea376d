"""Define the interface of sandboxes.

Sandboxes run untrusted programs and report machine-readable outcomes. This module contains only
types; plugins implement them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

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

    async def close(self) -> None:
        """Release what the sandbox has opened."""
        ...
