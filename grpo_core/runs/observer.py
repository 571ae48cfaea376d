"""Show the progress of a run: a listener with a method for each thing that is shown.

The command line shows it as a progress bar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from grpo_core.calls.deadline import describe
from grpo_core.figures.gains import Gain
from grpo_core.protocol.events import (
    AlarmRaised,
    EvaluationEnded,
    EvaluationProgress,
    Event,
    Notice,
    RunEnded,
    StepEnded,
)


class Observer:
    """Receives the events of a run; every method is called from the trainer's loop, in order.

    This one does nothing: it is the default in notebooks and tests.
    """

    def on(self, event: Event) -> None:
        """Hear an event of the run's stream, and call the method that shows it."""
        match event:
            case Notice(shown=True, level="info"):
                self.say(event.text)
            case Notice(shown=True):
                self.warn(event.text)
            case AlarmRaised():
                self.alarm(event.title, event.message)
            case StepEnded():
                self.step(event.step, event.total, event.metrics)
            case EvaluationProgress():
                self.evaluating(event.done, event.total)
            case EvaluationEnded():
                self.evaluated(event.step, event.metrics)
            case RunEnded() if event.gains is not None:
                self.finished(event.gains)

    def say(self, text: str) -> None:
        """Receive a message."""

    def warn(self, text: str) -> None:
        """Receive a warning."""

    def alarm(self, title: str, text: str) -> None:
        """Receive an alarm: a sign of reward hacking or of collapse that begins.

        Args:
            title: what kind of alarm it is.
            text: what was seen, what it may mean, and what to look at.
        """

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of a finished step."""

    def evaluating(self, done: int, total: int) -> None:
        """Receive how many held-out tasks are done, and their total."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of an evaluation after `step`."""

    def finished(self, gains: Mapping[str, Gain]) -> None:
        """Receive the gains on held-out tasks at the end of the run."""


class SafeObserver(Observer):
    """Forwards all events to an observer and drops its errors: a run continues without its display.

    Args:
        observer: receives the events.
        note: is called with a message at the first error.
    """

    def __init__(self, observer: Observer, note: Callable[[str], None]) -> None:
        self._observer = observer
        self._note = note
        self._failed = False
        for name in (name for name in vars(Observer) if not name.startswith("_") and name != "on"):
            setattr(self, name, partial(self._try, name))

    def _try(self, name: str, *arguments: Any) -> None:
        try:
            getattr(self._observer, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - an observer may raise anything
            if not self._failed:
                self._failed = True
                self._note(
                    "the display of the run failed, and the run continues without it: "
                    f"{describe(error)}"
                )
