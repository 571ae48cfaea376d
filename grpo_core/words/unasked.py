"""Name tasks that cannot be asked of a model, such as one whose prompt exceeds its context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.protocol.types import TaskKey

NAMED = 10
"""Most tasks that one message names."""


@dataclass(frozen=True, slots=True)
class Unasked:
    """Holds a task that cannot be asked, and the reason."""

    key: TaskKey
    """The key of the task."""
    reason: str
    """What is wrong with its prompt, in words."""
    advice: str = ""
    """What to do about it, in words; "" where the reason says that."""
    beginning: str = ""
    """How its prompt begins, quoted, so that its row can be found."""

    def __str__(self) -> str:
        beginning = f"{self.beginning}: " if self.beginning else ""
        return f"{self.key.split} index {self.key.index} ({beginning}{self.reason})"

    def to_json(self) -> dict[str, Any]:
        """Return the task and the reason as a dictionary that JSON can hold."""
        return {"split": self.key.split, "index": self.key.index, "reason": self.reason}


def name_unasked(unasked: Sequence[Unasked]) -> str:
    """Return a text that names the first of some tasks, at least one, and says what to do."""
    named = [str(task) for task in unasked[:NAMED]]
    if more := len(unasked) - len(named):
        named.append(f"and {more} more")
    advice = next((task.advice for task in unasked if task.advice), "")
    return "; ".join(named) + (f"; {advice}" if advice else "")
