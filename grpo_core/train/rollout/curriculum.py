"""Adapt each environment's level so that its recent pass rate stays inside a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.config.settings import CurriculumConfig
from grpo_core.protocol.types import Group

_DIGITS = 6
"""Decimals of a level: steps of 0.1 give 0.3, not 0.30000000000000004 (another task)."""


class Curriculum:
    """Moves the level of each environment, a number from 0 to 1, with the pass rate.

    Groups whose rollouts all pass or all fail teach nothing; the window avoids both. When the last
    `attempts` scored rollouts at a level are there and their pass rate is above `high` (below
    `low`), the level rises (falls) by `step`. Counting then starts anew, since those rollouts do
    not describe the new level.
    """

    def __init__(self, config: CurriculumConfig, levels: Mapping[str, float]) -> None:
        self.levels = dict(levels)
        self._config = config
        self._configured = dict(levels)
        self._passed: dict[str, list[bool]] = {name: [] for name in levels}

    def add(self, groups: Sequence[Group[Any]]) -> dict[str, float]:
        """Count a step's verdicts and move the levels; do nothing if the curriculum is off.

        Groups that were dealt before the level last moved do not count.

        Returns:
            Metrics for the log: the levels that the step had and the pass rates that count, by
            environment if there are several.
        """
        if not self._config.enabled:
            return {}
        metrics: dict[str, float] = {}
        for name, level in self.levels.items():
            verdicts = [
                verdict
                for group in groups
                if (group.task.key.env, group.task.key.level) == (name, level)
                for verdict in group.verdicts
            ]
            recent = self._passed[name] = [
                *self._passed[name],
                *(verdict.passed for verdict in verdicts if verdict.scored),
            ][-self._config.attempts :]
            prefix = f"{name}/" if len(self.levels) > 1 else ""
            pass_rate = sum(recent) / len(recent) if recent else float("nan")
            metrics |= {
                f"{prefix}curriculum/level": level,
                f"{prefix}curriculum/pass_rate": pass_rate,
            }
            if (
                len(recent) == self._config.attempts
                and not self._config.low <= pass_rate <= self._config.high
            ):
                step = self._config.step if pass_rate > self._config.high else -self._config.step
                self.levels[name] = round(min(1.0, max(0.0, level + step)), _DIGITS)
                self._passed[name] = []
        return metrics

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON."""
        passed = {name: list(passes) for name, passes in self._passed.items()}
        return {"levels": dict(self.levels), "passed": passed, "configured": dict(self._configured)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint.

        An environment that the checkpoint does not know, or that is configured with another level
        now, starts anew.
        """
        if not self._config.enabled:
            return
        configured_before = state.get("configured", self._configured)
        unchanged = [
            name
            for name, level in self._configured.items()
            if name in state["levels"] and configured_before.get(name) == level
        ]
        self.levels |= {name: state["levels"][name] for name in unchanged}
        self._passed |= {name: list(state["passed"][name]) for name in unchanged}
