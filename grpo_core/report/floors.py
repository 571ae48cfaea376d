"""Measure the floors of an environment: the rewards of answers that ignore the task.

The author's kit tries the same answers, and requires that they do not pay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Message, Rollout, Task, Verdict
from grpo_core.verify.sources import Sources

SILENCE: Mapping[str, str] = {"nothing": "", "white space": " \t\n "}
"""Answers that say nothing, by their name."""
COMMON_ANSWERS = ("0", "1", "yes", "no", "True", "A", "[]")
"""Answers that are right for some tasks of many environments, tried as constant answers."""
_REFERENCES_TRIED = 8
"""How many references of other tasks are tried as constant answers, the most frequent first.

Each costs a verdict for every task.
"""


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
        reward = fmean(verdict.total for verdict in scored)
        pass_rate = fmean(verdict.passed for verdict in scored)
        return cls(answer, reward, pass_rate, len(scored), len(verdicts) - len(scored), note)

    @property
    def passed(self) -> int:
        """Return the number of tasks that the answer passes."""
        return round((self.pass_rate or 0.0) * self.tasks)


def constant_answers(references: Iterable[str | None], common: Iterable[str]) -> list[str]:
    """Return the constant answers to try: the most frequent references, then common answers."""
    frequent = Counter(text for text in references if text is not None)
    return list(
        dict.fromkeys([*(text for text, _ in frequent.most_common(_REFERENCES_TRIED)), *common])
    )


def prompt_text(task: Task[Any]) -> str:
    """Return the prompt of `task` as one text."""
    return (
        task.prompt
        if isinstance(task.prompt, str)
        else "\n".join(message.content for message in task.prompt)
    )


def shorten(text: object, size: int = 60) -> str:
    """Return `text` quoted, and cut after `size` characters."""
    quoted = repr(text)
    return quoted if len(quoted) <= size else f"{quoted[:size]}..."


@dataclass(frozen=True, slots=True)
class FloorMeasurement:
    """The tasks and answers of which floors are measured."""

    sources: Sources
    tasks: Sequence[Task[Any]]
    own_references: Sequence[str | None]
    """The reference of each task."""
    other_references: Sequence[str | None]
    """References of other tasks."""
    tried: Callable[[], None]
    """Called after each way of answering was judged."""

    async def floors(self) -> tuple[Floor, ...]:
        """Return the floor of each way of answering; empty without tasks."""
        if not self.tasks:
            return ()
        silence = [await self._constant(name, text) for name, text in SILENCE.items()]
        return (
            *silence,
            await self._floor("the prompt echoed", [prompt_text(task) for task in self.tasks]),
            await self._best_constant(),
            await self._floor("another task's reference", self.other_references),
            await self._floor("the reference", self.own_references),
        )

    async def _best_constant(self) -> Floor:
        """Return the floor of the constant answer with the highest reward, then pass rate.

        The highest of several means is slightly above what the same answer would get on new tasks.
        """
        candidates = [
            await self._constant("the best constant", text, note=shorten(text, 50))
            for text in constant_answers(self.other_references, COMMON_ANSWERS)
        ]
        best = max(
            candidates,
            key=lambda floor: (floor.tasks > 0, floor.reward or 0.0, floor.pass_rate or 0.0),
        )
        return (
            replace(best, note=f"{best.note}, of {len(candidates)} tried") if best.tasks else best
        )

    async def _constant(self, name: str, text: str, *, note: str = "") -> Floor:
        """Return the floor of one text as the answer to every task."""
        return await self._floor(name, [text] * len(self.tasks), note=note)

    async def _floor(self, name: str, answers: Sequence[str | None], *, note: str = "") -> Floor:
        """Return the means over the tasks for which `answers` has an answer."""
        attempts = [
            (task, answer)
            for task, answer in zip(self.tasks, answers, strict=False)
            if answer is not None
        ]
        rollouts = [await self._constant_rollout(task, answer) for task, answer in attempts]
        judged = await self.sources.verify(
            [task for task, _ in attempts], [[rollout] for rollout in rollouts]
        )
        self.tried()
        return Floor.of(name, [verdict for (verdict,) in judged], note=note)

    async def _constant_rollout(self, task: Task[Any], answer: str) -> Rollout:
        """Return a rollout that gives `answer` in every turn."""
        messages: list[Message] = [Message("assistant", answer)]
        try:
            for _ in range(1, self.sources[task.key.env].env.max_turns):
                reply = await self.sources.reply(task, tuple(messages))
                if reply is None:
                    break
                messages += [*reply, Message("assistant", answer)]
        except GrpoError:  # the engine reports such a rollout as one that could not be judged
            return Rollout(tuple(messages), finish="error")
        return Rollout(tuple(messages))
