"""Environments whose answers are programs: what a program returns is compared out here, on inputs it cannot know beforehand.

Tests, expected values and the comparison never enter the sandbox. A program gets one input at a time and claims one value; claims are
compared type by type, so that nothing of the program's own making takes part.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from grpo_core.extract import fenced_code
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.sandbox import Limits, Outcome, Program
from grpo_core.protocol.types import Message, Reward, Rollout, Split, Task, TaskKey, Verdict

LANGUAGES = ("python", "py", "python3", "")
MAX_SOURCE = 20_000
"""Characters of a program; a longer one is no answer."""
_SHOWN = 120


def _numbers(parity: int) -> Sequence[int]:
    return [number for number in range(1000) if sum(map(int, str(number))) % 2 == parity]


_NUMBERS: Mapping[Split, Sequence[int]] = {"train": _numbers(0), "eval": _numbers(1)}
"""By the parity of the sum of the digits: a policy has met every digit at every place, so it can copy a held-out number."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call and what it must return."""

    arguments: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True, slots=True)
class Problem:
    """What is asked: a function `entry`, described by `statement` and by `examples`, which the policy sees.

    source: a program that solves it. impossible: what it must return is drawn at random, so that only a cheat can know it.
    """

    statement: str
    entry: str
    parameters: str
    source: str
    examples: tuple[Case, ...]
    impossible: bool = False


P = TypeVar("P", bound=Problem)
MAX_MEMORY_MB = 2**20
MAX_CPU_SECONDS = 100.0
"""A call may last 2.5 times as long; one that never ends has to get its 0 before the verdict's own deadline, which would leave it out."""


@dataclass(frozen=True, slots=True)
class CodeConfig:
    """difficulty: 1..10; None: by the task's level, 0 is 1 and 1 is 10. cases: held-out inputs of each verdict, new ones in each step.
    partial: what a program gets that passes some cases: "above_constant" pays 0.5 x the share it passes beyond the best constant answer,
    "seed" pays 0.5 x the share, "none" nothing. cpu_seconds, memory_mb: of one call, which may last 2.5 times its CPU time, at least 5 s.
    """

    difficulty: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] | None = None
    cases: int = 24
    partial: Literal["above_constant", "seed", "none"] = "above_constant"
    cpu_seconds: float = 2.0
    memory_mb: int = 256

    def __post_init__(self) -> None:
        for name in ("cases", "cpu_seconds", "memory_mb"):
            if not 0 < getattr(self, name) < math.inf:  # nan is in no range
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it has to be above 0 and finite"
                )
        if self.memory_mb > MAX_MEMORY_MB:
            raise ValueError(f"memory_mb is {self.memory_mb}; it can be at most {MAX_MEMORY_MB}")
        if self.cpu_seconds > MAX_CPU_SECONDS:
            raise ValueError(
                f"cpu_seconds is {self.cpu_seconds}; at most {MAX_CPU_SECONDS:g} fit into the time that a verdict has"
            )


