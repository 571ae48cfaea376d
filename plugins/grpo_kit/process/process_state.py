"""The state of a process that environments share: judging must leave it as it was."""

from __future__ import annotations

import builtins
import csv
import decimal
import gc
import json
import locale
import logging
import math
import os
import pickle
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from grpo_core.words import cut

_LONGEST = 60
"""Characters of a value in a message."""
_SHARED_MODULES = (json, math, os, random, re, socket, subprocess, time)
"""Modules whose functions much other code calls."""
_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
"""How NumPy treats errors when it is loaded."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of a process that a verifier, a reply or a tool can change for all other code."""

    values: Mapping[str, str]
    """Each part of the state by its name in messages."""

    @classmethod
    def now(cls) -> ProcessState:
        """Return the state as it is."""
        return cls(
            {
                "the working directory": _working_directory(),
                "the locale": locale.setlocale(locale.LC_ALL),
                "the recursion limit": str(sys.getrecursionlimit()),
                "the limit on the digits of int()": str(sys.get_int_max_str_digits()),
                "the default timeout of sockets": str(socket.getdefaulttimeout()),
                "sys.path": str(sys.path),
                "the switch interval": str(sys.getswitchinterval()),
                "garbage collection": "on" if gc.isenabled() else "off",
                "the handlers of the root logger": str(len(logging.getLogger().handlers)),
                "the level of the root logger": str(logging.getLogger().level),
                "the level up to which logging is off": str(logging.root.manager.disable),
                "sys.stdout": str(sys.stdout),
                "sys.stderr": str(sys.stderr),
                **_limits(),
                **_library_settings(),
                **{f"the built-in {name}": str(value) for name, value in vars(builtins).items()},
                **dict(_shared_functions()),
                **{f"the variable {name}": value for name, value in os.environ.items()},
            }
        )

    def changes_since(self, before: ProcessState) -> dict[str, str]:
        """Return what is not as it was `before`, as the rest of a sentence for each part."""
        changes = {}
        for name in {**before.values, **self.values}:
            old, new = before.values.get(name), self.values.get(name)
            if old != new:
                changes[name] = f"{name} from {_cut(old)} to {_cut(new)}"
        return changes


class StateWatch:
    """Collects changes of the state from now on, including those that are undone later."""

    def __init__(self) -> None:
        self._before = ProcessState.now()
        self._changes: dict[str, str] = {}

    def look(self) -> None:
        """Note what is not as it was at the start."""
        self._changes = ProcessState.now().changes_since(self._before) | self._changes

    def changes(self) -> list[str]:
        """Return the first change of each part of the state, each as the rest of a sentence."""
        self.look()
        return list(self._changes.values())


def _library_settings() -> dict[str, str]:
    """Return settings of libraries that hold for the whole thread or process."""
    numbers, numpy = decimal.getcontext(), sys.modules.get("numpy")
    return {
        "the precision of Decimal": str(numbers.prec),
        "the rounding of Decimal": numbers.rounding,
        "the traps of Decimal": str([trap.__name__ for trap, on in numbers.traps.items() if on]),
        "the longest field of csv": str(csv.field_size_limit()),
        "what becomes of all warnings": str(_fates_of_all_warnings()),
        "the time zone": str((time.tzname, time.timezone)),
        "sys.excepthook": str(sys.excepthook),
        "threading.excepthook": str(threading.excepthook),
        "sys.tracebacklimit": str(getattr(sys, "tracebacklimit", None)),
        "the timer of SIGALRM": "on" if any(signal.getitimer(signal.ITIMER_REAL)) else "off",
        "the errors of NumPy": str(_NUMPY_ERRORS if numpy is None else numpy.geterr()),
    }


def _fates_of_all_warnings() -> list[str]:
    """Return the actions of filters for all warnings; libraries add filters for some of theirs."""
    return [
        action
        for action, message, category, module, _ in warnings.filters
        if message is None and module is None and category is Warning
    ]


def _shared_functions() -> Iterator[tuple[str, str]]:
    """Yield the functions of common modules by their names."""
    for module in _SHARED_MODULES:
        for name, value in vars(module).items():
            if isinstance(value, FunctionType | type(len)):
                yield f"the function {module.__name__}.{name}", str(value)


def _limits() -> dict[str, str]:
    """Return the limits, the priority and the signal handlers of this process."""
    mask = os.umask(0)
    os.umask(mask)
    handlers = {
        f"the handler of {number.name}": str(signal.getsignal(number))
        for number in (signal.SIGTERM, signal.SIGALRM)  # asyncio has one for SIGINT
    }
    return {
        "the umask": oct(mask),
        "the priority": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "the limit of memory": str(resource.getrlimit(resource.RLIMIT_AS)),
        "the limit of processor time": str(resource.getrlimit(resource.RLIMIT_CPU)),
        "the limit of open files": str(resource.getrlimit(resource.RLIMIT_NOFILE)),
        **handlers,
    }


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a folder that was removed"


def _cut(value: str | None) -> str:
    return "unset" if value is None else repr(cut(value, _LONGEST))


async def seeded_generators(judge: Callable[[], Awaitable[None]]) -> list[str]:
    """Return the global generators that `judge` seeds.

    They are in the same state after it, whatever their state was before it; one from which it only
    draws is not.
    """
    ends = list[dict[str, bytes]]()
    numpy: Any = sys.modules.get("numpy.random")
    for seed in (1, 2):
        random.seed(seed)
        if numpy is not None:
            numpy.seed(seed)
        await judge()
        ends.append({"random": pickle.dumps(random.getstate())})
        if numpy is not None:
            ends[-1]["numpy.random"] = pickle.dumps(numpy.get_state())
    return [name for name, state in ends[0].items() if state == ends[1][name]]
