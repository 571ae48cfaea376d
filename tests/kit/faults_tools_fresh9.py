"""Faults of tools, of the kinds E."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bases_e3_fresh9 import BOOK, ZONES, DarkroomSeconds, FieldBook, FreightDesk, call, page_of
from catalogue import fault

from grpo_core import Services, Task


def calculate(expression: str) -> str:
    """Work out an arithmetic expression, such as 12 * (3 + 4)."""
    return str(eval(expression, {"__builtins__": {}}, {}))


@fault("a tool executes its argument", "tool.execute")
class DarkroomFormulas(DarkroomSeconds):
    """Should offer a calculator; it evaluates whatever Python expression it is given."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (calculate,)

    def asked(self, task: Task[tuple[int, int, int, int]]) -> str:
        prints, tenths, factor, rinse = task.data
        return call("calculate", expression=f"{prints} * ({tenths} * {factor} + {rinse})")


class _WrittenBook(FieldBook):
    """Keeps the field book as one file for each pond, in a temporary folder."""

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self._kept = tempfile.TemporaryDirectory(prefix="field-book-")
        self._folder = Path(self._kept.name)
        for pond in BOOK:
            (self._folder / f"{pond}.txt").write_text(page_of(pond) + "\n", encoding="utf-8")


@fault("a tool hands its argument to a shell", "tool.execute")
class FieldBookByGrep(_WrittenBook):
    """Should search all pages for a word; the word becomes a part of a shell's command line."""

    def search(self, word: str) -> str:
        """Search the field book for the lines that hold a word, such as pond-07."""
        found = subprocess.run(
            f"grep -h {word} pond-*.txt",
            shell=True,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=3,
            check=False,
        )
        return found.stdout[:2000] or "nothing found"

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.search,)

    def asked(self, task: Task[tuple[str, int]]) -> str:
        return call("search", word=task.data[0])


def column(zones: Mapping[str, tuple[int, int]], zone: str) -> str:
    """Look up the rate for each kilogram and the fee for each consignment, in cents."""
    return "rate {}, fee {}".format(*zones[zone]) if zone in zones else "no such zone"


@fault("a tool has no name", "tool.form")
class FreightDeskWithABoundTable(FreightDesk):
    """Should hand the table of the zones to the tool; what comes of it is not a named function."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (partial(column, ZONES),)


def untold_tariff(zone):  # type: ignore[no-untyped-def]
    """Look up the rate for each kilogram and the fee for each consignment, in cents."""
    if zone not in ZONES:
        return "no such zone"
    rate, fee = ZONES[zone]
    return f"rate {rate}, fee {fee}"


@fault("a tool has no types", "tool.form")
class FreightDeskUnannotated(FreightDesk):
    """Should show the policy how a tariff is looked up; it is not told what a zone is."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (untold_tariff,)

    def reference(self, task: Task[tuple[str, int]]) -> Sequence[str]:
        asked = call("untold_tariff", zone=task.data[0])
        return (asked, f"<cents>{task.data[1]}</cents>")


@fault("a tool reads or writes any file", "tool.execute")
class FieldBookByFile(_WrittenBook):
    """Should read a page by the name of its file; any path on the machine is a name too."""

    def read_file(self, name: str) -> str:
        """Read a page of the field book by the name of its file, such as pond-07.txt."""
        with (self._folder / name).open(encoding="utf-8", errors="replace") as file:
            return file.read(4000)

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.read_file,)

    def asked(self, task: Task[tuple[str, int]]) -> str:
        return call("read_file", name=f"{task.data[0]}.txt")


def lookup_of(place: int, what: str) -> Callable[..., object]:
    """Return a tool that looks up one column of the table of zones."""

    def lookup(zone: str) -> str:
        return str(ZONES[zone][place]) if zone in ZONES else "no such zone"

    lookup.__doc__ = f"Look up the {what} of a zone, in cents."
    return lookup


@fault("two tools have the same name", "tool.form")
class FreightDeskTwoColumns(FreightDesk):
    """Should offer the rate and the fee by a tool each; both are named lookup."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (lookup_of(0, "rate for each kilogram"), lookup_of(1, "fee for each consignment"))

    def reference(self, task: Task[tuple[str, int]]) -> Sequence[str]:
        return (call("lookup", zone=task.data[0]), f"<cents>{task.data[1]}</cents>")