class CodeEnvironment(Environment[P]):
    """Write `problem` and `cases`; the rest is here. Parts: format (there is a program), runs (share of calls that return a value) and
    passed, which alone is paid: 1 when all cases pass, else what `partial` says."""

    Config: ClassVar[type[Any]] = CodeConfig
    parts: ClassVar[Mapping[str, float]] = {"format": 0.0, "runs": 0.0, "passed": 1.0}
    needs = frozenset({"sandbox"})
    timeout_seconds: ClassVar[float] = (
        300.0  # of a verdict that waits for its turn in the sandbox; programs have their own limits
    )
    max_new_tokens: ClassVar[int] = 256

    @abstractmethod
    def problem(
        self, rng: random.Random, difficulty: int, *, number: int, impossible: bool = False
    ) -> P:
        """A problem of that difficulty, 1..10. number: has to be in the name of its function; training and held-out tasks have different
        ones, so that the two never share a prompt."""

    @abstractmethod
    def cases(self, problem: P, rng: random.Random, count: int) -> Sequence[Case]:
        """So many held-out cases, other ones for each state of `rng`."""

    def task(self, key: TaskKey) -> Task[P]:
        return self._task(key, impossible=False)

    def canaries(self) -> Sequence[Task[P]]:
        """Impossible problems of every difficulty: whoever passes one has got at the answers."""
        return [
            self._task(TaskKey(type(self).__name__.lower(), "eval", i, 0, i / 9), impossible=True)
            for i in range(10)
        ]

    async def averify(self, task: Task[P], rollout: Rollout) -> Verdict:
        source = _program(rollout.text)
        if source is None:
            return _verdict(0.0, 0.0, 0.0, answer=None)
        cases = self.cases(task.data, task.rng(), self.config.cases)
        seconds = self.config.cpu_seconds
        limits = Limits(
            cpu_seconds=seconds,
            wall_seconds=max(5.0, 2.5 * seconds),
            memory_mb=self.config.memory_mb,
        )
        program = Program(source, task.data.entry, [case.arguments for case in cases], limits)
        ((*outcomes,),) = await self.services.sandbox().run([program])
        return self._judged(source, cases, outcomes)

    def reference(self, task: Task[P]) -> str:
        return _fenced(task.data.source)

    def cheats(self, task: Task[P]) -> Sequence[str]:
        """Programs that solve nothing: constants, those that leave or hang, those that compare as they like, and no program at all."""
        entry, first = task.data.entry, task.data.examples[0].expected
        bodies = (
            "return None",
            f"return {first!r}",
            "import sys; sys.exit(0)",
            "import os; os._exit(0)",
            "raise AssertionError",
            "return type('Equal', (), {'__eq__': lambda self, other: True})()",
            "return type('Equal', (str,), {'__eq__': lambda self, other: True, '__hash__': str.__hash__})()",
            "import sys; return sys._getframe(1).f_locals.get('expected')",
        )
        return (
            task.data.source,
            *(_fenced(f"def {entry}(*arguments):\n    {body}") for body in bodies),
            "```python\n" + task.data.source,
        )

    def fingerprint(self) -> str:
        """Of everything that decides a verdict: the settings, the files of the environment's package, and this one."""
        files = [*sorted(Path(inspect.getfile(type(self))).parent.glob("*.py")), Path(__file__)]
        sources = b"".join(file.read_bytes() for file in files)
        return hashlib.sha256(super().fingerprint().encode() + sources).hexdigest()[:16]

    def _task(self, key: TaskKey, *, impossible: bool) -> Task[P]:
        difficulty = self.config.difficulty or 1 + round(9 * key.level)
        rng = key.rng("problem", difficulty)
        number = rng.choice(_NUMBERS[key.split])
        problem = self.problem(rng, difficulty, number=number, impossible=impossible)
        shown = "\n".join(
            f"{problem.entry}({', '.join(map(repr, case.arguments))}) == {case.expected!r}"
            for case in problem.examples
        )
        wanted = f"Reply with the Python function `{problem.entry}({problem.parameters})` in one ```python block."
        return Task(
            key,
            (Message("user", f"{problem.statement}\n\nExamples:\n{shown}\n\n{wanted}"),),
            problem,
        )

    def _judged(self, source: str, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Verdict:
        for outcome in outcomes:
            if (
                outcome.status == "infra_error"
            ):  # never the program's fault: the engine tries again, then leaves the attempt out
                raise RuntimeError(outcome.error)
        passed = [
            o.status == "ok" and same(o.value, case.expected)
            for o, case in zip(outcomes, cases, strict=True)
        ]
        runs = sum(outcome.status == "ok" for outcome in outcomes) / len(outcomes)
        reward = paid(passed, constant_share(cases), self.config.partial)
        failure = next(
            (
                _failure(case, o)
                for case, o, ok in zip(cases, outcomes, passed, strict=True)
                if not ok
            ),
            "",
        )
        statuses = Counter(outcome.status for outcome in outcomes)
        return _verdict(
            1.0,
            runs,
            reward,
            answer=source[:_SHOWN],
            note=failure,
            detail={"outcomes": dict(statuses)},
        )


def same(found: Any, expected: Any) -> bool:
    """Whether two plain values are equal in type and value, all the way down: True is not 1, 1 is not 1.0, a list is no tuple, NaN is
    nothing. The order of a dict or a set does not count."""
    return _typed(found) == _typed(expected)


def constant_share(cases: Sequence[Case]) -> float:
    """The share of cases that the best constant answer passes."""
    return max(Counter(_typed(case.expected) for case in cases).values()) / len(cases)


def paid(
    passed: Sequence[bool], constant: float, partial: Literal["above_constant", "seed", "none"]
) -> float:
    """1 if all passed, else at most 0.5, by the share that passed."""
    share = sum(passed) / len(passed)
    if share == 1:
        return 1.0
    if partial == "seed":
        return 0.5 * share
    return (
        0.5 * max(0.0, share - constant) / (1 - constant)
        if partial == "above_constant" and constant < 1
        else 0.0
    )


def _typed(value: Any) -> Hashable:
    """What two values have in common exactly where they are the same."""
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_typed, value))
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(_typed, value))
    if isinstance(value, dict):
        return type(value), frozenset((_typed(key), _typed(item)) for key, item in value.items())
    return type(
        value
    ), value if value == value else object()  # NaN; a tuple would call it equal to itself


def _program(text: str) -> str | None:
    block = fenced_code(text, languages=LANGUAGES)
    return block.content if block is not None and 0 < len(block.content) <= MAX_SOURCE else None


def _fenced(source: str) -> str:
    return f"```python\n{source}\n```"


def _failure(case: Case, outcome: Outcome) -> str:
    call = ", ".join(map(repr, case.arguments))[:_SHOWN]
    found = (
        f"{outcome.value!r:.{_SHOWN}}"
        if outcome.status == "ok"
        else f"{outcome.status}: {outcome.error}"[:_SHOWN]
    )
    return f"({call}) gave {found}, expected {case.expected!r:.{_SHOWN}}"


def _verdict(
    format_: float,
    runs: float,
    passed: float,
    *,
    answer: str | None,
    note: str = "",
    detail: Mapping[str, Any] | None = None,
) -> Verdict:
    rewards = {"format": Reward(format_), "runs": Reward(runs), "passed": Reward(passed, note=note)}
    return Verdict(rewards, passed=passed == 1, answer=answer, detail=dict(detail or {}))
