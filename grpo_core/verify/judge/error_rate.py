"""Stop a run whose verifier fails too often, since a silent mass failure is worse than a crash.

It fails where a completion could not be judged, and also where it raises at a completion that gets
the floor for that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from grpo_core.protocol.errors import RunStoppedError
from grpo_core.protocol.types import Verdict
from grpo_core.words import cut

_REASONS_SHOWN = 3
"""How many of the most common reasons the message lists."""
_MAX_REASON_CHARACTERS = 300
"""Length above which a reason is cut."""


class ErrorRate:
    """Track the share of recent verdicts that are errors, and stop the run if it is too high."""

    def __init__(self, *, stop_above: float = 0.2, window: int = 100, minimum: int = 20) -> None:
        """Start without verdicts.

        Args:
            stop_above: the run stops when the share of errors is above this value.
            window: number of recent verdicts that count.
            minimum: number of verdicts below which the run does not stop.
        """
        self.stop_above = stop_above
        self.minimum = minimum
        self._errors: deque[str | None] = deque(maxlen=window)

    @property
    def rate(self) -> float:
        """Return the share of the recent verdicts that are errors."""
        return (
            sum(error is not None for error in self._errors) / len(self._errors)
            if self._errors
            else 0.0
        )

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Count these verdicts.

        Raises:
            RunStoppedError: too many rollouts could not be judged; the message lists the most
                common reasons.
        """
        for verdict in verdicts:
            self._errors.append(verdict.error)
            if len(self._errors) >= self.minimum and self.rate > self.stop_above:
                raise RunStoppedError(self._explanation())

    def _explanation(self) -> str:
        errors = [error for error in self._errors if error is not None]
        return (
            f"{len(errors)} of the last {len(self._errors)} rollouts could not be "
            f"judged, more than verify.max_error_rate allows ({self.stop_above:g} of them); "
            f"fix the cause and resume. The most common reasons:{_most_common(errors)}"
        )


def check_begin(verdicts: Sequence[Verdict], *, environments: Sequence[str]) -> None:
    """Check that any of the first rollouts of a run could be judged.

    Args:
        verdicts: all their verdicts.
        environments: their environments, as the command line names them.

    Raises:
        RunStoppedError: none could; the message lists the most common reasons.
    """
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    if not errors or len(errors) < len(verdicts):
        return
    raise RunStoppedError(
        f"none of the first {len(errors)} attempts at {' and '.join(environments)} could be "
        "judged, so the run does not begin; fix the verifier, or what it needs, and try it with "
        f"`grpo env score {environments[0]} --answer FILE`. The most common "
        f"reasons:{_most_common(errors)}"
    )


def check_raised(step: int, verdicts: Sequence[Verdict], *, stop_above: float) -> None:
    """Check how many answers of a step got the floor because the verifier raises at them.

    Args:
        step: number of the step.
        verdicts: all its verdicts.
        stop_above: the run stops when the share of such floors is above this value.

    Raises:
        RunStoppedError: there are too many; the message lists the most common notes.
    """
    raised = [verdict for verdict in verdicts if verdict.raised]
    if len(raised) <= stop_above * len(verdicts):
        return
    notes = [
        next((part.note for part in verdict.rewards.values() if part.note), verdict.raised)
        for verdict in raised
    ]
    raise RunStoppedError(
        f"the verifier raises at {len(raised)} of the {len(verdicts)} rollouts of step {step}, "
        f"which got the floor for it, more than verify.max_raised_rate allows ({stop_above:g} of "
        "them): it cannot read most of what the policy writes. Train the form of answers first, "
        "as by grpo sft, choose another environment, or raise verify.max_raised_rate, and resume. "
        f"The most common reasons:{_most_common(notes)}"
    )


def _most_common(reasons: Sequence[str]) -> str:
    """Return the most common reasons, each in a line of its own with its count."""
    counts = Counter(map(_first_line, reasons))
    common_reasons = counts.most_common(_REASONS_SHOWN)
    lines = [f"\n  {count} x {reason}" for reason, count in common_reasons]
    other_count = len(reasons) - sum(count for _, count in common_reasons)
    if other_count:
        lines.append(f"\n  {other_count} x others")
    return "".join(lines)


def _first_line(error: str) -> str:
    line = error.strip().splitlines()[0] if error.strip() else "(no reason given)"
    return cut(line, _MAX_REASON_CHARACTERS)
