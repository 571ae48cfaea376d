"""Planted faults of tools: their form, what they execute, what they give away."""

import asyncio
import importlib
import os
import pickle
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bases import WEIGHTS, Scales
from catalogue import fault, variant

from grpo_core import Message, Task, TaskKey

Tools = Sequence[Callable[..., object]]


def beside(name: str, kind: str, *checks: str) -> Callable[[Callable[..., object]], type[Scales]]:
    """Register an environment with this function as a tool of that name, beside its `weigh`."""

    def register(function: Callable[..., object]) -> type[Scales]:
        members = {"tools": lambda env: (env.weigh, function)}
        return _registered(function, name, kind, *checks, **members)

    return register


def instead(kind: str, *checks: str) -> Callable[[Callable[..., object]], type[Scales]]:
    """Register an environment with this function as its only tool, `weigh`."""

    def register(function: Callable[..., object]) -> type[Scales]:
        return _registered(function, "weigh", kind, *checks, tools=lambda _: (function,))

    return register


def _registered(function: Any, name: str, kind: str, *checks: str, **members: Any) -> Any:
    made = variant(__name__, function.__name__, Scales, **members)
    function.__name__ = function.__qualname__ = name
    return fault(kind, *checks)(made)


# Form


@instead("a tool has no types", "tool.form")
def UntypedTool(fruit):  # type: ignore[no-untyped-def]
    """Return the weight of one fruit."""
    return WEIGHTS[fruit]


# One of two parameters has a type.
@instead("a tool has no types", "tool.form")
def HalfTypedTool(fruit: str, count=1):  # type: ignore[no-untyped-def]
    """Return the weight of some fruits."""
    return WEIGHTS[fruit] * count


@instead("a tool has no description", "tool.form")
def SilentTool(fruit: str) -> int:
    return WEIGHTS[fruit]


@instead("a tool is async", "tool.form")
async def AsyncTool(fruit: str) -> int:
    """Return the weight of one fruit."""
    await asyncio.sleep(0)
    return WEIGHTS[fruit]


@beside("weigh", "two tools have the same name", "tool.form")
def TwoOfAName(fruit: str, count: int) -> int:
    """Return the weight of some fruits."""
    return WEIGHTS[fruit] * count


@fault("a tool has no name", "tool.form")
class NamelessTool(Scales):
    def tools(self) -> Tools:
        return (lambda fruit: WEIGHTS[fruit],)


@instead("a tool takes anything", "tool.form")
def TakesAnything(*fruits: Any, **options: Any) -> int:
    """Return the weight of fruits."""
    return sum(WEIGHTS[fruit] for fruit in fruits)


@fault("tools are never asked", "tool.form", "declared.contract")
class ToolsInOneTurn(Scales):
    max_turns = 1


@fault("tools are not functions", "tool.form")
class NamesOfTools(Scales):
    def tools(self) -> Any:
        return ("weigh",)


# Execution


@beside("count_lines", "a tool hands its argument to a shell", "tool.execute")
def ShellTool(text: str) -> str:
    """Return how many lines a text has."""
    done = subprocess.run(f"echo '{text}' | wc -l", shell=True, capture_output=True)
    return done.stdout.decode().strip()


@beside("list_files", "a tool hands its argument to a shell", "tool.execute")
def ListsAFolder(folder: str = ".") -> str:
    """Return the names of the files in a folder."""
    with os.popen(f"ls {folder}") as listing:
        return listing.read()[:500]


@beside("calculate", "a tool executes its argument", "tool.execute")
def Calculator(expression: str) -> str:
    """Return the value of an arithmetic expression."""
    return str(eval(expression))


@beside("python", "a tool executes its argument", "tool.execute")
def PythonTool(code: str) -> str:
    """Run Python code and return what it leaves in `result`."""
    names: dict[str, Any] = {}
    exec(code, names)
    return str(names.get("result"))


@beside("call", "a tool executes its argument", "tool.execute")
def ImportingTool(module: str, function: str, argument: str) -> str:
    """Call a function of a module and return its result."""
    return str(getattr(importlib.import_module(module), function)(argument))


@beside("restore", "a tool executes its argument", "tool.execute")
def UnpicklingTool(hexadecimal: str) -> str:
    """Return a value that was stored before, from its bytes in hexadecimal."""
    return str(pickle.loads(bytes.fromhex(hexadecimal)))


@beside("read_file", "a tool reads or writes any file", "tool.execute")
def ReadsAnyFile(path: str) -> str:
    """Return the beginning of a file."""
    return Path(path).read_text(errors="replace")[:1000]


@beside("take_note", "a tool reads or writes any file", "tool.execute")
def WritesAnyFile(name: str, text: str) -> str:
    """Keep a note for later."""
    Path(name).write_text(text, errors="replace")
    return "kept"


# Counts from 1 to whatever it is told.
@beside("total", "a tool can hang", "tool.execute", "reply.hostile", "reply.form")
def CountingTool(count: int) -> int:
    """Return the sum of the numbers from 1 to count."""
    return sum(number for number in range(1, count + 1))


# Secrets


class _Remembers(Scales):
    """Keeps the task that it made last, as tools know of no task."""

    current: ClassVar[list[Task[int]]] = []

    def asked(self, key: TaskKey, many: int, few: int, one: str, two: str) -> Task[int]:
        task = super().asked(key, many, few, one, two)
        self.current[:] = [task]
        return task


@fault("a tool sees the answer", "tool.secret")
class AnswerTool(_Remembers):
    def tools(self) -> Tools:
        def hint() -> str:
            """Return a hint."""
            return f"Have you tried {self.current[0].data}?" if self.current else "no hint"

        return (self.weigh, hint)


@fault("a tool sees the answer", "tool.secret")
class CheckingTool(_Remembers):
    """Whoever asks about a wrong number is told the right one."""

    def tools(self) -> Tools:
        def check(number: int) -> str:
            """Return whether a number is the answer."""
            right = self.current[0].data if self.current else 0
            return "right" if number == right else f"wrong: expected {right}, got {number}"

        return (self.weigh, check)


@fault("a tool sees the answer", "tool.secret", "reply.secret")
class AnswersWithTheTask(Scales):
    """The reply to a call holds the whole task, its data included."""

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Any:
        replies = await super().reply(task, messages)
        return replies and [
            Message("tool", f"{message.content} # context: {task.data}") for message in replies
        ]


# Repeatability


@instead("a tool draws at random", "reply.repeat")
def TremblingScales(fruit: str) -> float:
    """Return the weight of one fruit, as the scales show it."""
    return WEIGHTS.get(fruit, 0) + random.random()


@fault("a tool remembers earlier attempts", "reply.repeat")
class CountsItsCalls(Scales):
    calls: ClassVar[list[str]] = []

    def tools(self) -> Tools:
        def weigh(fruit: str) -> str:
            """Return the weight of one fruit, and the number of the weighing."""
            self.calls.append(fruit)
            return f"{WEIGHTS.get(fruit, 0)} g (weighing {len(self.calls)})"

        return (weigh,)


@instead("a tool changes the state of the process", "safety.state")
def MovingTool(fruit: str) -> int:
    """Return the weight of one fruit."""
    os.chdir(os.sep)
    return WEIGHTS[fruit]


@instead("a tool returns nothing", "tool.form")
def SilentScales(fruit: str) -> None:
    """Return the weight of one fruit."""


@instead("a tool returns more than a policy can read", "tool.form")
def WholeCatalogue(fruit: str) -> str:
    """Return the weights of all fruits that were ever weighed."""
    return f"{fruit}: " + ", ".join(f"{WEIGHTS['fig'] + day} g" for day in range(9000))
