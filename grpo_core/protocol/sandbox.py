"""What an environment may ask of a sandbox: run programs nobody trusts and get machine-readable outcomes. Types only."""

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
    """What a call may use; beyond it the call ends with the matching status, which is the program's own fault.

    total_seconds: wall time of all calls of a program together; None: the sandbox decides. Inputs
    for which nothing is left are not run and count as timeout_wall.
    """

    cpu_seconds: float = 2.0
    wall_seconds: float = 5.0
    memory_mb: int = 256
    output_bytes: int = 64_000
    result_bytes: int = 64_000
    processes: int = 16
    file_mb: int = 8
    total_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """Source text and the function in it that is called once per input; every call sees one input and nothing else."""

    source: str
    entry: str
    inputs: Sequence[Sequence[Any]]
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call ended.

    value: what the program CLAIMS, decoded from size- and depth-capped JSON; only the caller judges it.
    suspected: the outcome rests on repeated failures, not on evidence. It counts, but the sandbox
    keeps what is concluded from it out of caches (`grpo_core.current_call().keep_out_of_caches()`).
    """

    status: Status
    value: Any = None
    error: str = ""
    stdout: str = ""
    stderr: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    suspected: bool = False


class Sandbox(Protocol):
    """Runs programs. An `infra_error` outcome is never the program's fault; everything else is.

    What decides an outcome beside the program is part of a run's fingerprint: the text that `fingerprint()` gives, where a sandbox has that
    method, else its class and its `config`.
    """

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        """Return one list of outcomes per program, one outcome per input, in order.

        Callers wait when the sandbox is full, or unavailable for a while; the clock of
        `grpo_core.current_call()` is stopped meanwhile. It may give up a program that keeps running out
        of time or that keeps ending its jail: later inputs then get the status of the last one.
        """
        ...

    async def close(self) -> None: ...
