"""Judge strategies on the tasks of a level, all of them on some tasks and the best on all.

They go the way of a model's answers: the same workers, services, deadlines and errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core import ConfigError, GrpoError, Task, TaskKey
from grpo_core.api.calls import StopRequest
from grpo_core.api.protocol import Split
from grpo_core.api.verify import Verifier, size_of
from grpo_kit.dialogues.scripts import attempt_verdicts, join_turns
from grpo_kit.shortcuts.asked import SeenPrompt
from grpo_kit.shortcuts.mistakes import declared_mistakes, made_mistakes, offers_mutants
from grpo_kit.shortcuts.shape import learn_shape
from grpo_kit.shortcuts.strategies import compose, distinct
from grpo_kit.shortcuts.strategy import Candidate
from grpo_kit.shortcuts.tried import LevelHunt, Tried, TriedOutcome, tried_of

_MOST_LEARNED = 200
"""Tasks from whose references forms and frequent answers are learned."""
_SCREENED, _LEAST_SCREENED = 0.2, 10
"""The share of tasks on which every strategy is judged, and the least number of them."""
_BEST, _BEST_MISTAKES = 12, 8
"""The most strategies and mistakes that are judged on all tasks."""
_LEAST_BEST = 3
"""So many strategies are judged on all tasks even if they earned nothing."""
_AT_ONCE = 32
"""Attempts that are verified at the same time."""

Progress = Callable[[int, int], None]
"""Receives how many attempts were judged, and how many there are so far."""


@dataclass(frozen=True, slots=True)
class HuntPlan:
    """Which tasks strategies are tried on."""

    name: str
    """The environment's name in task keys."""
    tasks: int
    split: Split
    seed: int
    level: float


