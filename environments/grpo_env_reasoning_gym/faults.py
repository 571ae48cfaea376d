"""Reads faults.toml: which verifiers of the library pay answers that solve nothing."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from grpo_core.words import cut


@dataclass(frozen=True, slots=True)
class DatasetFault:
    """A fault of a verifier, and the answer that shows it."""

    dataset: str
    """The dataset."""
    fault: str
    """What the verifier does wrong, or what is wrong with the tasks."""
    constant: str
    """The answer that is paid, whatever the task is. With `pattern` it is a format that takes the
    groups of that."""
    level: float
    """The level at which its share was measured."""
    share: float
    """The mean reward of the answer there."""
    version: str
    """The version of the library in which it was measured."""
    pattern: str = ""
    """A regular expression that finds in the question what the answer restates."""

    def answer(self, question: str) -> str:
        """Return the answer to a question."""
        match = re.search(self.pattern, question) if self.pattern else None
        return self.constant if match is None else self.constant.format(*match.groups())

    @property
    def sentence(self) -> str:
        """Return what is paid, how well, and why."""
        shown = cut(self.constant, _SHOWN)
        return f"{shown!r} earns {self.share:.0%} at level {self.level:g}: {self.fault}"


_SHOWN = 30


@functools.cache
def faults() -> tuple[DatasetFault, ...]:
    """Return all faults that are known."""
    text = Path(__file__).with_name("faults.toml").read_text(encoding="utf-8")
    return tuple(DatasetFault(**entry) for entry in tomllib.loads(text)["fault"])


def faults_of(dataset: str) -> tuple[DatasetFault, ...]:
    """Return the faults of a dataset that are known."""
    return tuple(fault for fault in faults() if fault.dataset == dataset)
