"""List programs by which a sandbox is checked, and how each has to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_core import Limits, Outcome, Program
from grpo_kit.sandboxes.hostile import SOURCES

LIMITS = Limits(
    cpu_seconds=1,
    wall_seconds=3,
    memory_mb=128,
    output_bytes=10_000,
    result_bytes=10_000,
    processes=8,
    file_mb=1,
)

HONEST = Program(
    "import os\ndef f(x): return x + 1, sorted(os.listdir('.')), list(getattr(os, 'listxattr', "
    "lambda _: [])('.'))",
    "f",
    [(1,)],
    LIMITS,
)

UNDISTURBED: tuple[int, list[str], list[str]] = (2, [], [])
"""The value of `HONEST`: x + 1, no files, no extended attributes."""

LOOK = """
import os
def f(pid):
    try: os.kill(pid, 0)
    except OSError: return None
    try: return f"{pid} {open(f'/proc/{pid}/stat').read().split()[21]}"
    except OSError: return True
"""
"""Returns the caller's number and when it was started, if the program can see and end it."""

SEARCH_LIMITS = Limits(cpu_seconds=10, wall_seconds=20)

VALUES = (
    None,
    True,
    1,
    2**100,
    0.5,
    "ä",
    b"\x00",
    [1, [2]],
    (1, (2,)),
    {1, 2},
    {"a": (1,), 2: None},
)


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """A hostile program and the outcome that a good sandbox gives."""

    name: str
    source: str
    is_contained: Callable[[Outcome], bool]
    """Returns whether an outcome is that of a good sandbox."""
    expectation: str
    """The outcome of a good sandbox, in words that follow "the program should"."""


def _ends(*statuses: str) -> Callable[[Outcome], bool]:
    """Return a test for outcomes of the given statuses."""
    return lambda outcome: outcome.status in statuses


def _fails(outcome: Outcome) -> bool:
    """Return whether the program failed by its own fault."""
    return outcome.status not in ("ok", "infra_error")


def _returns(value: object) -> Callable[[Outcome], bool]:
    """Return a test for outcomes with the given value."""
    return lambda outcome: outcome.status == "ok" and outcome.value == value


CHECKS: Sequence[ProgramCheck] = tuple(
    ProgramCheck(name, SOURCES[name], is_contained, expectation)
    for name, is_contained, expectation in (
        ("CPU time", _ends("timeout_cpu"), "end at the limit of CPU time"),
        ("wall clock", _ends("timeout_wall"), "end at the deadline"),
        ("memory", _ends("oom"), "end with oom"),
        ("output", _ends("output_limit"), "end at the limit of output"),
        ("result", _ends("bad_result"), "have its value refused"),
        ("file size", _fails, "not be able to write it"),
        ("folder size", _fails, "run out of room"),
        ("fork bomb", _fails, "be ended"),
        (
            "processes",
            lambda outcome: outcome.status == "ok" and outcome.value <= LIMITS.processes,
            "get no more than its processes",
        ),
        ("network", _fails, "not reach anything"),
        ("environment", _returns(None), "not see the caller's variables"),
        ("writing elsewhere", _returns([]), "write in its own folder only"),
        ("other processes", _ends("ok", "signal"), "reach no process but itself"),
        ("supervisor's memory", _fails, "not read it"),
        ("root", _fails, "not become it"),
        ("leaving", _ends("no_result"), "end without a result"),
        ("equal to everything", _ends("bad_result"), "be refused"),
        ("forged claim", _fails, "not have its claim accepted"),
        ("daemon", _returns(1), "return, and be cleaned up after"),
        ("files that stay", _returns(1), "return, and be cleaned up after"),
        ("ignored signals", _ends("timeout_wall"), "be ended nevertheless"),
        ("crash", _ends("signal"), "end with its signal"),
        ("its own end", _ends("signal"), "count as having ended itself"),
        (
            "attributes that stay",
            lambda outcome: outcome.status != "infra_error",
            "leave none behind",
        ),
        ("unnamed memory", _fails, "not get memory that no limit counts"),
        ("namespaces", _fails, "not make any"),
        ("keyring", _fails, "not reach one"),
        ("packet sockets", _fails, "not get one"),
        ("virtual machine sockets", _fails, "not get one"),
        ("answers on disk", _returns([]), "see no environment's package"),
    )
)
