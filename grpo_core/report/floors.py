"""Measure the floors of an environment: the rewards of answers that ignore the task.

The author's kit tries the same answers, and requires that they do not pay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from grpo_core.protocol.types import Script, Task, Verdict
from grpo_core.verify.playing import Played, play
from grpo_core.verify.sources import Sources

SILENCE: Mapping[str, str] = {"nothing": "", "white space": " \t\n "}
"""Answers that say nothing, by their name."""
COMMON_ANSWERS = ("0", "1", "yes", "no", "True", "A", "[]")
"""Answers that are right for some tasks of many environments, tried as constant answers."""
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


def prompt_text(task: Task[Any]) -> str:
    """Return the prompt of `task` as one text."""
    return (
        task.prompt
        if isinstance(task.prompt, str)
        else "\n".join(message.content for message in task.prompt)
    )


def last_text(task: Task[Any]) -> str:
    """Return the prompt of `task`, or its last message, which tells it from others."""
    return task.prompt if isinstance(task.prompt, str) else task.prompt[-1].content


def shorten(text: object, size: int = 60) -> str:
    """Return `text` quoted, and cut after `size` characters."""
    quoted = repr(text)
    return quoted if len(quoted) <= size else f"{quoted[:size]}..."


async def measure_floors(
    sources: Sources,
    tasks: Sequence[Task[Any]],
    own_references: Sequence[str | tuple[str, ...] | None],
    other_references: Sequence[str | tuple[str, ...] | None],
    *,
    tried: Callable[[], None],
) -> tuple[Floor, ...]:
    """Return the floor of each way of answering `tasks`; empty without tasks.

    The best constant is the one with the highest reward, then pass rate. The highest of several
    means is slightly above what the same answer would get on new tasks.

    Args:
        sources: The environments of the run.
        tasks: The tasks.
        own_references: The reference of each task.
        other_references: References of other tasks.
        tried: Called after each way of answering was judged.
    """
    if not tasks:
        return ()

    async def floor(name: str, answers: Sequence[Script | None], note: str = "") -> Floor:
        attempts = [
            (task, answer)
            for task, answer in zip(tasks, answers, strict=False)
            if answer is not None
        ]
        played = [await _played(sources, task, answer) for task, answer in attempts]
        tasks_without = [
            task for (task, _), each in zip(attempts, played, strict=True) if each.verdict is None
        ]
        judged = iter(
            await sources.verify(
                tasks_without, [[each.rollout] for each in played if each.verdict is None]
            )
        )
        verdicts = [each.verdict or next(judged)[0] for each in played]
        tried()
        return Floor.of(name, verdicts, note=note)

    silence = [await floor(name, [text] * len(tasks)) for name, text in SILENCE.items()]
    echo = await floor("the prompt echoed", [prompt_text(task) for task in tasks])
    constants = [
        await floor("the best constant", [text] * len(tasks), shorten(text, 50))
        for text in constant_answers(other_references, COMMON_ANSWERS)
    ]
    best = max(constants, key=lambda f: (f.tasks > 0, f.reward or 0.0, f.pass_rate or 0.0))
    if best.tasks:
        best = replace(best, note=f"{best.note}, of {len(constants)} tried")
    return (
        *silence,
        echo,
        best,
        await floor("another task's reference", other_references),
        await floor("the reference", own_references),
    )


async def _played(sources: Sources, task: Task[Any], answer: Script) -> Played:
    """Play a text as the answer in every turn, or a script; an episode also judges it."""
    turns = (lambda _: answer) if isinstance(answer, str) else answer
    source = sources[task.key.env]
    return await play(
        sources,
        task,
        turns,
        max_turns=source.env.max_turns,
        judge=source.verifier.has_episodes,
    )
