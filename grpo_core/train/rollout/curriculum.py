"""Tasks as hard as the policy can use: each environment's level follows its recent pass rate into a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.config.settings import CurriculumConfig
from grpo_core.protocol.types import Group

_DIGITS = (
    6  # so that steps of 0.1 give 0.3 and not 0.30000000000000004, which would be another task
)


class Curriculum:
    """levels: of each environment, from 0 to 1. Groups whose attempts all pass or all fail teach nothing; the window avoids both.

    When the last `attempts` scored attempts at a level are there and their pass rate is above `high` (below `low`), the level rises
    (falls) by `step`, and counting starts anew, since those attempts say nothing of the new level.
    """

    def __init__(self, config: CurriculumConfig, levels: Mapping[str, float]) -> None:
        self.levels = dict(levels)
        self._config = config
        self._configured = dict(levels)
        self._passed: dict[str, list[bool]] = {name: [] for name in levels}

    def add(self, groups: Sequence[Group[Any]]) -> dict[str, float]:
        """Take note of a step's verdicts and move the levels; returns, for the log, the levels that the step had and the pass rates
        that count, by environment if there are several. Nothing happens if curricula are off."""
        if not self._config.enabled:
            return {}
        metrics: dict[str, float] = {}
        for name, level in self.levels.items():
            verdicts = [v for group in groups if group.task.key.env == name for v in group.verdicts]
            recent = self._passed[name] = [
                *self._passed[name],
                *(v.passed for v in verdicts if v.scored),
            ][-self._config.attempts :]
            prefix = f"{name}/" if len(self.levels) > 1 else ""
            rate = sum(recent) / len(recent) if recent else float("nan")
            metrics |= {f"{prefix}curriculum/level": level, f"{prefix}curriculum/pass_rate": rate}
            if (
                len(recent) == self._config.attempts
                and not self._config.low <= rate <= self._config.high
            ):
                step = self._config.step if rate > self._config.high else -self._config.step
                self.levels[name] = round(min(1.0, max(0.0, level + step)), _DIGITS)
                self._passed[name] = []
        return metrics

    def state(self) -> dict[str, Any]:
        """For a checkpoint, as JSON."""
        passed = {name: list(found) for name, found in self._passed.items()}
        return {"levels": dict(self.levels), "passed": passed, "configured": dict(self._configured)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; an environment that it does not know, or that is configured with another level now, starts anew."""
        if not self._config.enabled:
            return
        before = state.get("configured", self._configured)
        known = [
            name
            for name, level in self._configured.items()
            if name in state["levels"] and before.get(name) == level
        ]
        self.levels |= {name: state["levels"][name] for name in known}
        self._passed |= {name: list(state["passed"][name]) for name in known}
