"""How a run ended, as a value: the command line, log.txt and plugins each say it in their way."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EndKind(StrEnum):
    """What ended a run."""

    FINISHED = "finished"
    """The last step or a stop rule was reached; final/ is there."""
    UNSCORED = "unscored"
    """As FINISHED, but no held-out task could be scored, so nobody knows what was learned."""
    STOPPED = "stopped"
    """Somebody asked it to stop; it can be continued."""
    CANCELLED = "cancelled"
    """The task or the program that it ran in was cancelled."""
    FAILED = "failed"
    """An error; it can be continued once the cause is removed."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended.

    Attributes:
        step: the last finished step.
        total: the steps that were planned.
        reason: in words, such as the message of an error; may be empty.
        saved: what of it was saved, in words.
    """

    kind: EndKind
    step: int
    total: int
    reason: str = ""
    saved: str = ""

    def __str__(self) -> str:
        parts = [f"{self.kind} after step {self.step} of {self.total}"]
        parts += [f": {self.reason}"] if self.reason else []
        parts += [f"; {self.saved}"] if self.saved else []
        return "".join(parts)
