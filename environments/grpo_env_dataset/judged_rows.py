"""Rows whose completions a judge model scores, by a rubric of the row or of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from grpo_core import ConfigError, JudgeRequest, Reward, Rollout, Task, Verdict, reaches
from grpo_env_dataset.answers import RUBRICS, BadAnswerError, is_blank
from grpo_env_dataset.base import RowTasks
from grpo_env_dataset.config import DatasetConfig
from grpo_env_dataset.rows import Row, has_field, value_at


class BadRubricError(BadAnswerError):
    """A row has no rubric."""

    advice = "set env.rubric to one for all rows, or env.rubric_field to the field that has it"


@dataclass(frozen=True, slots=True)
class JudgedRowsConfig(DatasetConfig):
    """Settings of the environment: those of rows, and what is said here."""

    reward: tuple[str, ...] = ("judge",)
    """`judge`: a judge model scores the completion from 0 to 1 (`judges.default.name`, ...)."""
    rubric: str = ""
    """What the judge is to look at, where the rows have no rubric of their own."""
    rubric_field: str = ""
    """The row's field with its rubric, a text or a list of texts; "": the first of the usual ones
    (`rubric`, `criteria`, ...)."""
    pass_score: float = 0.7
    """The score from which a completion passes."""
    longest: int = 4000
    """A completion with more characters gets the floor, and is not judged."""


class JudgedRows(RowTasks):
    """Pays what a judge says that a completion is worth."""

    Config = JudgedRowsConfig
    parts: ClassVar[Mapping[str, float]] = {"judge": 1.0}
    needs = frozenset({"judge"})
    timeout_seconds = 120.0
    open_ended = True

    def _prepare(self, rows: Sequence[Row]) -> None:
        if self.config.reward != ("judge",):
            raise ConfigError(
                f"the reward `judge` stands alone; env.reward is {', '.join(self.config.reward)}"
            )
        if not 0 < self.config.pass_score <= 1:
            raise ConfigError(
                f"env.pass_score is {self.config.pass_score:g}; it must be above 0 and at most 1"
            )

    def _check_answer(self, row: Row) -> None:
        self._rubric(row)

    def _rubric(self, row: Row) -> str:
        """Return what the judge is to look at.

        Raises:
            BadRubricError: neither the row nor the settings say it.
        """
        names = (self.config.rubric_field,) if self.config.rubric_field else RUBRICS
        for name in names:
            if not has_field(row, name):
                continue
            value = value_at(row, name)
            lines = value if isinstance(value, list) else [value]
            if all(isinstance(line, str) for line in lines) and not is_blank("".join(lines)):
                return "\n".join(lines)
            raise BadRubricError(f"the field {name!r} holds no text", f"{value!r:.60}")
        if self.config.rubric:
            return str(self.config.rubric)
        raise BadRubricError(
            f"there is no rubric ({', '.join(names)})", f"the row has {', '.join(row)}"
        )

    async def averify(self, task: Task[Row], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        if is_blank(text):
            return _verdict(0.0, note="the completion is empty", answer=None)
        if len(text) > self.config.longest:
            note = f"{len(text)} characters; at most {self.config.longest} are judged"
            return _verdict(0.0, note=note, answer=text[:200])
        said = (message for message in self._messages(task.data) if message.role != "system")
        asked = "\n\n".join(message.content for message in said)
        request = JudgeRequest(
            text,
            context=asked,
            reference=self._reference_text(task.data),
            rubric=self._rubric(task.data),
        )
        (judgement,) = await self.services.judge("default").judge([request])
        if judgement.error is not None:
            raise RuntimeError(judgement.error)
        passed = reaches(judgement.score, self.config.pass_score)
        return _verdict(
            judgement.score, note=judgement.explanation[:500], answer=text[:200], passed=passed
        )

    def _reference_text(self, row: Row) -> str | None:
        """Return the row's answer as the judge's reference; None if it has none."""
        if not self._field or not has_field(row, self._field):
            return None
        value = value_at(row, self._field)
        return value if isinstance(value, str) and not is_blank(value) else None


def _verdict(score: float, *, note: str, answer: str | None, passed: bool = False) -> Verdict:
    return Verdict({"judge": Reward(score, note=note)}, passed=passed, answer=answer)
