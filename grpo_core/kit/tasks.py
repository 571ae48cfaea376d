"""Checks of tasks.

A task must be a function of its key, the same in every process, not contain its own answer, and be
held out if its split says so.
"""

from __future__ import annotations

import pickle
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import Subject, task_label
from grpo_core.protocol.types import Split, Task, TaskKey
from grpo_core.report.floors import prompt_text, shorten
from grpo_core.verify.checks import size_of

_NEIGHBOURS = 12
"""Neighbouring tasks that are compared."""
_OFFSETS = (
    *(1, 10, 100, 500, 1000, 1024, 5000, 10_000, 65_536),
    *(10**5, 10**6, 10**7, 10**8, 10**9, 2**20, 2**31, 2**32),
)
"""Offsets that authors add to an index or seed to keep held-out tasks apart."""
_MAX_LISTED = 10_000
"""Tasks of a finite list that are compared."""
_MOST_PROMPTS = 0.75
"""The least share of prompts with their own answer at which the environment gives it away."""
_BY_CHANCE = 0.5
"""The share of equal tasks that may be chance, and the allowed excess of answers in own prompts."""


async def check_made(subject: Subject) -> str:
    """Report how many tasks were made; `prepare` has raised if one could not be made."""
    return f"{len(subject.tasks)} train and {len(subject.eval_tasks)} eval tasks have a prompt"


async def check_pure(subject: Subject) -> str:
    """Check that a key gives the same task again, in another order and with other global seeds."""
    comparable = True
    for number, task in enumerate(reversed(subject.tasks)):  # another order than the first time
        with _global_generators(number):
            again = await subject.make_task(task.key)
        same = _are_equal(again.data, task.data)
        if again.prompt != task.prompt or same is False:
            raise BrokenPromiseError(
                f"task() gave two different tasks for {task.key}; take all randomness from "
                "key.rng()"
            )
        comparable = comparable and same is not None
    if not comparable:
        raise NotCheckedError(
            "the prompts agree, but the data can be neither compared nor pickled; keep it plain"
        )
    return (
        f"{len(subject.tasks)} keys gave the same task twice, in another order and with other "
        "global generators"
    )


async def check_global_generators(subject: Subject) -> str:
    """Check that task() leaves the global random generators unchanged.

    Seeding them in task() would make every random draw elsewhere depend on the last task.
    """
    for task in subject.tasks[: subject.small_count]:
        with _global_generators(0) as states:
            before = [state() for state in states]
            await subject.make_task(task.key)
            if [state() for state in states] != before:
                raise BrokenPromiseError(
                    f"task() draws from or seeds a global random generator ({task_label(task)}); "
                    "take a generator of its own from key.rng()"
                )
    return "the global random generators stay as they were"


async def check_pickle(subject: Subject) -> str:
    """Check that tasks can be pickled, so that they can be sent to another process."""
    for task in subject.tasks:
        try:
            same = pickle.loads(pickle.dumps(task)).prompt == task.prompt
        except Exception as error:
            raise BrokenPromiseError(
                f"the task of {task.key} cannot be pickled: {error}; keep only plain data in it"
            ) from error
        if not same:
            raise BrokenPromiseError(
                f"the task of {task.key} comes back from pickle with another prompt"
            )
    return f"{len(subject.tasks)} tasks survive pickling"


async def check_seeds(subject: Subject) -> str:
    """Check that neighbouring seeds and indices give different tasks, and splits do not overlap.

    With randomness from seed + index, the tasks of seed 1 are those of seed 0 moved by one.
    """
    if size_of(subject.env, "train") is not None:
        raise NotCheckedError("the tasks are a finite list, whose indices are its lines")
    keys = [TaskKey(subject.name, "train", index, subject.seed) for index in range(_NEIGHBOURS)]
    questions = [_normalized_prompt(await subject.make_task(key)) for key in keys]
    if len(set(questions)) < 3:
        raise NotCheckedError(
            f"the first {_NEIGHBOURS} tasks ask {len(set(questions))} different things, too few to "
            "compare"
        )
    moved_questions = [
        _normalized_prompt(
            await subject.make_task(replace(key, index=key.index - 1, seed=key.seed + 1))
        )
        for key in keys[1:]
    ]
    if sum(a == b for a, b in zip(questions[1:], moved_questions, strict=True)) >= _BY_CHANCE * len(
        moved_questions
    ):
        raise BrokenPromiseError(
            f"the tasks of seed {subject.seed + 1} are those of seed {subject.seed}, one further "
            "on: seed and index are added up; use key.rng()"
        )
    count = size_of(subject.env, "eval")
    held_out = {
        _normalized_prompt(await subject.make_task(replace(key, split="eval")))
        for key in keys
        if count is None or key.index < count
    }
    for offset in _OFFSETS:
        far_questions = [
            _normalized_prompt(await subject.make_task(replace(keys[0], index=offset + index)))
            for index in range(4)
        ]
        repeated = [text for text in far_questions if text in held_out]
        if len(repeated) >= 3:
            raise BrokenPromiseError(
                f"training index {offset} and those after it are held-out tasks, such as "
                f"{shorten(repeated[0])}; use key.rng()"
            )
    return (
        f"neighbouring seeds share no tasks, nor do held-out tasks and {len(_OFFSETS)} places of "
        "the training stream"
    )


