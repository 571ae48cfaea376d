"""How a run speaks to whoever watches it; the command line shows it as a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grpo_core.calls.deadline import describe
from grpo_core.report.statistics import Gain


class Observer:
    """Every method is called from the trainer's loop, in order. This one does nothing: the default in notebooks and tests."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None: ...

    def evaluating(self, done: int, total: int) -> None: ...

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def finished(self, gains: Mapping[str, Gain]) -> None: ...


class Unfailing(Observer):
    """Passes everything on to an observer, and drops what fails there: a run outlives its display.

    Args:
        observer: the one that shows something.
        note: is told of the first failure.
    """

    def __init__(self, observer: Observer, note: Callable[[str], None]) -> None:
        self._observer = observer
        self._note = note
        self._failed = False

    def say(self, text: str) -> None:
        self._try(lambda: self._observer.say(text))

    def warn(self, text: str) -> None:
        self._try(lambda: self._observer.warn(text))

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._try(lambda: self._observer.step(step, total, metrics))

    def evaluating(self, done: int, total: int) -> None:
        self._try(lambda: self._observer.evaluating(done, total))

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._try(lambda: self._observer.evaluated(step, metrics))

    def finished(self, gains: Mapping[str, Gain]) -> None:
        self._try(lambda: self._observer.finished(gains))

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except Exception as error:  # noqa: BLE001 - an observer may raise anything
            if not self._failed:
                self._failed = True
                self._note(
                    f"what shows the run failed, and the run goes on without it: {describe(error)}"
                )
