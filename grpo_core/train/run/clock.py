"""Seconds of each phase of a step."""

from __future__ import annotations

import time


class Clock:
    """Each lap adds the seconds since the last one to a phase."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._phases: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._last
        self._last = now

    def metrics(self) -> dict[str, float]:
        return {
            **{f"time/{phase}": seconds for phase, seconds in self._phases.items()},
            "time/step": time.perf_counter() - self._start,
        }
