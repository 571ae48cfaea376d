"""What a task must be: a function of its key, the same in every process, without its own answer, and held out where it says so."""

from __future__ import annotations

import math
import pickle
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import Subject, place, prompt_text, shown
from grpo_core.protocol.types import Split, Task, TaskKey
from grpo_core.verify.checks import size_of

_NEIGHBOURS = 12
_STRIDES = (
    1,
    10,
    100,
    500,
    1000,
    1024,
    5000,
    10_000,
    65_536,
    100_000,
    10**6,
    10**7,
    10**8,
    10**9,
    2**20,
    2**31,
    2**32,
)
"""What authors add to an index or seed to keep held-out tasks apart."""
_LISTED = 10_000
_MOSTLY = 0.75
_BY_CHANCE = 0.5


async def contract(subject: Subject) -> str:
    env = subject.env
    low, high = env.reward_range
    if not env.parts or not all(math.isfinite(weight) for weight in env.parts.values()):
        raise BrokenPromiseError(
            f"parts must name reward parts with finite weights; found {dict(env.parts)}"
        )
    if not low <= env.floor <= high or low >= high:
        raise BrokenPromiseError(
            f"floor {env.floor:g} must lie in reward_range {low:g}..{high:g}, which must not be empty"
        )
    return f"the parts are {', '.join(env.parts)}, totals are {low:g}..{high:g}, the floor is {env.floor:g}"


async def made(subject: Subject) -> str:
    if not subject.tasks:
        raise NotCheckedError("there are no tasks in the train split")
    return f"{len(subject.tasks)} train and {len(subject.eval_tasks)} eval tasks ask something"


async def pure(subject: Subject) -> str:
    _some(subject)
    compared = True
    for number, task in enumerate(reversed(subject.tasks)):  # another order than the first time
        with _global_generators(number):
            again = await subject.make(task.key)
        same = _same(again.data, task.data)
        if again.prompt != task.prompt or same is False:
            raise BrokenPromiseError(
                f"task() gave two different tasks for {task.key}; take all randomness from key.rng()"
            )
        compared = compared and same is not None
    if not compared:
        raise NotCheckedError(
            "the prompts agree, but the data can be neither compared nor pickled; keep it plain"
        )
    return f"{len(subject.tasks)} keys gave the same task twice, in another order and with other global generators"


async def untouched(subject: Subject) -> str:
    """Seeding the global generator in task() makes every draw elsewhere in the run depend on which task came last."""
    _some(subject)
    for task in subject.tasks[: subject.few]:
        with _global_generators(0) as states:
            before = [state() for state in states]
            await subject.make(task.key)
            if [state() for state in states] != before:
                raise BrokenPromiseError(
                    f"task() draws from or seeds a global random generator ({place(task)}); take a generator of its own from key.rng()"
                )
    return "the global random generators stay as they were"


async def picklable(subject: Subject) -> str:
    _some(subject)
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


async def seeds(subject: Subject) -> str:
    """Streams of seed + index repeat one another: the tasks of seed 1 are those of seed 0, moved by one."""
    if size_of(subject.env, "train") is not None:
        raise NotCheckedError("the tasks are a finite list, whose indices are its lines")
    keys = [TaskKey(subject.name, "train", index, subject.seed) for index in range(_NEIGHBOURS)]
    here = [_asked(await subject.make(key)) for key in keys]
    if len(set(here)) < 3:
        raise NotCheckedError(
            f"the first {_NEIGHBOURS} tasks ask {len(set(here))} different things, too few to compare"
        )
    moved = [
        _asked(await subject.make(replace(key, index=key.index - 1, seed=key.seed + 1)))
        for key in keys[1:]
    ]
    if sum(a == b for a, b in zip(here[1:], moved, strict=True)) >= _BY_CHANCE * len(moved):
        raise BrokenPromiseError(
            f"the tasks of seed {subject.seed + 1} are those of seed {subject.seed}, one further on: seed and index are added up; "
            "use key.rng()"
        )
    count = size_of(subject.env, "eval")
    held_out = {
        _asked(await subject.make(replace(key, split="eval")))
        for key in keys
        if count is None or key.index < count
    }
    for stride in _STRIDES:
        found = [
            _asked(await subject.make(replace(keys[0], index=stride + index))) for index in range(4)
        ]
        again = [text for text in found if text in held_out]
        if len(again) >= 3:
            raise BrokenPromiseError(
                f"training index {stride} and those after it are held-out tasks, such as {shown(again[0])}; use key.rng()"
            )
    return f"neighbouring seeds share nothing, nor do held-out tasks and {len(_STRIDES)} places of the training stream"


