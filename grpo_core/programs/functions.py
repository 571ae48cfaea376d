"""Provide the base class of environments whose answers are programs.

The values that a program returns are compared outside the sandbox, on inputs that the program
cannot know beforehand. Tests, expected values and the comparison never enter the sandbox. A program
gets one input at a time and claims one value; claims are compared by plain types and values, so
that no code of the program takes part.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from grpo_core.extract import NoAnswer, find_code
from grpo_core.programs.problems import CodeConfig, Problem
from grpo_core.programs.recent import Recent
from grpo_core.programs.telling import (
    BUDGET,
    Function,
    Survey,
    choose_cases,
    load_program,
    survey_problem,
)
from grpo_core.programs.values import Case, constant_share, same_value
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.sandbox import Limits, Outcome, Program
from grpo_core.protocol.types import Message, Reward, Rollout, Task, TaskKey, Verdict

LANGUAGES = ("python", "py", "python3", "")
MAX_SOURCE = 20_000
"""The most characters of a program; a longer one is not an answer."""
_MAX_SHOWN_CHARS = 120
"""The most characters of a program, of arguments or of a value in logs."""
_MAX_REDRAWS = 50
"""The most problems in a row that are refused before the environment is called faulty."""
_BATCH = 24
"""The ordinary cases that are drawn at once in search of those that tell programs apart."""
_KEPT = 32
"""The tasks whose cases are kept."""

_NUMBERS: Mapping[str, Sequence[int]] = {
    split: [number for number in range(1000) if sum(map(int, str(number))) % 2 == parity]
    for split, parity in (("train", 0), ("eval", 1))
}
"""The numbers in function names, divided by the parity of their digit sum.

