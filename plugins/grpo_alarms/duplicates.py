"""Notice that answers are equal whatever the task is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_alarms.seen import Seen, collisions
from grpo_alarms.sequential import ChangeDetector
from grpo_core.protocol.events import AlarmRaised
from grpo_core.words import shorten

DUPLICATES = "duplicates"
FIRST_STEPS = 10
"""Steps from which it is learned what is natural."""
COLLAPSED = 0.25
"""By how much the share of equal answers to different tasks has to exceed what is natural."""


class Duplicates:
    """Watch the share of equal texts among pairs of attempts at different tasks.

    A share that is too high means that the policy has collapsed to few answers, whether these are
    paid or not. What is natural is learned from the references and the first steps; where the same
    answer is right for most tasks, nothing is looked for.

    Args:
        run_length: the least expected number of steps until a false alarm.
    """

    def __init__(self, *, run_length: float) -> None:
        self._run_length = run_length
        self._first: list[float] = []
        """The shares in the first steps."""
        self._reference_share = 0.0
        """The largest share among references of different tasks that was seen."""
        self._bound: float | None = None
        """The highest natural share, once it is known."""
        self._detector: ChangeDetector | None = None
        """None before the bound is known, or where it is too high to look for anything."""

    @property
    def active(self) -> bool:
        """Return whether the alarm goes on."""
        return self._detector is not None and self._detector.active

    def referred(self, references: Sequence[str]) -> None:
        """Note how alike the references of different tasks are, which is natural for answers."""
        share = collisions([[text.strip()] for text in references])
        if not math.isnan(share):
            self._reference_share = max(self._reference_share, share)

    def step(self, seen: Seen, environment: str) -> list[AlarmRaised]:
        """Look at the attempts of a step; return the alarm that begins, if one does."""
        share = seen.collisions()
        if math.isnan(share):
            return []
        if self._bound is None:
            self._first.append(share)
            if len(self._first) >= FIRST_STEPS:
                natural = max(math.fsum(self._first) / len(self._first), self._reference_share)
                self._begin(natural + COLLAPSED)
            return []
        if self._detector is None or not self._detector.add([share]):
            return []
        texts = [scored.rollout.raw.strip() for scored in seen.attempts]
        text = max(dict.fromkeys(texts), key=texts.count)
        example = next(s for s in seen.attempts if s.rollout.raw.strip() == text)
        message = (
            f"two answers to different tasks are equal with a probability of {share:.0%}, and more "
            f"than {self._bound:.0%} was not expected from references and first steps; "
            f"{shorten(text)} is given by {texts.count(text)} of {len(texts)} attempts: the policy "
            "has collapsed to few answers; look whether they are paid, and raise kl.beta or "
            "sampling.temperature"
        )
        values = {"equal": share, "expected": self._bound}
        shown = example.shown(seen.step)
        return [AlarmRaised(seen.step, DUPLICATES, environment, message, "", values, shown)]

    def _begin(self, bound: float) -> None:
        self._bound = bound
        if bound < 1 - COLLAPSED / 2:
            self._detector = ChangeDetector(
                bound=bound, target=(1 + bound) / 2, run_length=self._run_length
            )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as JSON data."""
        return {
            "first": list(self._first),
            "references": self._reference_share,
            "bound": self._bound,
            "detector": None if self._detector is None else self._detector.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._first, self._reference_share = list(state["first"]), state["references"]
        if state["bound"] is not None:
            self._begin(state["bound"])
        if self._detector is not None:
            self._detector.restore(state["detector"])
