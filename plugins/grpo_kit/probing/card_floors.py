"""Measure the floors of an environment: the rewards of answers that ignore the task.

The author's kit tries the same answers, and requires that they do not pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo_core import GrpoError, Task, TaskKey
from grpo_core.api.figures import Floor, constant_answers
from grpo_core.api.protocol import Script
from grpo_core.api.verify import Card, Played, Sources, play
from grpo_core.words import prompt_text, shorten
from grpo_core.words.hostile_texts import COMMON_ANSWERS, SILENCE


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


async def measured(
    card: Card, sources: Sources, *, tasks: int, tried: Callable[[], None] = lambda: None
) -> Card:
    """Return `card` with its floors, judged by the engine of `sources`.

    Constant answers and references of "another task" come from as many further tasks, so that no
    answer is tried on the task that it is right for; a small set of tasks is divided in two.

    Args:
        card: The card without floors.
        sources: The environments of the run.
        tasks: The most training tasks to measure on.
        tried: Called after each way of answering was judged.
    """
    size = card.tasks["train"]
    number = 2 * tasks if size is None else min(size, 2 * tasks)
    count = (number + 1) // 2
    keys = [TaskKey(card.name, "train", index, card.seed, card.level) for index in range(number)]
    try:
        all_tasks = await sources.tasks(keys)
        references = await sources.references(all_tasks)
        floors = await measure_floors(
            sources, all_tasks[:count], references[:count], references[count:], tried=tried
        )
    except GrpoError as error:
        return replace(card, unmeasured=str(error))
    return replace(
        card, floors=floors, unmeasured="" if floors else "there are no tasks to measure it on"
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