Training tasks contain every digit at every position, so the policy can copy a held-out number.
"""


P = TypeVar("P", bound=Problem)


class CodeEnvironment(Environment[P]):
    """Asks for programs and verifies them in a sandbox; a subclass writes `problem` and `cases`.

    With `wrong_programs`, and `edge_cases` that tell them apart from right ones, cases are drawn
    until each wrong program fails: random inputs alone miss a bound that is off by one.

    The reward parts are format (there is a program), runs (the share of calls that return a value)
    and passed, the only one with a weight: 1 if all cases pass, else what `partial` says.
    """

    Config: ClassVar[type[Any]] = CodeConfig
    parts: ClassVar[Mapping[str, float]] = {"format": 0.0, "runs": 0.0, "passed": 1.0}
    needs = frozenset({"sandbox"})
    timeout_seconds: ClassVar[float] = 300.0
    """The time limit of a verdict, which may wait for the sandbox; programs have their own."""
    max_new_tokens: ClassVar[int] = 256

    @abstractmethod
    def problem(
        self, rng: random.Random, difficulty: int, *, number: int, impossible: bool = False
    ) -> P:
        """Return a problem.

        Args:
            rng: the source of all random choices.
            difficulty: from 1 to 10.
            number: must be part of the function's name; training and held-out tasks have different
                numbers, so that the two never share a prompt.
            impossible: whether the expected values are to be random (see `Problem.impossible`).
        """

    @abstractmethod
    def cases(self, problem: P, rng: random.Random, count: int) -> Sequence[Case]:
        """Return `count` held-out cases, which differ with the state of `rng`."""

    def edge_cases(self, problem: P, rng: random.Random) -> Sequence[Case]:
        """Return cases at which programs go wrong, such as 0, 1, bounds and their neighbours.

        Some of them are among the cases of each verdict. They may differ with the state of `rng`.
        """
        return ()

    def wrong_programs(self, problem: P) -> Mapping[str, str]:
        """Return programs that must not pass, by the name of their mistake.

        Each binds the problem's function. They are what a policy may write that has understood
        almost everything, or that takes a shortcut. Each must return something else than a right
        program for some ordinary or edge case; a problem of which that is not true is not asked.
        They run in the verifier's own process, so each must end, and quickly.
        """
        return {}

    def wrong_functions(self, problem: P) -> Mapping[str, Function]:
        """Return the functions of `wrong_programs`; override it where they are at hand, for speed.

        By default each program is compiled.
        """
        return {
            mistake: load_program(source, problem.entry)
            for mistake, source in self.wrong_programs(problem).items()
        }

    def task(self, key: TaskKey) -> Task[P]:
        return self._task(key, impossible=False)

    def canaries(self) -> Sequence[Task[P]]:
        """Return impossible problems of all difficulties.

        A program that passes one must have had access to the expected values.
        """
        return [
            self._task(TaskKey(type(self).__name__.lower(), "eval", i, 0, i / 9), impossible=True)
            for i in range(10)
        ]

    async def averify(self, task: Task[P], rollout: Rollout) -> Verdict:
        block = find_code(rollout.text, languages=LANGUAGES, binds=task.data.entry)
        if isinstance(block, NoAnswer):
            return _make_verdict(0.0, 0.0, 0.0, answer=None, note=block.reason)
        if not 0 < len(block.content) <= MAX_SOURCE:
            note = f"the program has {len(block.content)} characters; at most {MAX_SOURCE} are run"
            return _make_verdict(0.0, 0.0, 0.0, answer=None, note=note)
        cases = self.held_out_cases(task)
        seconds = self.config.cpu_seconds
        limits = Limits(
            cpu_seconds=seconds,
            wall_seconds=max(5.0, 2.5 * seconds),
            memory_mb=self.config.memory_mb,
        )
        program = Program(
            block.content, task.data.entry, [case.arguments for case in cases], limits
        )
        ((*outcomes,),) = await self.services.sandbox().run([program])
        return self._verdict_from(block.content, cases, outcomes)

    def held_out_cases(self, task: Task[P]) -> Sequence[Case]:
        """Return the cases on which the programs of a task are judged.

        They are a function of the task's key, draw and problem, and tell apart the wrong programs
        of the problem as far as `config.cases` has room for it.
        """
        name = (task.key, task.draw, repr(task.data))
        return self._cases_kept.get(name, lambda: self._draw_cases(task))

    @cached_property
    def _cases_kept(self) -> Recent[Sequence[Case]]:
        """Hold the cases of the latest tasks, as all attempts of a group have the same."""
        return Recent(_KEPT)

    @cached_property
    def _surveys_kept(self) -> Recent[Survey]:
        """Hold what is known of the latest problems, from making a task to judging it."""
        return Recent(_KEPT)

    def _draw_cases(self, task: Task[P]) -> Sequence[Case]:
        """Return new cases for a task."""
        problem, rng = task.data, task.rng()
        ordinary = self.cases(problem, rng, self.config.cases)
        if problem.impossible:
            return ordinary
        wrong, survey = self.wrong_functions(problem), self._survey(problem)
        return choose_cases(wrong, ordinary, survey, self._batches(problem, rng), rng)

    def _survey(self, problem: P) -> Survey:
        """Return the problem's edge cases, and what they tell apart."""
        name = repr(problem)

        def survey() -> Survey:
            rng = random.Random(name)
            wrong, ordinary = self.wrong_functions(problem), self.cases(problem, rng, _BATCH)
            edges = self.edge_cases(problem, rng)
            return survey_problem(wrong, ordinary, edges, self._batches(problem, rng))

        return self._surveys_kept.get(name, survey)

    def _batches(self, problem: P, rng: random.Random) -> Iterator[Sequence[Case]]:
        """Yield ordinary cases in batches, `BUDGET` in all."""
        for start in range(0, BUDGET, _BATCH):
            yield self.cases(problem, rng, min(_BATCH, BUDGET - start))

    def reference(self, task: Task[P]) -> str:
        return _fenced_block(task.data.source)

    def mutants(self, task: Task[P]) -> Mapping[str, str]:
        """Return the wrong programs of the task's problem."""
        return {
            mistake: _fenced_block(source)
            for mistake, source in self.wrong_programs(task.data).items()
        }

    def redraws(self, key: TaskKey) -> int:
        """Return how many problems were refused before that of the key's task.

        A problem is refused if one of its wrong programs returns the same as a right one for all
        its edge cases and `BUDGET` ordinary ones.
        """
        return self._draw_problem(key, impossible=False)[1]

    def cheats(self, task: Task[P]) -> Sequence[str]:
        """Return programs that solve nothing.

        They return constants, exit, raise an exception, return objects that equal everything, or
        read the caller's variables; two answers contain no complete code block.
        """
        entry, first_value = task.data.entry, task.data.examples[0].expected
        bodies = (
            "return None",
            f"return {first_value!r}",
            "import sys; sys.exit(0)",
            "import os; os._exit(0)",
            "raise AssertionError",
            "return type('Equal', (), {'__eq__': lambda self, other: True})()",
            "return type('Equal', (str,), "
            "{'__eq__': lambda self, other: True, '__hash__': str.__hash__})()",
            "import sys; return sys._getframe(1).f_locals.get('expected')",
        )
        return (
            task.data.source,
            *(_fenced_block(f"def {entry}(*arguments):\n    {body}") for body in bodies),
            "```python\n" + task.data.source,
        )

    def fingerprint(self) -> str:
        """Return a digest of the settings and of the files of both packages."""
        packages = (Path(inspect.getfile(type(self))).parent, Path(__file__).parent)
        files = [file for package in packages for file in sorted(package.glob("*.py"))]
        sources = b"".join(file.read_bytes() for file in files)
        return hashlib.sha256(super().fingerprint().encode() + sources).hexdigest()[:16]

    def _task(self, key: TaskKey, *, impossible: bool) -> Task[P]:
        """Return the task of a key; its prompt has the statement, the examples and the format."""
        problem, _ = self._draw_problem(key, impossible=impossible)
        examples = "\n".join(
            f"{problem.entry}({', '.join(map(repr, case.arguments))}) == {case.expected!r}"
            for case in problem.examples
        )
        instruction = (
            f"Reply with the Python function `{problem.entry}({problem.parameters})` "
            "in one ```python block."
        )
        return Task(
            key,
            (Message("user", f"{problem.statement}\n\nExamples:\n{examples}\n\n{instruction}"),),
            problem,
        )

    def _draw_problem(self, key: TaskKey, *, impossible: bool) -> tuple[P, int]:
        """Return the problem of a key, and how many were refused before it.

        Raises:
            ValueError: one problem after the other is refused, so it is the environment's fault.
        """
        difficulty = self.config.difficulty or 1 + round(9 * key.level)
        for redraws in range(_MAX_REDRAWS):
            rng = key.rng("problem", difficulty, *([redraws] if redraws else []))
            number = rng.choice(_NUMBERS[key.split])
            problem = self.problem(rng, difficulty, number=number, impossible=impossible)
            if impossible or not (like_right := self._survey(problem).untold):
                return problem, redraws
        raise ValueError(
            f"{_MAX_REDRAWS} problems in a row have wrong programs that no case tells apart from "
            f"a right one, the last one {like_right[0]!r}: give edge_cases that do, or remove it "
            "from wrong_programs"
        )

    def _verdict_from(
        self, source: str, cases: Sequence[Case], outcomes: Sequence[Outcome]
    ) -> Verdict:
        """Return the verdict on a program whose calls for `cases` had these outcomes."""
        for outcome in outcomes:
            # Never the program's fault: the engine retries, then leaves the rollout out.
            if outcome.status == "infra_error":
                raise RuntimeError(outcome.error)
        passed = [
            outcome.status == "ok" and same_value(outcome.value, case.expected)
            for outcome, case in zip(outcomes, cases, strict=True)
        ]
        runs = sum(outcome.status == "ok" for outcome in outcomes) / len(outcomes)
        reward = passed_reward(passed, constant_share(cases), self.config.partial)
        first_failure = next(
            (
                _describe_failure(case, outcome)
                for case, outcome, case_passed in zip(cases, outcomes, passed, strict=True)
                if not case_passed
            ),
            "",
        )
        return _make_verdict(
            1.0,
            runs,
            reward,
            answer=source[:_MAX_SHOWN_CHARS],
            note=first_failure,
            detail={"outcomes": dict(Counter(outcome.status for outcome in outcomes))},
        )


