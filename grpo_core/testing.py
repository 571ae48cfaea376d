"""Test environments: `assert_environment(MyEnvironment())` is a complete test.

The fakes replace a sandbox or a judge in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from grpo_core.calls.deadline import wait_for
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import Isolation, SandboxConfig, VerifyConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import Lender, lacks_endpoint
from grpo_core.protocol.agent import AgentEnvironment
from grpo_core.protocol.environment import Environment, Services
from grpo_core.protocol.errors import ConfigError, GrpoError, UserError
from grpo_core.protocol.executor import Executor
from grpo_core.protocol.judge import Judgement, JudgeRequest
from grpo_core.protocol.sandbox import Outcome, Program, Sandbox
from grpo_core.protocol.types import Message, Rollout, Script, Task, TaskKey, Verdict
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.conversation import StatelessConversations
from grpo_core.verify.episodes.playing import Played, play, turns_of
from grpo_core.verify.examining import (
    CheckResult,
    Examination,
    Report,
    Status,
    load_checks,
    shown_status,
)
from grpo_core.verify.sources import Sources
from grpo_core.verify.workers.hosts import Placement
from grpo_core.verify.workers.local import LocalExecutor

__all__ = [
    "CheckResult",
    "EnvironmentConformance",
    "FakeJudge",
    "FakeSandbox",
    "Report",
    "Status",
    "assert_environment",
    "check_environment",
    "compare_executor",
    "play_turns",
]


def check_environment(
    env: Environment[Any],
    *,
    tasks: int = 20,
    seed: int = 0,
    isolation: Isolation = "auto",
    only: Sequence[str] = (),
) -> Report:
    """Run the checks on an environment: what a run calls, and what a policy may try.

    It closes `env` at the end.

    Args:
        env: the environment to check.
        tasks: how many tasks to check.
        seed: the seed of the tasks.
        isolation: "auto" verifies in a worker process, as a run does, unless the environment is
            trusted or cannot be imported by name; choose "inline" for a class that is defined only
            in the test module.
        only: names of checks, or of groups such as "floor"; all checks if empty.

    Returns:
        The result of each check.
    """
    return _run_checks(
        env,
        Examination(
            name=type(env).__qualname__, only=only, count=tasks, seed=seed, isolation=isolation
        ),
    )


def _run_checks(
    env: Environment[Any], examination: Examination, lender: Lender | None = None
) -> Report:
    """Run the checks and return a report whose failures say how to repeat them from Python."""
    if lender is None and lacks_endpoint(env):
        lender = Lender(PluginHost(), SandboxConfig())
        try:
            lender.complete(env)
        except UserError as error:
            examination = replace(examination, unavailable=str(error))
    reproducible = replace(
        examination,
        reproduce=lambda check: (
            f'check_environment({examination.name}(...), only=["{check}"], seed={examination.seed})'
        ),
    )
    return wait_for(load_checks().examine(env, reproducible, lender))


def assert_environment(
    env: Environment[Any],
    *,
    tasks: int = 20,
    seed: int = 0,
    isolation: Isolation = "auto",
    only: Sequence[str] = (),
) -> None:
    """Raise AssertionError with the whole report if a check failed or no verdict could be made.

    The arguments are those of `check_environment`.
    """
    report = check_environment(env, tasks=tasks, seed=seed, isolation=isolation, only=only)
    if report.problems or report.blind:
        raise AssertionError(str(report))


def play_turns(env: Environment[Any], task: Task[Any], turns: Script) -> Rollout:
    """Return the rollout in which the policy says `turns` and the environment replies in between.

    It ends after the last turn, or when `reply` ends it, as a reference does. An agent runs to its
    end, and hears the last turn again if it goes on to ask.

    Args:
        env: the environment.
        task: the task of the dialogue.
        turns: what the policy says, as `reference` gives it.

    Raises:
        GrpoError: `reply` raised one, as for a service that is missing, or the agent failed.
    """
    script = turns_of(turns)
    if env.rung() == "episode" or isinstance(env, AgentEnvironment):
        rollout = wait_for(_play_here(env, task, script)).rollout
    else:
        most = min(env.max_turns, len(script))  # no reply to the last turn is asked for
        rollout = wait_for(play(_Directly(env), task, script, max_turns=most)).rollout
    if rollout.error:
        raise GrpoError(rollout.error)
    return rollout


async def _play_here(env: Environment[Any], task: Task[Any], script: Script) -> Played:
    """Play turns to an episode or an agent in this process, and ask for its verdict."""
    settings = VerifyConfig(isolation="inline", retries=0)
    services, lender = env.services, Lender(PluginHost(), SandboxConfig())
    lender.complete(env)
    try:
        async with Verifier(env, settings=settings, closes_env=False) as verifier:
            return await play(verifier, task, script, max_turns=env.max_turns, judge=True)
    finally:
        env.services = services
        await lender.close()


class _Directly(StatelessConversations):
    """Calls the environment's own `reply`, so that what it raises reaches the test."""

    def __init__(self, env: Environment[Any]) -> None:
        self._env = env

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's reply."""
        return await self._env.reply(task, messages)


