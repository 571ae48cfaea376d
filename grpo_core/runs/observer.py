"""Report the progress of a run to an observer; the command line shows it as a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from grpo_core.calls.deadline import describe
from grpo_core.figures.gains import Gain


class Observer:
    """Receives the events of a run; every method is called from the trainer's loop, in order.

    This one does nothing: it is the default in notebooks and tests.
    """

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
        for name in (name for name in vars(Observer) if not name.startswith("_")):
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