async def splits(subject: Subject) -> str:
    if not subject.eval_tasks or not subject.tasks:
        raise NotCheckedError("one of the splits has no tasks")
    train: dict[str, list[Task[Any]]] = {}
    for task in [*subject.tasks, *await _listed(subject, "train")]:
        train.setdefault(_asked(task), []).append(task)
    if len(train) == 1 < len(subject.tasks):
        raise NotCheckedError(
            "all prompts are alike: what tells tasks apart is hidden from the policy"
        )
    held_out = {
        _asked(task): task for task in [*subject.eval_tasks, *await _listed(subject, "eval")]
    }
    both = [task for asked, task in held_out.items() if asked in train]
    shared = [task for task in both if await _known(subject, task, train[_asked(task)])]
    if shared:
        example = prompt_text(shared[0])
        raise BrokenPromiseError(
            f"{len(shared)} held-out prompts are training prompts, too, such as {shown(example)}; held-out scores mean nothing"
        )
    others = f" ({len(both)} are the same, with other answers)" if both else ""
    return f"{len(train)} train and {len(held_out)} eval prompts share none, whatever their case and spacing{others}"


async def _known(subject: Subject, held_out: Task[Any], trained: Sequence[Task[Any]]) -> bool:
    """Whether the answer was to be learned, of tasks with the same prompt: a gap in a text may stand for different words."""
    if subject.reference_error:
        return True
    answers = [await subject.verifier.reference(task) for task in (held_out, *trained)]
    return answers[0] is None or answers[0] in answers[1:]


async def _listed(subject: Subject, split: Split) -> list[Task[Any]]:
    """What a finite list holds, since what leaks there is a few lines of many: all of it, or so many tasks from its start."""
    size = size_of(subject.env, split)
    if size is None or size_of(subject.env, "train") is None:
        return []
    return [
        await subject.make(TaskKey(subject.name, split, index, subject.seed))
        for index in range(min(size, _LISTED))
    ]


async def secret(subject: Subject) -> str:
    """An answer that stands in its own prompt more often than in those of other tasks."""
    if subject.env.answer_in_prompt:
        raise NotCheckedError("the environment says that a prompt may hold its answer")
    known = [
        (task, inner)
        for index, (task, _) in enumerate(subject.answered)
        if (inner := subject.inner(index)) and inner.strip()
    ]
    if len(known) < 4:
        raise NotCheckedError(
            "too few answers are known; write reference(), and give what was extracted as the verdict's answer"
        )
    prompts = [_words(prompt_text(task)) for task, _ in known]
    answers = [_words(answer) for _, answer in known]
    own = [answer in prompt for answer, prompt in zip(answers, prompts, strict=True)]
    others = [
        answer in prompt
        for i, answer in enumerate(answers)
        for j, prompt in enumerate(prompts)
        if i != j and answers[j] != answer
    ]
    by_chance = sum(others) / len(others) if others else 0.0
    if sum(own) / len(own) >= max(_MOSTLY, by_chance + _BY_CHANCE):
        example = known[own.index(True)]
        raise BrokenPromiseError(
            f"the prompt holds the answer in {sum(own)} of {len(own)} tasks, such as {shown(example[1])} at {place(example[0])}; "
            "if the task is meant so (multiple choice, copying), set answer_in_prompt = True"
        )
    return f"of {len(own)} answers {sum(own)} stand in their own prompt, {by_chance:.0%} in that of another task"


def _some(subject: Subject) -> None:
    if not subject.tasks:
        raise NotCheckedError("there are no tasks in the train split")


def _words(text: str) -> str:
    """As words between spaces, so that 4 is not found in 42."""
    words = re.findall(r"[\w.+-]+", text.casefold())
    return f" {' '.join(words)} "


def _asked(task: Task[Any]) -> str:
    """What a prompt asks, however it is spelt."""
    return " ".join(re.findall(r"\w+|[^\w\s]", prompt_text(task).casefold())).rstrip(" .!?")


class _global_generators:  # noqa: N801 - used as a function
    """Seeds Python's (and NumPy's, where it is loaded) global generator for a while. Gives functions that read their states."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: list[Callable[[], Any]] = [random.getstate]
        self._numpy: Any = sys.modules.get("numpy.random")

    def __enter__(self) -> list[Callable[[], Any]]:
        self._kept = random.getstate()
        random.seed(self._seed)
        if self._numpy is not None:
            self._kept_numpy = self._numpy.get_state()
            self._numpy.seed(self._seed)
            self._states.append(lambda: pickle.dumps(self._numpy.get_state()))
        return self._states

    def __exit__(self, *_: object) -> None:
        random.setstate(self._kept)
        if self._numpy is not None:
            self._numpy.set_state(self._kept_numpy)


def _same(one: object, two: object) -> bool | None:
    """None: cannot be told."""
    try:
        return bool(one == two) or pickle.dumps(one) == pickle.dumps(two)
    except Exception:  # noqa: BLE001 - comparing and pickling run code of the environment
        return None
