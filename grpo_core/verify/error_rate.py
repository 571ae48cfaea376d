"""Stops a run whose verifier fails too often: silent mass failure is worse than a crash."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from grpo_core.protocol.errors import RunStoppedError
from grpo_core.protocol.types import Verdict

_REASONS_SHOWN = 3
_REASON_CHARACTERS = 300


class ErrorRate:
    """The share of the last `window` verdicts that are errors; above `stop_above`, once there are `minimum`, the run stops."""

    def __init__(self, *, stop_above: float = 0.2, window: int = 100, minimum: int = 20) -> None:
        self.stop_above = stop_above
        self.minimum = minimum
        self._errors: deque[str | None] = deque(maxlen=window)

    @property
    def rate(self) -> float:
        return (
            sum(error is not None for error in self._errors) / len(self._errors)
            if self._errors
            else 0.0
        )

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Count these; raises RunStoppedError with the most common reasons when too many could not be judged."""
        for verdict in verdicts:
            self._errors.append(verdict.error)
            if len(self._errors) >= self.minimum and self.rate > self.stop_above:
                raise RunStoppedError(self._explanation())

    def _explanation(self) -> str:
        reasons = Counter(_first_line(error) for error in self._errors if error is not None)
        shown = [f"\n  {count} x {reason}" for reason, count in reasons.most_common(_REASONS_SHOWN)]
        rest = sum(reasons.values()) - sum(
            count for _, count in reasons.most_common(_REASONS_SHOWN)
        )
        if rest:
            shown.append(f"\n  {rest} x others")
        return (
            f"{sum(reasons.values())} of the last {len(self._errors)} attempts could not be judged, more than verify.max_error_rate allows "
            f"({self.stop_above:g} of them); mend the cause and resume. The most common reasons:{''.join(shown)}"
        )


def _first_line(error: str) -> str:
    line = error.strip().splitlines()[0] if error.strip() else "(no reason given)"
    return line if len(line) <= _REASON_CHARACTERS else line[:_REASON_CHARACTERS] + "..."