async def check_splits(subject: Subject) -> str:
    """Check that no held-out prompt is a training prompt, whatever its case and spacing."""
    if not subject.eval_tasks:
        raise NotCheckedError("there are no tasks in the eval split")
    train: dict[str, list[Task[Any]]] = {}
    for task in [*subject.tasks, *await _listed_tasks(subject, "train")]:
        train.setdefault(_normalized_prompt(task), []).append(task)
    if len(train) == 1 < len(subject.tasks):
        raise NotCheckedError(
            "all prompts are alike: what tells tasks apart is hidden from the policy"
        )
    held_out = {
        _normalized_prompt(task): task
        for task in [*subject.eval_tasks, *await _listed_tasks(subject, "eval")]
    }
    in_both = [task for question, task in held_out.items() if question in train]
    shared = [
        task
        for task in in_both
        if await _answer_was_trained(subject, task, train[_normalized_prompt(task)])
    ]
    if shared:
        raise BrokenPromiseError(
            f"{len(shared)} held-out prompts are training prompts, too, such as "
            f"{shorten(prompt_text(shared[0]))}; held-out scores mean nothing"
        )
    others = f" ({len(in_both)} are the same, with other answers)" if in_both else ""
    return (
        f"{len(train)} train and {len(held_out)} eval prompts share none, whatever their case and "
        f"spacing{others}"
    )


async def _answer_was_trained(
    subject: Subject, held_out: Task[Any], trained: Sequence[Task[Any]]
) -> bool:
    """Return whether one of the training tasks with the same prompt has the answer of `held_out`.

    The same prompt may have different answers: a gap in a text may stand for different words.
    """
    if subject.reference_error:
        return True
    answers = [await subject.verifier.reference(task) for task in (held_out, *trained)]
    return answers[0] is None or answers[0] in answers[1:]


async def _listed_tasks(subject: Subject, split: Split) -> list[Task[Any]]:
    """Return the first tasks of a finite list, at most `_MAX_LISTED`; none of an endless stream.

    Where a list leaks, it is often a few lines of many, so the examined tasks are not enough.
    """
    size = size_of(subject.env, split)
    if size is None or size_of(subject.env, "train") is None:
        return []
    return [
        await subject.make_task(TaskKey(subject.name, split, index, subject.seed))
        for index in range(min(size, _MAX_LISTED))
    ]


async def check_secret(subject: Subject) -> str:
    """Check that answers are not more frequent in their own prompt than in those of other tasks."""
    if subject.env.answer_in_prompt:
        raise NotCheckedError("the environment declares answer_in_prompt = True")
    known = [
        (task, answer)
        for index, (task, _) in enumerate(subject.answered)
        if (answer := subject.bare_answer(index)) and answer.strip()
    ]
    if len(known) < 4:
        raise NotCheckedError(
            "too few answers are known; write reference(), and give what was extracted as the "
            "verdict's answer"
        )
    prompts = [_spaced_words(prompt_text(task)) for task, _ in known]
    answers = [_spaced_words(answer) for _, answer in known]
    in_own_prompt = [answer in prompt for answer, prompt in zip(answers, prompts, strict=True)]
    in_other_prompts = [
        answer in prompt
        for i, answer in enumerate(answers)
        for j, prompt in enumerate(prompts)
        if i != j and answers[j] != answer
    ]
    by_chance = sum(in_other_prompts) / len(in_other_prompts) if in_other_prompts else 0.0
    if sum(in_own_prompt) / len(in_own_prompt) >= max(_MOST_PROMPTS, by_chance + _BY_CHANCE):
        example_task, example_answer = known[in_own_prompt.index(True)]
        raise BrokenPromiseError(
            f"the prompt holds the answer in {sum(in_own_prompt)} of {len(in_own_prompt)} tasks, "
            f"such as {shorten(example_answer)} at {task_label(example_task)}; if the task is "
            "meant so (multiple choice, copying), set answer_in_prompt = True"
        )
    return (
        f"of {len(in_own_prompt)} answers {sum(in_own_prompt)} are in their own prompt, "
        f"{by_chance:.0%} in that of another task"
    )


def _spaced_words(text: str) -> str:
    """Return the words of `text` between spaces, so that 4 is not found in 42."""
    words = re.findall(r"[\w.+-]+", text.casefold())
    return f" {' '.join(words)} "


def _normalized_prompt(task: Task[Any]) -> str:
    """Return the prompt without differences of case, spacing and final punctuation."""
    return " ".join(re.findall(r"\w+|[^\w\s]", prompt_text(task).casefold())).rstrip(" .!?")


@contextmanager
def _global_generators(seed: int) -> Iterator[list[Callable[[], Any]]]:
    """Seed the global generators of Python and, where it is loaded, NumPy during the block.

    Yields functions that read the states of the generators, which are restored afterwards.
    """
    states: list[Callable[[], Any]] = [random.getstate]
    numpy: Any = sys.modules.get("numpy.random")
    with ExitStack() as restoring:
        restoring.callback(random.setstate, random.getstate())
        random.seed(seed)
        if numpy is not None:
            restoring.callback(numpy.set_state, numpy.get_state())
            numpy.seed(seed)
            states.append(lambda: pickle.dumps(numpy.get_state()))
        yield states


def _are_equal(first: object, second: object) -> bool | None:
    """Return whether two values are equal, by comparison or pickled; None if neither works."""
    try:
        return bool(first == second) or pickle.dumps(first) == pickle.dumps(second)
    except Exception:  # noqa: BLE001 - comparing and pickling run code of the environment
        return None