@dataclass(slots=True)
class _Bench:
    """Judges each answer to a task once."""

    verifier: Verifier
    tasks: Sequence[Task[Any]]
    progress: Progress
    stop: StopRequest
    known: dict[tuple[int, str], TriedOutcome] = field(default_factory=dict)
    planned: int = 0

    async def judge(self, candidates: Sequence[Candidate], places: Iterable[int]) -> None:
        """Judge the answers of candidates to the tasks at some places, until asked to stop."""
        attempts = dict.fromkeys(
            (place, answer)
            for place in places
            for candidate in candidates
            if (answer := candidate.answers[place]) is not None
        )
        todo = [attempt for attempt in attempts if attempt not in self.known]
        self.planned = len(self.known) + len(todo)
        for start in range(0, len(todo), _AT_ONCE):
            if self.stop.is_made:
                return
            chunk = todo[start : start + _AT_ONCE]
            verdicts = await attempt_verdicts(
                self.verifier, [(self.tasks[place], text) for place, text in chunk]
            )
            for attempt, verdict in zip(chunk, verdicts, strict=True):
                self.known[attempt] = (
                    TriedOutcome(verdict.total, verdict.passed)
                    if verdict.scored
                    else TriedOutcome(0.0, False, verdict.error or "there is no verdict")
                )
            self.progress(len(self.known), self.planned)

    def tried(self, candidate: Candidate, floor: float, count: int) -> Tried:
        """Return what a candidate got on those of the first tasks on which it was judged."""
        outcomes = [
            None if answer is None else self.known[place, answer]
            for place, answer in enumerate(candidate.answers[:count])
            if answer is None or (place, answer) in self.known
        ]
        return tried_of(candidate, outcomes, floor)

    def ranked(
        self, candidates: Sequence[Candidate], floor: float, count: int
    ) -> list[tuple[Candidate, Tried]]:
        """Return candidates with what they got, the highest mean reward first.

        Mistakes, each of which can be made in other tasks, come by the number of tasks passed.
        """
        pairs = [(candidate, self.tried(candidate, floor, count)) for candidate in candidates]

        def rank(pair: tuple[Candidate, Tried]) -> tuple[float, ...]:
            earned = (-pair[1].reward, -pair[1].passes)
            return (pair[1].tasks == 0, *(earned[::-1] if pair[0].kind == "mistake" else earned))

        return sorted(pairs, key=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composed:
    """Holds what is to be tried on some tasks."""

    tasks: Sequence[Task[Any]]
    reference: Candidate
    strategies: Sequence[Candidate]
    mistakes: Sequence[Candidate]
    learned: int
    """References of other tasks that were learned from."""
    even_chance: float
    notes: Sequence[str]


async def hunt(
    verifier: Verifier, plan: HuntPlan, *, progress: Progress, stop: StopRequest
) -> LevelHunt:
    """Try all strategies on the tasks of a plan, and return what they got.

    Args:
        verifier: Makes the tasks, and judges.
        plan: The tasks.
        progress: Is told of each judged chunk.
        stop: Ends the search early; what was judged so far is returned.

    Raises:
        GrpoError: A task cannot be made, or the split has none.
    """
    composed = await _compose(verifier, plan)
    floor, count = verifier.env.floor, len(composed.tasks)
    bench = _Bench(verifier, composed.tasks, progress, stop)
    screened = min(count, max(_LEAST_SCREENED, round(_SCREENED * count)))
    right, mistakes = composed.reference, composed.mistakes
    await bench.judge([right, *composed.strategies, *mistakes], range(screened))
    best = [
        candidate
        for rank, (candidate, tried) in enumerate(
            bench.ranked(composed.strategies, floor, screened)
        )
        if rank < _LEAST_BEST or (rank < _BEST and tried.earns_above(floor))
    ]
    ranked = [candidate for candidate, _ in bench.ranked(mistakes, floor, screened)]
    paid = [c for rank, c in enumerate(ranked) if rank < _BEST_MISTAKES or c.declared]
    await bench.judge([right, *best, *paid], range(screened, count))
    errors = [outcome.error for outcome in bench.known.values() if outcome.error]
    paid_mistakes = [tried for _, tried in bench.ranked(paid, floor, count)]
    return LevelHunt(
        level=plan.level,
        tasks=count,
        screened=screened,
        learned=composed.learned,
        composed=len(composed.strategies),
        mistaken=len(mistakes),
        floor=floor,
        even_chance=composed.even_chance,
        open_ended=verifier.env.open_ended,
        reference=bench.tried(right, floor, count) if any(right.answers) else None,
        strategies=tuple(tried for _, tried in bench.ranked(best, floor, count)),
        mistakes=tuple(tried for tried in paid_mistakes if tried.earns_above(floor)),
        attempts=len(bench.known),
        errors=len(errors),
        error=errors[0] if errors else "",
        notes=tuple(composed.notes),
        stopped=stop.is_made,
    )


async def _compose(verifier: Verifier, plan: HuntPlan) -> _Composed:
    """Return what is to be tried on the tasks of a plan.

    Raises:
        GrpoError: A task cannot be made, or the split has none.
    """
    tried_keys, other_keys = _keys(verifier, plan)
    tasks, others = await verifier.tasks(tried_keys), await verifier.tasks(other_keys)
    learned, notes = await _references(verifier, others)
    references, _ = await _references(verifier, tasks)
    pairs = [
        (SeenPrompt.of(task), text)
        for task, text in zip(others, learned, strict=True)
        if text is not None
    ]
    shape = learn_shape([text for _, text in pairs])
    declared, faults = await declared_mistakes(verifier.env, await _inline(verifier, tried_keys))
    return _Composed(
        tasks=tasks,
        reference=Candidate("the reference", "others", references),
        strategies=compose(shape, pairs, list(map(SeenPrompt.of, tasks)), verifier.env.max_turns),
        mistakes=distinct([*declared, *made_mistakes(shape, references)]),
        learned=len(pairs),
        even_chance=shape.even_chance,
        notes=[*notes, *faults],
    )


def _keys(verifier: Verifier, plan: HuntPlan) -> tuple[list[TaskKey], list[TaskKey]]:
    """Return the keys of the tasks to be tried, and those of other tasks to learn from.

    Policies learn from training tasks. A finite list of them is divided in two.

    Raises:
        ConfigError: The split has no tasks.
    """
    size, training = size_of(verifier.env, plan.split), size_of(verifier.env, "train")
    if size == 0:
        raise ConfigError(
            f"the {plan.split} split of {plan.name!r} has no tasks; choose the other by --split"
        )
    if plan.split == "train":
        count = plan.tasks if size is None else min(plan.tasks, (size + 1) // 2)
        first = count
    else:
        count = plan.tasks if size is None else min(plan.tasks, size)
        first = 0
    end = first + min(_MOST_LEARNED, plan.tasks)
    end = end if training is None else min(end, training)

    def keys(split: Split, indices: range) -> list[TaskKey]:
        return [TaskKey(plan.name, split, i, plan.seed, plan.level) for i in indices]

    return keys(plan.split, range(count)), keys("train", range(first, end))


async def _references(
    verifier: Verifier, tasks: Sequence[Task[Any]]
) -> tuple[list[str | None], list[str]]:
    """Return the reference of each task with its turns joined, and why some are missing."""

    async def reference(task: Task[Any]) -> str | GrpoError | None:
        try:
            return join_turns(await verifier.reference(task))
        except GrpoError as error:
            return error

    answers = list[str | GrpoError | None]()
    for start in range(0, len(tasks), _AT_ONCE):
        answers += await asyncio.gather(*map(reference, tasks[start : start + _AT_ONCE]))
    failures = [str(answer) for answer in answers if isinstance(answer, GrpoError)]
    notes = [f"{len(failures)} references failed; the first: {failures[0]}"] if failures else []
    return [None if isinstance(answer, GrpoError) else answer for answer in answers], notes


async def _inline(verifier: Verifier, keys: Sequence[TaskKey]) -> list[Task[Any]]:
    """Return tasks with their data, which a worker keeps; none if there are no mutants."""
    if not offers_mutants(verifier.env):
        return []
    settings = verifier.settings.model_copy(update={"isolation": "inline"})
    return await Verifier(verifier.env, settings=settings, closes_env=False).tasks(keys)
