"""For the tests of environments: `assert_environment(MyEnvironment())` is a whole test, and the fakes stand in for services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from grpo_core.conformance import CheckResult, NotCheckedError, Status, Subject, check_declarations, settle, settle_all, task_keys
from grpo_core.environment import Environment
from grpo_core.errors import ConfigError
from grpo_core.hosts import InlineHost
from grpo_core.judge import Judgement, JudgeRequest
from grpo_core.sandbox import Outcome, Program
from grpo_core.types import Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.verify import Isolation, Verifier, VerifySettings

__all__ = ["CheckResult", "EchoEnvironment", "FakeJudge", "FakeSandbox", "Report", "Status", "assert_environment", "check_environment"]

_EVAL_TASKS_PER_TASK = 5  # task() is cheap, and a leak shows only among many


@dataclass(frozen=True, slots=True)
class Report:
    """What the checks found. `print(report)` shows one line for each."""

    environment: str
    results: tuple[CheckResult, ...]

    @property
    def problems(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if result.status == "invalid")

    def __str__(self) -> str:
        lines = (f"  {result.status.replace('_', ' '):<12} {result.check:<13} {result.message}" for result in self.results)
        return "\n".join([f"{self.environment}: {len(self.problems)} problems in {len(self.results)} checks", *lines])


def check_environment(env: Environment[Any], *, tasks: int = 20, seed: int = 0, isolation: Isolation = "auto") -> Report:
    """Ask `env` what a run will ask, and what a model will try. Closes `env` at the end.

    isolation: "auto" judges in a worker process, as a run does, unless the environment is trusted or cannot be imported by name;
    choose "inline" for a class that only the test module holds.
    """
    with ThreadPoolExecutor(1) as thread:  # a thread of its own: there may be a running event loop in this one
        results = thread.submit(asyncio.run, _results(env, tasks=tasks, seed=seed, isolation=isolation)).result()
    return Report(type(env).__qualname__, tuple(results))


def assert_environment(env: Environment[Any], *, tasks: int = 20, seed: int = 0, isolation: Isolation = "auto") -> None:
    """Fail with the whole report if any check found a problem."""
    report = check_environment(env, tasks=tasks, seed=seed, isolation=isolation)
    if report.problems:
        raise AssertionError(str(report))


async def _results(env: Environment[Any], *, tasks: int, seed: int, isolation: Isolation) -> list[CheckResult]:
    try:
        verifier = _verifier(env, isolation)
    except ConfigError as error:
        return [CheckResult("declarations", "invalid", str(error))]
    async with verifier:
        subjects: list[Subject] = []

        async def made() -> str:
            subjects.append(await _subject(env, verifier, tasks, seed))
            if not subjects[0].tasks:
                raise NotCheckedError("there are no tasks in the train split")
            return f"{len(subjects[0].tasks)} train tasks ask something"

        results = [await settle("declarations", check_declarations(env)), await settle("tasks", made())]
        return [*results, *(await settle_all(subjects[0]) if subjects else [])]


def _verifier(env: Environment[Any], isolation: Isolation) -> Verifier:
    try:
        return Verifier(env, settings=VerifySettings(isolation=isolation, retries=0))
    except ConfigError:
        if isolation != "auto":
            raise
        return Verifier(env, settings=VerifySettings(isolation="inline", retries=0))


async def _subject(env: Environment[Any], verifier: Verifier, count: int, seed: int) -> Subject:
    """Tasks are made in this process, where their data can be compared, under the same deadline."""
    host, seconds, name = InlineHost(env, max_concurrency=1), verifier.settings.task_timeout_seconds, type(env).__name__.lower()
    await verifier.tasks(task_keys(env, name, "train", min(count, 1), seed))  # tells clearly if none can be made, and where
    train = [await host.task(key, seconds=seconds) for key in task_keys(env, name, "train", count, seed)]
    held_out = [await host.task(key, seconds=seconds) for key in task_keys(env, name, "eval", count * _EVAL_TASKS_PER_TASK, seed)]
    references = [await verifier.reference(task) for task in train]
    return Subject(env, host, verifier, train, held_out, references)


class EchoEnvironment(Environment[str]):
    """The smallest environment: say the word. For tests of whatever needs some environment."""

    trusted = True

    def task(self, key: TaskKey) -> Task[str]:
        word = f"{key.split}-{key.rng().randrange(10**6)}"
        return Task(key, f"Say {word} and nothing else.", word)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said = rollout.text.strip() == task.data
        return Verdict(rewards={"reward": Reward(float(said))}, passed=said, answer=rollout.text.strip()[:100])

    def reference(self, task: Task[str]) -> str:
        return task.data

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return (f"{task.data} {task.data}", task.data.upper())


class FakeSandbox:
    """Answers each input of each program with `outcome(program, input)` and keeps the programs it was given."""

    def __init__(self, outcome: Callable[[Program, Sequence[Any]], Outcome]) -> None:
        self._outcome = outcome
        self.programs: list[Program] = []

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        self.programs.extend(programs)
        return [[self._outcome(program, one) for one in program.inputs] for program in programs]

    async def close(self) -> None:
        """Nothing to give back."""


class FakeJudge:
    """Scores each request by `score(request)` and keeps the requests it was given."""

    def __init__(self, score: Callable[[JudgeRequest], float]) -> None:
        self._score = score
        self.requests: list[JudgeRequest] = []

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        self.requests.extend(requests)
        return [Judgement(self._score(request)) for request in requests]

    def fingerprint(self) -> str:
        return "fake"

    async def close(self) -> None:
        """Nothing to give back."""