def compare_executor(
    executor: Executor, environment: str, *, tasks: int = 8, isolation: Isolation = "auto"
) -> list[str]:
    """Return how verdicts from an executor differ from those of this machine; [] if they do not.

    Judged are references and texts without an answer. It closes `executor` at the end.

    Args:
        executor: the executor.
        environment: name of an installed environment.
        tasks: how many tasks to compare.
        isolation: "process" judges in worker processes at the executor's far end.

    Raises:
        GrpoError: a task cannot be created.
    """
    settings = {"isolation": isolation, "cache": "off"}
    config = build_config([{"environment": environment, "verify": settings}])
    keys = [TaskKey(environment, "train", index) for index in range(tasks)]

    async def judge(place: Executor) -> list[Verdict]:
        placement = Placement(place, "the tested one", config.sandbox, config.judges)
        async with Sources.of(config, {}, placement=placement) as sources:
            rows = await sources.tasks(keys)
            texts = [(turns_of(ref or "") or ("",))[-1] for ref in await sources.references(rows)]
            rollouts = [[Rollout.of(text), Rollout.of("?")] for text in texts]
            return [verdict for row in await sources.verify(rows, rollouts) for verdict in row]

    pairs = zip(wait_for(judge(LocalExecutor())), wait_for(judge(executor)), strict=True)
    return [
        f"row {number}: {elsewhere.to_json()} instead of {here.to_json()}"
        for number, (here, elsewhere) in enumerate(pairs)
        if here != elsewhere
    ]


class EnvironmentConformance:
    """Runs each check as a pytest test: inherit from it and set the environment.

        class TestRhymes(EnvironmentConformance):
            environment = Rhymes

    A check that cannot be made is skipped with its reason; `pytest -k floor.constant` runs one.
    """

    environment: ClassVar[type[Environment[Any]]]
    """The class of the environment to check."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """The arguments of its Config."""
    services: ClassVar[Services | None] = None
    """The services that it uses, such as `Services(judges={"default": FakeJudge(...)})`.

    None stands for the sandbox that a run would use.
    """
    tasks: ClassVar[int] = 20
    """How many tasks to check."""
    seed: ClassVar[int] = 0
    """The seed of the tasks."""
    _results: ClassVar[Mapping[str, CheckResult]]
    _chosen_checks: ClassVar[frozenset[str]]

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make one test per check."""
        if "check" in metafunc.fixturenames:  # the class may also have tests of its own
            metafunc.parametrize("check", load_checks().names())

    def test_conformance(self, check: str, request: Any) -> None:
        """Pass, fail, warn or skip as the result of the check says."""
        import pytest  # only tests need it

        results = self._results_by_check(request)
        result = results[check]
        for name, other in results.items():  # those that the chosen checks rest on
            if name not in self._chosen_checks and other.status == "invalid":
                raise AssertionError(f"{other.check}: {other.message}")
        if result.status in ("not_checked", "waived"):
            pytest.skip(f"{shown_status(result)}: {result.message}")
        if result.caused_by:
            pytest.skip(f"follows from {result.caused_by}: {result.message}")
        if result.status == "invalid" and result.severity == "warning":
            import warnings

            warnings.warn(f"{check}: {result.message}", stacklevel=2)
        elif result.status == "invalid":
            raise AssertionError(f"{check}: {result.message}\nagain: {result.reproduce}")

    @classmethod
    def _results_by_check(cls, request: Any) -> Mapping[str, CheckResult]:
        """Return the results of all checks that pytest selected.

        They run together, on the first call, because they share tasks and verdicts.
        """
        if not hasattr(cls, "environment"):
            raise ConfigError(
                f"{cls.__name__} names no environment; write `environment = YourEnvironment` in it"
            )
        if "_results" not in vars(cls):
            checks = [
                item.callspec.params["check"]
                for item in request.session.items
                if item.cls is cls and hasattr(item, "callspec") and "check" in item.callspec.params
            ]
            lender = Lender(PluginHost(), SandboxConfig())
            config = cls.environment.Config(**cls.settings)
            services, unavailable = (
                lender.services_or_reason(cls.environment, config)
                if cls.services is None
                else (cls.services, "")
            )
            env = cls.environment(config, services)
            report = _run_checks(
                env,
                Examination(
                    name=cls.environment.__qualname__,
                    count=cls.tasks,
                    seed=cls.seed,
                    only=checks,
                    unavailable=unavailable,
                ),
                lender,
            )
            cls._chosen_checks = frozenset(checks)
            cls._results = {result.check: result for result in report.results}
        return cls._results


class FakeSandbox(Sandbox):
    """Replaces a sandbox: the outcome of each input is `outcome(program, input)`; no sessions."""

    def __init__(self, outcome: Callable[[Program, Sequence[Any]], Outcome]) -> None:
        self._outcome = outcome
        self.programs: list[Program] = []
        """All programs that were passed to `run`."""

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        """Record the programs and return their outcomes."""
        self.programs.extend(programs)
        return [
            [self._outcome(program, arguments) for arguments in program.inputs]
            for program in programs
        ]

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


class FakeJudge:
    """Replaces a judge: the score of each request is `score(request)`."""

    def __init__(self, score: Callable[[JudgeRequest], float]) -> None:
        self._score = score
        self.requests: list[JudgeRequest] = []
        """All requests that were passed to `judge`."""

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """Record the requests and return their scores."""
        self.requests.extend(requests)
        return [Judgement(self._score(request)) for request in requests]

    def fingerprint(self) -> str:
        """Return a constant."""
        return "fake"

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
