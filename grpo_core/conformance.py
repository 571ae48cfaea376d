"""Questions to an environment that settle whether it can be trusted with a run: no model, no GPU, a few seconds.

Each function here looks at one promise of the protocol and returns one sentence: how it is kept. It raises BrokenPromiseError if it is
not, and NotCheckedError if that could not be looked at: such a promise is never reported as kept.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_core.environment import Environment
from grpo_core.errors import GrpoError
from grpo_core.hosts import Host
from grpo_core.types import Rollout, Split, Task, TaskKey, Verdict
from grpo_core.verify import Verifier

Status = Literal["valid", "invalid", "not_checked"]
JUNK = {
    "an empty answer": "",
    "white space": " \t\n ",
    "a NUL": "\x00",
    "a lone surrogate": "\ud800",
    "100,000 digits": "1" * 10**5,
    "deeply nested brackets": "[" * 10_000,
}
_FEW = 5  # tasks for the checks that ask for many verdicts of each
_ENOUGH = 4  # tasks from which a share means something
_TOO_OFTEN = 0.75  # a constant may be right by chance, where answers are few; not this often
_TOLERANCE = 1e-6


class BrokenPromiseError(Exception):
    """The environment does not keep what the protocol promises."""


class NotCheckedError(Exception):
    """There was nothing to look at."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of one check. message: one sentence that says what was found."""

    check: str
    status: Status
    message: str


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment with what was already asked of it. host: this process, where tasks keep their data."""

    env: Environment[Any]
    host: Host
    verifier: Verifier
    tasks: Sequence[Task[Any]]
    eval_tasks: Sequence[Task[Any]]
    references: Sequence[str | None]

    async def verdicts(self, pairs: Sequence[tuple[Task[Any], str]]) -> list[Verdict]:
        rows = await self.verifier.verify([task for task, _ in pairs], [[Rollout.of(text)] for _, text in pairs])
        return [row[0] for row in rows]

    @property
    def answered(self) -> list[tuple[Task[Any], str]]:
        return [(task, text) for task, text in zip(self.tasks, self.references, strict=True) if text is not None]


def task_keys(env: Environment[Any], name: str, split: Split, count: int, seed: int) -> list[TaskKey]:
    """The easiest and the hardest level in turn."""
    size = env.size(split)
    count = count if size is None else min(count, size)
    return [TaskKey(name, split, index, seed, float(index % 2)) for index in range(count)]


async def check_declarations(env: Environment[Any]) -> str:
    low, high = env.reward_range
    if not env.parts or not all(math.isfinite(weight) for weight in env.parts.values()):
        raise BrokenPromiseError(f"parts must name reward parts with finite weights; found {dict(env.parts)}")
    if not low <= env.floor <= high or low >= high:
        raise BrokenPromiseError(f"floor {env.floor:g} must lie in reward_range {low:g}..{high:g}, which must not be empty")
    return f"the parts are {', '.join(env.parts)}, totals are {low:g}..{high:g}, the floor is {env.floor:g}"


async def check_purity(subject: Subject) -> str:
    compared = True
    for task in reversed(subject.tasks):  # another order than the first time
        again = await subject.host.task(task.key, seconds=subject.verifier.settings.task_timeout_seconds)
        same = _same(again.data, task.data)
        if again.prompt != task.prompt or same is False:
            raise BrokenPromiseError(f"task() gave two different tasks for {task.key}; take all randomness from key.rng()")
        compared = compared and same is not None
    if not compared:
        raise NotCheckedError("the prompts agree, but the data can be neither compared nor pickled; keep it plain")
    return f"{len(subject.tasks)} keys gave the same task twice"


async def check_pickling(subject: Subject) -> str:
    for task in subject.tasks:
        try:
            same = pickle.loads(pickle.dumps(task)).prompt == task.prompt
        except Exception as error:
            raise BrokenPromiseError(f"the task of {task.key} cannot be pickled: {error}; keep only plain data in it") from error
        if not same:
            raise BrokenPromiseError(f"the task of {task.key} comes back from pickle with another prompt")
    return f"{len(subject.tasks)} tasks survive pickling"


async def check_splits(subject: Subject) -> str:
    if not subject.eval_tasks or not subject.tasks:
        raise NotCheckedError("one of the splits has no tasks")
    shared = {task.prompt for task in subject.tasks} & {task.prompt for task in subject.eval_tasks}
    if shared:
        raise BrokenPromiseError(f"{len(shared)} prompts are in both splits, such as {_short(shared.pop())}; held-out scores mean nothing")
    return f"{len(subject.tasks)} train and {len(subject.eval_tasks)} eval prompts share none"


async def check_references(subject: Subject) -> str:
    if not subject.answered:
        raise NotCheckedError("reference() gives no answers; write it, so that the verifier is known to accept what is right")
    low, top = subject.env.reward_range
    least = low if subject.env.open_ended else top
    for (task, text), verdict in zip(subject.answered, await subject.verdicts(subject.answered), strict=True):
        if not verdict.scored or not verdict.passed or verdict.total < least - _TOLERANCE:
            wanted = "" if subject.env.open_ended else f" with {top:g}"
            raise BrokenPromiseError(f"the reference {_short(text)} of {task.key} {_got(verdict)}; it must pass{wanted}")
    return f"{len(subject.answered)} references pass{'' if subject.env.open_ended else f' with {top:g}'}"


async def check_cheats(subject: Subject) -> str:
    pairs = [(task, text) for task in subject.tasks[:_FEW] for text in subject.env.cheats(task)]
    if not pairs:
        raise NotCheckedError("cheats() gives no answers; list what a model might try")
    for (task, text), verdict in zip(pairs, await subject.verdicts(pairs), strict=True):
        if not verdict.scored or verdict.passed or verdict.total > subject.env.floor + _TOLERANCE:
            raise BrokenPromiseError(f"the cheat {_short(text)} at {task.key} {_got(verdict)}; it must get the floor {subject.env.floor:g}")
    return f"{len(pairs)} cheats get the floor"


async def check_junk(subject: Subject) -> str:
    """Also shows that every verdict keeps the protocol: its part names, finite numbers, the range, JSON."""
    pairs = [(task, text) for task in subject.tasks[:_FEW] for text in JUNK.values()]
    for (task, text), verdict in zip(pairs, await subject.verdicts(pairs), strict=True):
        if not verdict.scored or verdict.passed:
            name = next(name for name, junk in JUNK.items() if junk == text)
            raise BrokenPromiseError(f"{name} at {task.key} {_got(verdict)}; any text gets a verdict, and this one must not pass")
    return f"{len(JUNK)} kinds of junk get well-formed verdicts and never pass"


async def check_constants(subject: Subject) -> str:
    """The prompt echoed and references of other tasks, where they are not the reference: they may be right by chance, not as a rule."""
    known = dict.fromkeys(text for _, text in subject.answered)
    candidates: list[tuple[str, list[tuple[Task[Any], str]]]] = [
        ("the prompt echoed", [(task, prompt_text(task)) for task in subject.tasks])
    ]
    for constant in list(known)[:_ENOUGH]:
        pairs = [(task, constant) for task, text in subject.answered if text != constant]
        candidates.append((f"the constant answer {_short(constant)}", pairs))
    checked = 0
    for name, pairs in candidates:
        if len(pairs) < _ENOUGH:
            continue
        checked += 1
        passed = sum(verdict.passed for verdict in await subject.verdicts(pairs))
        if passed >= _TOO_OFTEN * len(pairs):
            raise BrokenPromiseError(f"{name} passes {passed} of {len(pairs)} tasks; the verifier does not look at the answer")
    if not checked:
        raise NotCheckedError(f"there are fewer than {_ENOUGH} tasks to try a constant answer on")
    return f"{checked} answers that ignore the task do not pass as a rule"


async def check_determinism(subject: Subject) -> str:
    if not subject.env.deterministic:
        raise NotCheckedError("the environment says that it is not deterministic")
    pairs = [*subject.answered[:_FEW], *((task, prompt_text(task)) for task in subject.tasks[:_FEW])]
    first, second = await subject.verdicts(pairs), (await subject.verdicts(pairs[::-1]))[::-1]
    for (task, text), one, two in zip(pairs, first, second, strict=True):
        if (one.rewards, one.passed, one.answer, one.error) != (two.rewards, two.passed, two.answer, two.error):
            message = (
                f"the answer {_short(text)} at {task.key} first {_got(one)} and then {_got(two)}; mend it or set deterministic = False"
            )
            raise BrokenPromiseError(message)
    return f"{len(pairs)} attempts got the same verdict twice, in another order"


CHECKS: Sequence[Callable[[Subject], Coroutine[Any, Any, str]]] = (
    check_purity,
    check_pickling,
    check_splits,
    check_references,
    check_cheats,
    check_junk,
    check_constants,
    check_determinism,
)


async def settle(name: str, check: Coroutine[Any, Any, str]) -> CheckResult:
    """What became of `check`, whatever it raised."""
    try:
        return CheckResult(name, "valid", await check)
    except NotCheckedError as error:
        return CheckResult(name, "not_checked", str(error))
    except (BrokenPromiseError, GrpoError) as error:
        return CheckResult(name, "invalid", str(error))
    except Exception as error:  # noqa: BLE001 - the environment's own code raised
        return CheckResult(name, "invalid", f"the environment raised {type(error).__name__}: {error}")


async def settle_all(subject: Subject) -> list[CheckResult]:
    """Every check of `CHECKS`, in its order."""
    checks = {check.__name__.removeprefix("check_"): check for check in CHECKS}
    if not subject.tasks:
        return [CheckResult(name, "not_checked", "there are no tasks in the train split") for name in checks]
    return [await settle(name, check(subject)) for name, check in checks.items()]


def prompt_text(task: Task[Any]) -> str:
    return task.prompt if isinstance(task.prompt, str) else "\n".join(message.content for message in task.prompt)


def _same(one: object, two: object) -> bool | None:
    """None: cannot be told."""
    try:
        return bool(one == two) or pickle.dumps(one) == pickle.dumps(two)
    except Exception:  # noqa: BLE001 - comparing and pickling run code of the environment
        return None


def _got(verdict: Verdict) -> str:
    if not verdict.scored:
        return f"could not be judged ({verdict.error})"
    return f"got {verdict.total:g} and {'passed' if verdict.passed else 'did not pass'}"


def _short(text: object, size: int = 60) -> str:
    shown = repr(text)
    return shown if len(shown) <= size else f"{shown[:size]}..."
