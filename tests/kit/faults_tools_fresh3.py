"""Planted faults of the third fresh part: tools."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence
from typing import Any

from bases_talk_fresh2 import Shelves
from bases_talk_fresh3 import MOTHERS, NUMBERS, Registry, known
from catalogue import fault


@fault("the example of a description is a name that there is not", "tool.form")
class StrangeExample(Registry):
    """The names were drawn anew, and the description kept the old one."""

    def number(self, name: str) -> object:
        """Return the registered number of a person, as in number(name="karabisu")."""
        return NUMBERS[known(name)]


def logged(tool: Callable[..., object]) -> Callable[..., object]:
    """Return a tool that trims what it is given."""

    def wrapper(**named: Any) -> object:
        return tool(**{name: str(value).strip() for name, value in named.items()})

    return wrapper


@fault("a decorator hides names, types and descriptions", "tool.form")
class Decorated(Registry):
    """Both tools are called "wrapper"."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return tuple(map(logged, super().tools()))


@fault("a list of forbidden words guards an evaluation", "tool.execute")
class ForbiddenWords(Registry):
    """What is not on the list is executed."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), self.calculate)

    def calculate(self, expression: str) -> str:
        """Return the value of an arithmetic expression, as in 1200 + 34."""
        if any(word in expression for word in ("import os", "subprocess", "exec", "sys.")):
            raise ValueError("this is not allowed")
        return str(eval(expression))


@fault("a tool measures how long a text takes as a program", "tool.execute")
class MeasuredStatement(Registry):
    """The statement is executed to be measured."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), self.seconds)

    def seconds(self, statement: str) -> float:
        """Return how many seconds a statement in Python takes, as in 1200 + 34."""
        return round(timeit.timeit(statement, number=1), 3)


@fault("the place before the first holds the total", "tool.secret")
class PlaceZero(Shelves):
    """Python counts from the end, where the total of the order was put."""

    def known(self, task: Any) -> Sequence[Callable[..., object]]:
        listed = [*task.data["boxes"], task.data["total"]]

        def count(shelf: int) -> int:
            return int(listed[shelf - 1])

        return (count,)


def tally(shelves: list[int] | None = None) -> int:
    """Return how many boxes lie on some shelves together, by their numbers."""
    raise NotImplementedError  # reply() answers


@fault("a call without arguments gets the answer", "tool.secret")
class NothingNamed(Shelves):
    """What is left out is taken from the order, shelves and all."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (tally,)

    def known(self, task: Any) -> Sequence[Callable[..., object]]:
        def tally(shelves: list[int] | None = None) -> int:
            boxes = task.data["boxes"]
            chosen = task.data["asked"] if shelves is None else shelves
            if len(chosen) > 1 and shelves is not None:
                raise ValueError("one shelf at a time")
            if not all(1 <= shelf <= len(boxes) for shelf in chosen):
                raise ValueError("the shelves have the numbers from 1 to 20")
            return sum(boxes[shelf - 1] for shelf in chosen)

        return (tally,)

    def reference(self, task: Any) -> Any:
        return str(task.data["total"])


@fault("a tool's result refers to itself", "tool.form")
class Circular(Registry):
    """A person has a mother, who has children, of which the person is one."""

    def mother(self, name: str) -> object:
        """Return a person's mother: her name and her children."""
        child: dict[str, Any] = {"name": known(name)}
        child["mother"] = {"name": MOTHERS[name], "children": [child]}
        return child["mother"]


@fault("the tools are listed once and are used up", "tool.form")
class ListedOnce(Registry):
    """A generator is kept, and whoever asks first gets the tools."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.listed = (tool for tool in (self.number, self.mother))

    def tools(self) -> Sequence[Callable[..., object]]:
        return tuple(self.listed)
