"""How a run speaks to whoever watches it; the command line shows it as a progress bar."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_core.evaluate import Gain


class Observer:
    """Every method is called from the trainer's loop, in order. This one does nothing: the default in notebooks and tests."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None: ...

    def evaluating(self, done: int, total: int) -> None: ...

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def finished(self, gains: Mapping[str, Gain]) -> None: ...
