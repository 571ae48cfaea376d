"""Runs the tests of a row in a sandbox, apart from the program that they test.

This file is the source of a program: its text, the row's setup and a line that names the function
under test go into the sandbox. The tests call a stand-in, which knows what the policy's program
claimed to return for some arguments, and says which further arguments it needs.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import io
import random
from typing import Any

KNOWN: list[Any] = []
"""What is known of the calls: pairs of arguments and outcome."""
NEEDED: list[Any] = []
"""The calls of which nothing is known yet."""
COLLECTING = [False]
MOST_CALLS = 500


class NeededError(BaseException):
    """A test needs a value that is not known; no `except Exception` of a test catches it."""


class Anything:
    """Stands for an unknown value while calls are collected: every operation gives another."""

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __hash__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0

    def __bool__(self) -> bool:
        return True  # an assertion about it holds, and the test goes on to its next call


OPERATORS = """call getitem eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv
rfloordiv mod rmod pow rpow neg pos abs round and rand or ror xor rxor"""
for _name in OPERATORS.split():
    setattr(Anything, f"__{_name}__", lambda self, *arguments, **keywords: self)


def same(first: Any, second: Any) -> bool:
    """Return whether two plain values are equal in type and value, at every depth."""
    if type(first) is not type(second):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return bool(first == second)


def holds_anything(value: Any) -> bool:
    """Return whether an unknown value is in a value, so that it is no call to make yet."""
    if isinstance(value, dict):
        return any(map(holds_anything, [*value, *value.values()]))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(holds_anything, value))
    return isinstance(value, Anything)


def stand_in(*arguments: Any, **keywords: Any) -> Any:
    """Return, or raise, what the program did for these arguments."""
    call = (list(arguments), keywords)
    for known, status, value in KNOWN:
        if same(known[0], call[0]) and same(known[1], call[1]):
            if status == "ok":
                return copy.deepcopy(value)
            kind = getattr(builtins, value.partition(":")[0], RuntimeError)
            is_exception = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_exception else RuntimeError)(value)
    if len(NEEDED) < MOST_CALLS and not holds_anything(call):
        NEEDED.append((copy.deepcopy(call[0]), copy.deepcopy(keywords)))
    if COLLECTING[0]:
        return Anything()
    raise NeededError


def run_test(
    setup: str, test: str, entry: str, known: list[Any], collecting: bool
) -> tuple[str, str, list[Any]]:
    """Run one test.

    Returns:
        "passed", "failed" or "needs", a remark, and the calls that are needed.
    """
    KNOWN[:], NEEDED[:], COLLECTING[0] = known, [], collecting
    random.seed(0)  # tests that draw arguments draw the same ones again
    names: dict[str, Any] = {"__name__": "tests", entry: stand_in, "candidate": stand_in}
    state, remark = "passed", ""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            for source in (setup, test):
                exec(compile(source, "tests", "exec"), names)
                names.update({entry: stand_in, "candidate": stand_in})
        except NeededError:
            state = "needs"
        except BaseException as error:  # noqa: BLE001 - also a test that calls sys.exit
            state, remark = "failed", f"{type(error).__name__}: {error}"[:200]
    return state, remark, NEEDED
