"""Measure the seconds of each phase of a step."""

from __future__ import annotations

import time


class Clock:
    """Adds the seconds since the last lap to a phase, at each lap."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._phases: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """End a lap: add its seconds to `phase`."""
        now = time.perf_counter()
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._last
        self._last = now

    def metrics(self) -> dict[str, float]:
        """Return the seconds of each phase and of the whole step, as time/..."""
        return {
            **{f"time/{phase}": seconds for phase, seconds in self._phases.items()},
            "time/step": time.perf_counter() - self._start,
        }
