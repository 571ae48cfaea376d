"""Describe as a value how a run ended.

The command line, log.txt and plugins each report it in their own form.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EndKind(StrEnum):
    """Names what ended a run."""

    FINISHED = "finished"
    """The last step or a stop rule was reached; final/ exists."""
    UNSCORED = "unscored"
    """Like FINISHED, but no held-out task could be scored, so the gain is unknown."""
    STOPPED = "stopped"
    """A stop was requested; the run can be resumed."""
    CANCELLED = "cancelled"
    """The task or the program that the run was part of was cancelled."""
    FAILED = "failed"
    """An error ended the run; it can be resumed once the cause is removed."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Describes how a run ended."""

    kind: EndKind
    step: int
    """The last finished step."""
    total: int
    """The number of planned steps."""
    reason: str = ""
    """The reason in words, such as the message of an error; may be empty."""
    saved: str = ""
    """What was saved, in words; may be empty."""

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        saved = f"; {self.saved}" if self.saved else ""
        return f"{self.kind} after step {self.step} of {self.total}{reason}{saved}"
