"""Hold the floors of an environment: the rewards of answers that ignore the task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from grpo_core.protocol.types import Verdict

_REFERENCES_TRIED = 8
"""How many references of other tasks are tried as constant answers, the most frequent first.

Each costs a verdict for every task.
"""

_Answer = TypeVar("_Answer", bound=str | tuple[str, ...])


@dataclass(frozen=True, slots=True)
class Floor:
    """Hold the mean reward over tasks of one kind of answer that ignores the task."""

    answer: str
    """The kind of answer, such as "the best constant"."""
    reward: float | None = None
    """The mean total reward; None if nothing could be judged."""
    pass_rate: float | None = None
    """The share of tasks that the answer passes; None if nothing could be judged."""
    tasks: int = 0
    """The number of tasks with a verdict, over which the means are taken."""
    unscored: int = 0
    """The number of attempts that could not be judged."""
    note: str = ""
    """Which answer it was, or why there is no mean."""

    @classmethod
    def of(cls, answer: str, verdicts: Sequence[Verdict], *, note: str = "") -> Floor:
        """Return the means over the verdicts that are scored."""
        scored = [verdict for verdict in verdicts if verdict.scored]
        if not scored:
            reason = verdicts[0].error if verdicts else "the environment gives no such answer"
            return cls(answer, unscored=len(verdicts), note=f"not measured: {reason}")
        return cls(
            answer,
            reward=fmean(verdict.total for verdict in scored),
            pass_rate=fmean(verdict.passed for verdict in scored),
            tasks=len(scored),
            unscored=len(verdicts) - len(scored),
            note=note,
        )

    @property
    def passed(self) -> int:
        """Return the number of tasks that the answer passes."""
        return round((self.pass_rate or 0.0) * self.tasks)


def constant_answers(
    references: Iterable[_Answer | None], common: Iterable[_Answer]
) -> list[_Answer]:
    """Return the constant answers to try: the most frequent references, then common answers."""
    frequent = Counter(answer for answer in references if answer is not None)
    return list(
        dict.fromkeys([*(answer for answer, _ in frequent.most_common(_REFERENCES_TRIED)), *common])
    )
