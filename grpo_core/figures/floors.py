"""Hold the floors of an environment: the rewards of answers that ignore the task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from grpo_core.protocol.ties import reaches
from grpo_core.protocol.types import Verdict

PAID_SHARE = 0.75
"""A wrong answer that earns this share of what a right one earns is paid."""
ADVICE_BESIDE_RIGHT = {
    "first": "take something off for what is added, or set "
    'answer_at = "start" if the answer counts at the start of a free text',
    "last": "take something off for what is added, or set "
    'answer_at = "end" if the answer counts at the end of a free text',
}
"""What an author can do, by the place of a right answer beside wrong ones that is paid."""

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


def is_paid(verdict: Verdict, *, best: float, floor: float, beside_right: bool = False) -> bool:
    """Return whether a wrong answer is paid: what a check of the kit and an alarm mean by it.

    It passes, or earns PAID_SHARE of what a right answer earns.

    Args:
        verdict: Its verdict.
        best: What a right answer earns.
        floor: What the worst answer earns.
        beside_right: Whether the text holds the right answer as well. It may then earn the share
            that is right, such as 9 of 10 words, so it is paid only if the rest costs nothing.
    """
    share = 1.0 if beside_right else PAID_SHARE
    return verdict.scored and (
        verdict.passed or (best > floor and reaches(verdict.total - floor, share * (best - floor)))
    )


def constant_answers(
    references: Iterable[_Answer | None], common: Iterable[_Answer]
) -> list[_Answer]:
    """Return the constant answers to try: the most frequent references, then common answers."""
    frequent = Counter(answer for answer in references if answer is not None)
    return list(
        dict.fromkeys([*(answer for answer, _ in frequent.most_common(_REFERENCES_TRIED)), *common])
    )