def passed_reward(
    passed: Sequence[bool], constant: float, partial: Literal["above_constant", "seed", "none"]
) -> float:
    """Return 1 if all cases passed, else at most 0.5, depending on the share that passed.

    Args:
        passed: whether each case passed.
        constant: the share of cases that the best constant answer passes.
        partial: the rule for partial success, as in `CodeConfig.partial`.
    """
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


def _fenced_block(source: str) -> str:
    return f"```python\n{source}\n```"


def _describe_failure(case: Case, outcome: Outcome) -> str:
    """Return the arguments, the actual and the expected value of a case that failed."""
    arguments = ", ".join(map(repr, case.arguments))[:_MAX_SHOWN_CHARS]
    actual = (
        f"{outcome.value!r:.{_MAX_SHOWN_CHARS}}"
        if outcome.status == "ok"
        else f"{outcome.status}: {outcome.error}"[:_MAX_SHOWN_CHARS]
    )
    return f"({arguments}) gave {actual}, expected {case.expected!r:.{_MAX_SHOWN_CHARS}}"


def _make_verdict(
    format_reward: float,
    runs: float,
    passed: float,
    *,
    answer: str | None,
    note: str = "",
    detail: Mapping[str, Any] | None = None,
) -> Verdict:
    rewards = {
        "format": Reward(format_reward),
        "runs": Reward(runs),
        "passed": Reward(passed, note=note),
    }
    return Verdict(rewards, passed=passed == 1, answer=answer, detail=dict(detail or {}))
