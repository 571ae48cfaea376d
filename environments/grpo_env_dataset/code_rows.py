"""Rows that ask for programs and have tests, run in a sandbox.

The policy's program and the tests never share a process: the tests run in the sandbox with a
stand-in for the program's function, which knows only what the program claimed to return. So a
program that ends the test, patches `assert` or returns an object that equals everything gains
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from grpo_core import (
    ConfigError,
    Limits,
    Message,
    Outcome,
    Program,
    Reward,
    Rollout,
    Task,
    Verdict,
)
from grpo_core.extract import NoAnswer, find_code
from grpo_env_dataset.base import RowTasks
from grpo_env_dataset.code_tests import CodeTask, code_task
from grpo_env_dataset.config import DatasetConfig
from grpo_env_dataset.rows import Row

LANGUAGES = ("python", "py", "python3", "")
MAX_SOURCE = 20_000
"""The most characters of a program; a longer one is not an answer."""
_MOST_ROUNDS = 8
"""So often tests may need the result of one call before they make the next one."""
_TESTING = Path(__file__).with_name("testing_program.py").read_text()
_CALL = """
def grpo_call(arguments, keywords):
    return {entry}(*arguments, **keywords)
"""
Call = tuple[list[Any], dict[str, Any]]
Known = list[tuple[Call, str, Any]]


@dataclass(frozen=True, slots=True)
class CodeRowsConfig(DatasetConfig):
    """Settings of the environment: those of rows, and what is said here."""

    reward: tuple[str, ...] = ("code",)
    """`code`: the tests of the row decide."""
    tests: str = ""
    """The row's field with the tests: code, a list of assertions, or a list of inputs and outputs.
    "": the first of the usual ones (`tests`, `asserts`, ...)."""
    entry_point: str = "entry_point"
    """The row's field with the name of the function; without it, the tests must call only one."""
    partial: bool = False
    """Half of the share of tests that pass is paid where not all of them do."""
    shown_tests: int = 1
    """So many of several tests are shown in the prompt, so that the policy sees how its function is
    called."""
    cpu_seconds: float = 2.0
    """CPU time of each call."""
    memory_mb: int = 256
    """Memory of each call, in MiB."""


