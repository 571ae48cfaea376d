"""Reads faults.toml: which verifiers of the library pay answers that solve nothing."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.1.25"
"""The version of reasoning-gym whose faults were measured."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a verifier, and the answer that shows it."""

    dataset: str
    """The dataset."""
    fault: str
    """What the verifier does wrong, or what is wrong with the tasks."""
    constant: str
    """The answer that is paid, whatever the task is. With `for_each_number` it stands in a list,
    once for each number that the question's last line has."""
    level: float
    """The level at which its share was measured."""
    share: float
    """The mean reward of the answer there."""
    version: str
    """The version of the library in which it was measured."""
    for_each_number: bool = False
    """Whether the answer is a list with as many members as the question's last line has numbers."""

    def answer(self, question: str) -> str:
        """Return the answer to a question."""
        if not self.for_each_number:
            return self.constant
        count = len(re.findall(r"-?\d+(?:\.\d+)?", question.strip().splitlines()[-1]))
        return f"[{', '.join([self.constant] * count)}]"

    @property
    def sentence(self) -> str:
        """Return what is paid, how well, and why."""
        lines = self.constant.splitlines()
        shown = lines[0] if len(lines) == 1 and len(lines[0]) <= _SHOWN else lines[0][:_SHOWN] + "…"
        what = f"a list of {shown!r}" if self.for_each_number else f"{shown!r}"
        return f"{what} earns {self.share:.0%} at level {self.level:g}: {self.fault}"


_SHOWN = 30


@functools.cache
def faults() -> tuple[Fault, ...]:
    """Return all faults that are known."""
    text = Path(__file__).with_name("faults.toml").read_text(encoding="utf-8")
    return tuple(Fault(**entry) for entry in tomllib.loads(text)["fault"])


def faults_of(dataset: str) -> tuple[Fault, ...]:
    """Return the faults of a dataset that are known."""
    return tuple(fault for fault in faults() if fault.dataset == dataset)
