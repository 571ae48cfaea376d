"""For the tests of environments: `assert_environment(MyEnvironment())` is a whole test, and the fakes stand in for services."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from grpo_core.calls.blocking import wait_for
from grpo_core.kit.result import CheckResult, Report, Status
from grpo_core.kit.run import Examination, borrowed, examine, wanted
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import Lender
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.judge import Judgement, JudgeRequest
from grpo_core.protocol.sandbox import Outcome, Program
from grpo_core.verify.engine import Isolation

__all__ = [
    "CheckResult",
    "EnvironmentConformance",
    "FakeJudge",
    "FakeSandbox",
    "Report",
    "Status",
    "assert_environment",
    "check_environment",
]


def check_environment(
    env: Environment[Any],
    *,
    tasks: int = 20,
    seed: int = 0,
    isolation: Isolation = "auto",
    only: Sequence[str] = (),
) -> Report:
    """Ask `env` what a run will ask, and what a model will try. Closes `env` at the end.

    isolation: "auto" judges in a worker process, as a run does, unless the environment is trusted or cannot be imported by name;
    choose "inline" for a class that only the test module holds. only: names of checks, or groups such as "floor".
    """
    return _report(
        env,
        Examination(
            name=type(env).__qualname__, only=only, count=tasks, seed=seed, isolation=isolation
        ),
    )


def _report(env: Environment[Any], asked: Examination, lender: Lender | None = None) -> Report:
    asked = replace(
        asked,
        reproduce=lambda check: (
            f'check_environment({asked.name}(...), only=["{check}"], seed={asked.seed})'
        ),
    )
    return wait_for(examine(env, asked, lender))


def assert_environment(
    env: Environment[Any],
    *,
    tasks: int = 20,
    seed: int = 0,
    isolation: Isolation = "auto",
    only: Sequence[str] = (),
) -> None:
    """Fail with the whole report if any check found a fault, or if no verdict could be had."""
    report = check_environment(env, tasks=tasks, seed=seed, isolation=isolation, only=only)
    if report.problems or report.blind:
        raise AssertionError(str(report))


class EnvironmentConformance:
    """Every check as a test of pytest: inherit, and name the environment.

        class TestRhymes(EnvironmentConformance):
            environment = Rhymes

    settings: of its Config. services: what it borrows, such as `Services(judges={"default": FakeJudge(...)})`; None: the sandbox that a run
    would take. What could not be looked at is skipped with its reason; `pytest -k floor.constant` asks one question.
    """

    environment: ClassVar[type[Environment[Any]]]
    settings: ClassVar[Mapping[str, Any]] = {}
    services: ClassVar[Services | None] = None
    tasks: ClassVar[int] = 20
    seed: ClassVar[int] = 0
    _found: ClassVar[Mapping[str, CheckResult]]
    _chosen: ClassVar[frozenset[str]]

    def pytest_generate_tests(self, metafunc: Any) -> None:
        if "check" in metafunc.fixturenames:  # the class may have more tests, of its own
            metafunc.parametrize("check", wanted(()))

    def test_conformance(self, check: str, request: Any) -> None:
        import pytest  # what only tests need

        found = self._results(request)
        result = found[check]
        broken = [
            fault
            for name, fault in found.items()
            if name not in self._chosen and fault.status == "invalid"
        ]
        if broken:
            raise AssertionError(f"{broken[0].check}: {broken[0].message}")
        if result.status == "not_checked":
            pytest.skip(result.message)
        if result.status == "invalid" and result.severity == "warning":
            import warnings

            warnings.warn(f"{check}: {result.message}", stacklevel=2)
        elif result.status == "invalid":
            raise AssertionError(f"{check}: {result.message}\nagain: {result.reproduce}")

    @classmethod
    def _results(cls, request: Any) -> Mapping[str, CheckResult]:
        """Of all checks that pytest chose, asked at once: what they share is made once."""
        if not hasattr(cls, "environment"):
            raise ConfigError(
                f"{cls.__name__} names no environment; write `environment = YourEnvironment` in it"
            )
        if "_found" not in vars(cls):
            own = [
                item
                for item in request.session.items
                if item.cls is cls and hasattr(item, "callspec")
            ]
            chosen = [
                item.callspec.params["check"] for item in own if "check" in item.callspec.params
            ]
            lender = Lender(PluginHost())
            services, missing = (
                borrowed(lender, cls.environment) if cls.services is None else (cls.services, "")
            )
            env = cls.environment(cls.environment.Config(**cls.settings), services)
            name = cls.environment.__qualname__
            report = _report(
                env,
                Examination(
                    name=name, count=cls.tasks, seed=cls.seed, only=chosen, unavailable=missing
                ),
                lender,
            )
            cls._chosen = frozenset(chosen)
            cls._found = {result.check: result for result in report.results}
        return cls._found


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