class CodeRows(RowTasks):
    """Pays for programs that pass the tests of their row."""

    Config = CodeRowsConfig
    parts: ClassVar[Mapping[str, float]] = {"format": 0.0, "passed": 1.0}
    needs = frozenset({"sandbox"})
    timeout_seconds = 300.0
    """The time limit of a verdict, which may wait for the sandbox; programs have their own."""
    max_new_tokens = 512

    def _prepare(self, rows: Sequence[Row]) -> None:
        if self.config.reward != ("code",):
            others = ", ".join(name for name in self.config.reward if name != "code") or "nothing"
            raise ConfigError(
                f"the reward `code` stands alone, and env.reward names {others}, too; remove it"
            )

    def _check_answer(self, row: Row) -> None:
        self._code(row)

    def _code(self, row: Row) -> CodeTask:
        return code_task(row, tests=self.config.tests, entry=self.config.entry_point)

    def _instruction(self, messages: Sequence[Message]) -> str:
        return "Reply with the Python function in one ```python block."

    def _ask(self, text: str, row: Row) -> str:
        code = self._code(row)
        if f"def {code.entry}(" in text:
            return text
        shown = code.tests[: self.config.shown_tests] if len(code.tests) > 1 else ()
        examples = "".join(f"\n{test}" for test in shown)
        return f"{text}\n\nThe function is called `{code.entry}`.{examples}"

    def reference(self, task: Task[Row]) -> str | None:
        """Return the row's right program in a block; None if it has none."""
        solution = self._code(task.data).solution
        return f"```python\n{solution}\n```" if solution else None

    def cheats(self, task: Task[Row]) -> Sequence[str]:
        """Return programs that solve nothing: they end, raise, or return what equals everything."""
        entry = self._code(task.data).entry
        bodies = (
            "return None",
            "import os; os._exit(0)",
            "raise AssertionError",
            "return type('Equal', (), {'__eq__': lambda self, other: True})()",
        )
        return [
            "",
            *(f"```python\ndef {entry}(*a, **k):\n    {body}\n```" for body in bodies),
        ]

    async def averify(self, task: Task[Row], rollout: Rollout) -> Verdict:
        code = self._code(task.data)
        block = find_code(rollout.text, languages=LANGUAGES, binds=code.entry)
        if isinstance(block, NoAnswer):
            return _verdict(0.0, 0.0, answer=None, note=block.reason)
        if not 0 < len(block.content) <= MAX_SOURCE:
            note = f"the program has {len(block.content)} characters; at most {MAX_SOURCE} are run"
            return _verdict(0.0, 0.0, answer=None, note=note)
        results, stderr = await self._tested(code, f"{code.before}\n{block.content}")
        share = sum(not remark for remark in results) / len(results)
        reward = 1.0 if share == 1 else share / 2 if self.config.partial else 0.0
        first = next(((i, remark) for i, remark in enumerate(results, 1) if remark), None)
        note = f"test {first[0]} of {len(results)}: {first[1]}" if first else ""
        detail = {"stderr": stderr} if stderr else {}
        return _verdict(1.0, reward, answer=block.content[:200], note=note, detail=detail)

    async def _tested(self, code: CodeTask, program: str) -> tuple[list[str], str]:
        """Return why each test failed, "" for one that passed, and what the program printed.

        Raises:
            RuntimeError: the sandbox failed, or the tests cannot be run apart from the program.
        """
        known: Known = []
        stderr = ""
        replies = await self._run_tests(code, range(len(code.tests)), known, collecting=True)
        remarks = [""] * len(code.tests)
        open_tests = list(range(len(code.tests)))
        for _ in range(_MOST_ROUNDS):
            calls = _without_repeats([call for _, _, needed in replies for call in needed], known)
            outcomes = await self._run_program(code, program, calls)
            for call, outcome in zip(calls, outcomes, strict=True):
                is_value = outcome.status == "ok"
                known.append((call, outcome.status, outcome.value if is_value else outcome.error))
                stderr = stderr or outcome.stderr[-500:]
            replies = await self._run_tests(code, open_tests, known, collecting=False)
            for number, (state, remark, _) in zip(open_tests, replies, strict=True):
                remarks[number] = remark if state == "failed" else ""
            waiting = [reply for reply in replies if reply[0] == "needs"]
            open_tests = [
                number
                for number, reply in zip(open_tests, replies, strict=True)
                if reply[0] == "needs"
            ]
            replies = waiting
            if not open_tests:
                return remarks, stderr
        raise RuntimeError(
            f"a test makes more than {_MOST_ROUNDS} calls each of which needs the result of the "
            "one before; give it fewer"
        )

    async def _run_program(
        self, code: CodeTask, program: str, calls: Sequence[Call]
    ) -> Sequence[Outcome]:
        """Return the outcome of each call of the policy's program."""
        if not calls:
            return []
        source = program + _CALL.format(entry=code.entry)
        ((*outcomes,),) = await self.services.sandbox().run(
            [Program(source, "grpo_call", [list(call) for call in calls], self._limits())]
        )
        _raise_failures(outcomes)
        return outcomes

    async def _run_tests(
        self, code: CodeTask, numbers: Sequence[int], known: Known, *, collecting: bool
    ) -> list[tuple[str, str, list[Call]]]:
        """Return state, remark and needed calls of tests, which the sandbox runs."""
        inputs = [
            [code.setup, code.tests[number], code.entry, known, collecting] for number in numbers
        ]
        limits = Limits(cpu_seconds=10.0, wall_seconds=25.0, result_bytes=1_000_000)
        ((*outcomes,),) = await self.services.sandbox().run(
            [Program(_TESTING, "run_test", inputs, limits)]
        )
        _raise_failures(outcomes)
        replies = list[tuple[str, str, list[Call]]]()
        for outcome in outcomes:
            if outcome.status == "ok":
                state, remark, needed = outcome.value
                replies.append((state, remark, [(list(a), dict(k)) for a, k in needed]))
            else:
                raise RuntimeError(
                    f"a test cannot be run apart from the program: {outcome.error}; its calls must "
                    "have numbers, texts, lists, tuples, sets and dictionaries as arguments"
                )
        return replies

    def _limits(self) -> Limits:
        seconds = self.config.cpu_seconds
        return Limits(
            cpu_seconds=seconds,
            wall_seconds=max(5.0, 2.5 * seconds),
            memory_mb=self.config.memory_mb,
        )


def _without_repeats(calls: Sequence[Call], known: Known) -> list[Call]:
    """Return the calls, each once, that are not known yet."""
    seen = {repr(call) for call, _, _ in known}
    fresh = list[Call]()
    for call in calls:
        if repr(call) not in seen:
            seen.add(repr(call))
            fresh.append(call)
    return fresh


def _raise_failures(outcomes: Sequence[Outcome]) -> None:
    """Raise RuntimeError for a failure of the sandbox, which is never the program's fault."""
    for outcome in outcomes:
        if outcome.status == "infra_error":
            raise RuntimeError(outcome.error)


def _verdict(
    form: float,
    passed: float,
    *,
    answer: str | None,
    note: str = "",
    detail: Mapping[str, Any] | None = None,
) -> Verdict:
    rewards = {"format": Reward(form), "passed": Reward(passed, note=note)}
    return Verdict(rewards, passed=passed == 1, answer=answer, detail=dict(detail or {}))
