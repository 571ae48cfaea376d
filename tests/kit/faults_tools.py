"""Planted faults of tools: their form, what they execute, what they give away."""

from __future__ import annotations

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
from catalogue import fault

from grpo_core import Message, Task, TaskKey

Tools = Sequence[Callable[..., object]]

# Form


@fault("a tool has no types", "tool.form")
class UntypedTool(Scales):
    def tools(self) -> Tools:
        def weigh(fruit):  # type: ignore[no-untyped-def]
            """Return the weight of one fruit."""
            return WEIGHTS[fruit]

        return (weigh,)


@fault("a tool has no types", "tool.form")
class HalfTypedTool(Scales):
    """One of two parameters has a type."""

    def tools(self) -> Tools:
        def weigh(fruit: str, count=1):  # type: ignore[no-untyped-def]
            """Return the weight of some fruits."""
            return WEIGHTS[fruit] * count

        return (weigh,)


@fault("a tool has no description", "tool.form")
class SilentTool(Scales):
    def tools(self) -> Tools:
        def weigh(fruit: str) -> int:
            return WEIGHTS[fruit]

        return (weigh,)


@fault("a tool is async", "tool.form")
class AsyncTool(Scales):
    def tools(self) -> Any:
        async def weigh(fruit: str) -> int:
            """Return the weight of one fruit."""
            await asyncio.sleep(0)
            return WEIGHTS[fruit]

        return (weigh,)


@fault("two tools have the same name", "tool.form")
class TwoOfAName(Scales):
    def tools(self) -> Tools:
        def weigh(fruit: str, count: int) -> int:
            """Return the weight of some fruits."""
            return WEIGHTS[fruit] * count

        return (self.weigh, weigh)


@fault("a tool has no name", "tool.form")
class NamelessTool(Scales):
    def tools(self) -> Tools:
        return (lambda fruit: WEIGHTS[fruit],)


@fault("a tool takes anything", "tool.form")
class TakesAnything(Scales):
    def tools(self) -> Tools:
        def weigh(*fruits: Any, **options: Any) -> int:
            """Return the weight of fruits."""
            return sum(WEIGHTS[fruit] for fruit in fruits)

        return (weigh,)


@fault("tools are never asked", "tool.form", "declared.contract")
class ToolsInOneTurn(Scales):
    max_turns = 1


@fault("tools are not functions", "tool.form")
class NamesOfTools(Scales):
    def tools(self) -> Any:
        return ("weigh",)


# Execution


@fault("a tool hands its argument to a shell", "tool.execute")
class ShellTool(Scales):
    def tools(self) -> Tools:
        def count_lines(text: str) -> str:
            """Return how many lines a text has."""
            done = subprocess.run(f"echo '{text}' | wc -l", shell=True, capture_output=True)
            return done.stdout.decode().strip()

        return (self.weigh, count_lines)


@fault("a tool hands its argument to a shell", "tool.execute")
class ListsAFolder(Scales):
    def tools(self) -> Tools:
        def list_files(folder: str = ".") -> str:
            """Return the names of the files in a folder."""
            with os.popen(f"ls {folder}") as listing:
                return listing.read()[:500]

        return (self.weigh, list_files)


@fault("a tool executes its argument", "tool.execute")
class Calculator(Scales):
    def tools(self) -> Tools:
        def calculate(expression: str) -> str:
            """Return the value of an arithmetic expression."""
            return str(eval(expression))

        return (self.weigh, calculate)


@fault("a tool executes its argument", "tool.execute")
class PythonTool(Scales):
    def tools(self) -> Tools:
        def python(code: str) -> str:
            """Run Python code and return what it leaves in `result`."""
            names: dict[str, Any] = {}
            exec(code, names)
            return str(names.get("result"))

        return (self.weigh, python)


@fault("a tool executes its argument", "tool.execute")
class ImportingTool(Scales):
    def tools(self) -> Tools:
        def call(module: str, function: str, argument: str) -> str:
            """Call a function of a module and return its result."""
            return str(getattr(importlib.import_module(module), function)(argument))

        return (self.weigh, call)


@fault("a tool executes its argument", "tool.execute")
class UnpicklingTool(Scales):
    def tools(self) -> Tools:
        def restore(hexadecimal: str) -> str:
            """Return a value that was stored before, from its bytes in hexadecimal."""
            return str(pickle.loads(bytes.fromhex(hexadecimal)))

        return (self.weigh, restore)


@fault("a tool reads or writes any file", "tool.execute")
class ReadsAnyFile(Scales):
    def tools(self) -> Tools:
        def read_file(path: str) -> str:
            """Return the beginning of a file."""
            return Path(path).read_text(errors="replace")[:1000]

        return (self.weigh, read_file)


@fault("a tool reads or writes any file", "tool.execute")
class WritesAnyFile(Scales):
    def tools(self) -> Tools:
        def take_note(name: str, text: str) -> str:
            """Keep a note for later."""
            Path(name).write_text(text, errors="replace")
            return "kept"

        return (self.weigh, take_note)


@fault("a tool can hang", "tool.execute", "reply.hostile", "reply.form")
class CountingTool(Scales):
    """Counts from 1 to whatever it is told."""

    def tools(self) -> Tools:
        def total(count: int) -> int:
            """Return the sum of the numbers from 1 to count."""
            return sum(number for number in range(1, count + 1))

        return (self.weigh, total)


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


@fault("a tool draws at random", "reply.repeat")
class TremblingScales(Scales):
    def tools(self) -> Tools:
        def weigh(fruit: str) -> float:
            """Return the weight of one fruit, as the scales show it."""
            return WEIGHTS.get(fruit, 0) + random.random()

        return (weigh,)


@fault("a tool remembers earlier attempts", "reply.repeat")
class CountsItsCalls(Scales):
    calls: ClassVar[list[str]] = []

    def tools(self) -> Tools:
        def weigh(fruit: str) -> str:
            """Return the weight of one fruit, and the number of the weighing."""
            self.calls.append(fruit)
            return f"{WEIGHTS.get(fruit, 0)} g (weighing {len(self.calls)})"

        return (weigh,)


@fault("a tool changes the state of the process", "safety.state")
class MovingTool(Scales):
    def tools(self) -> Tools:
        def weigh(fruit: str) -> int:
            """Return the weight of one fruit."""
            os.chdir(os.sep)
            return WEIGHTS[fruit]

        return (weigh,)


@fault("a tool returns nothing", "tool.form")
class SilentScales(Scales):
    def tools(self) -> Tools:
        def weigh(fruit: str) -> None:
            """Return the weight of one fruit."""

        return (weigh,)


@fault("a tool returns more than a policy can read", "tool.form")
class WholeCatalogue(Scales):
    def tools(self) -> Tools:
        def weigh(fruit: str) -> str:
            """Return the weights of all fruits that were ever weighed."""
            return f"{fruit}: " + ", ".join(f"{WEIGHTS['fig'] + day} g" for day in range(9000))

        return (weigh,)
