"""Define what an alarm says, and the group that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_core.protocol.types import TaskKey

CANARY_LIMIT = 2_000
"""The most characters of a canary that an alarm keeps."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Name the group, and the attempt in it, that shows best what an alarm is about."""

    step: int
    """The step whose rollouts have the group."""
    key: TaskKey
    draw: int
    attempt: int | None = None
    """The number of the attempt in the group; None: the whole group shows it."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Say that a run shows a sign of reward hacking or of collapse, from this step on."""

    step: int
    """The step that showed it."""
    name: str
    """The kind of alarm, as the documentation has it."""
    environment: str
    """The name of the environment, as in task keys."""
    message: str
    """What was seen, what it may mean, and what to look at."""
    subject: str = ""
    """Which canary or which measure; "" if the kind has only one."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The numbers that were seen, by name."""
    shown: Shown | None = None
    canary: str | None = None
    """The answer that should not be paid."""

    @property
    def title(self) -> str:
        """Return the kind of alarm with its subject."""
        return f"{self.name} ({self.subject})" if self.subject else self.name

    def to_json(self) -> dict[str, Any]:
        """Return the alarm as JSON data, as a line of alarms.jsonl has it."""
        shown = self.shown
        return {
            "step": self.step,
            "name": self.name,
            "environment": self.environment,
            "subject": self.subject,
            "message": self.message,
            "values": dict(self.values),
            "group": None
            if shown is None
            else {"step": shown.step, "key": asdict(shown.key), "draw": shown.draw},
            "attempt": None if shown is None else shown.attempt,
            "canary": None if self.canary is None else self.canary[:CANARY_LIMIT],
        }
