"""An environment whose verifier, like that of a library, raises at what it cannot read."""

import ast
import io
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict


class UnreadableError(ValueError):
    """A library's own exception."""


@dataclass(frozen=True)
class Config:
    reference: str = "4"
    marker: str = ""
    """A file that a verdict leaves, by which a later process knows of it."""


class Reader(Environment[None]):
    """Asks for 2 + 2."""

    Config = Config
    levels = False
    raises_at_answers = True
    parts: ClassVar[Mapping[str, float]] = {"shown": 0.0, "right": 2.0}
    reward_range = (-1.0, 2.0)
    floor = -1.0

    def task(self, key: TaskKey) -> Task[None]:
        return Task(key, "2 + 2 = ?", None)

    def reference(self, task: Task[None]) -> str | None:
        return self.config.reference or None

    def verify(self, task: Task[None], rollout: Rollout) -> Verdict:
        return self._verdict(int(_act(rollout.text, self.config.marker)) == 4)

    def _verdict(self, right: bool) -> Verdict:
        return Verdict({"shown": Reward(1.0), "right": Reward(1.0 if right else 0.0)}, passed=right)


class Undeclared(Reader):
    raises_at_answers = False


class Trusted(Reader):
    trusted = True


class Asynchronous(Reader):
    async def averify(self, task: Task[None], rollout: Rollout) -> Verdict:
        return self.verify(task, rollout)


class Broken(Reader):
    """A verifier that fails at everything, also at the reference, once it has seen a bad answer."""

    spoilt = False

    def verify(self, task: Task[None], rollout: Rollout) -> Verdict:
        if rollout.text != "4" or Path(self.config.marker).exists():
            Path(self.config.marker).touch()
            raise ValueError("everything is broken")
        return self._verdict(True)


def _act(text: str, marker: str) -> str:
    """Return the text, unless it is the name of a way to fail."""
    if text in ("once", "other kind"):
        times = Path(marker).read_text() if Path(marker).exists() else ""
        Path(marker).write_text(times + "x")
        if text == "once" and times:
            return "5"
        raise TypeError("later") if times else ValueError("first")
    action: Any = {
        "own": lambda: _raise(UnreadableError("what is this?")),
        "type": lambda: len(5),  # type: ignore[arg-type]
        "division": lambda: 1 / 0,
        "recursion": lambda: _act("recursion", marker),
        "syntax": lambda: ast.literal_eval("1 +"),
        "long number": lambda: int("7" * 5000),
        "lookup": lambda: {}["missing"],
        "assertion": lambda: _raise(AssertionError()),
        "os and value": lambda: _raise(io.UnsupportedOperation("not readable")),
        "memory": lambda: _raise(MemoryError()),
        "exit": lambda: _raise(SystemExit(3)),
        "death": lambda: os._exit(3),
        "loop": _spin,
        "power": lambda: 10**9_999_999_999,
        "sleep": lambda: time.sleep(3600),
    }.get(text)
    if action is not None:
        action()
    return text


def _raise(error: BaseException) -> None:
    raise error


def _spin() -> None:
    while True:
        pass
