"""FizzBuzz and parentheses: what they ask at each difficulty, that the references solve it, and that nothing less does."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from grpo_core import (
    ConfigError,
    Environment,
    Limits,
    Outcome,
    Program,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.programs import (
    MAX_CPU_SECONDS,
    CodeConfig,
    CodeEnvironment,
    constant_share,
    passed_reward,
    same_value,
)
from grpo_core.testing import assert_environment
from grpo_env_fizzbuzz.env import FizzBuzz
from grpo_env_parentheses import families
from grpo_env_parentheses.env import Parentheses
from grpo_sandbox.auto import Auto, AutoConfig

from ..sandbox.attacks import ATTACKS

DIFFICULTIES = range(1, 11)
BOTH = [FizzBuzz, Parentheses]


def ask(
    env: Environment[Any], index: int = 0, *, split: str = "train", level: float = 0.0
) -> Task[Any]:
    return env.task(TaskKey(type(env).__name__.lower(), split, index, 0, level))  # type: ignore[arg-type]


def judge(env: Environment[Any], task: Task[Any], *texts: str) -> list[Verdict]:
    async def judged() -> list[Verdict]:
        return list(await asyncio.gather(*(env.averify(task, Rollout.of(text)) for text in texts)))

    return asyncio.run(judged())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("env_class", BOTH)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_a_constant_is_right_in_half_of_the_cases_at_most(
    env_class: type[Any], difficulty: int
) -> None:
    env = env_class(CodeConfig(difficulty=difficulty))
    shares = [constant_share(env.held_out_cases(ask(env, index))) for index in range(10)]
    assert sum(shares) / len(shares) <= 0.55


# What is paid, with a sandbox that runs nothing


class Scripted:
    """Answers every call with what `answer` makes of its place among the calls."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        self.programs: list[Program] = []

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        self.programs += programs
        return [self.outcomes for _ in programs]

    async def close(self) -> None:
        """Nothing to give back."""


def scripted(
    task: Task[Any], right: int, *, rest: Outcome, **config: Any
) -> tuple[Verdict, Scripted]:
    env = FizzBuzz(CodeConfig(**config))
    wanted = [Outcome("ok", case.expected) for case in env.held_out_cases(task)]
    sandbox = Scripted(wanted[:right] + [rest] * (len(wanted) - right))
    env = FizzBuzz(CodeConfig(**config), Services(sandboxes={"default": sandbox}))
    (verdict,) = judge(env, task, "```python\ndef f(n): return 1\n```")
    return verdict, sandbox


def test_the_seeds_rule_pays_half_of_the_share_and_ours_only_what_is_beyond_a_constant() -> None:
    task = ask(FizzBuzz(CodeConfig(difficulty=4)))
    constant = constant_share(FizzBuzz().held_out_cases(task))

    def paid(right: int, **config: Any) -> float:
        return scripted(task, right, rest=Outcome("ok", "?"), **config)[0].rewards["passed"].value

    assert (paid(24), paid(0), paid(23, partial="none")) == (1, 0, 0)
    assert paid(18, partial="seed") == pytest.approx(0.5 * 18 / 24)
    assert paid(18) == pytest.approx(0.5 * (18 / 24 - constant) / (1 - constant))
    rewards = [
        passed_reward([True] * n + [False] * (24 - n), 0.1, "above_constant") for n in range(25)
    ]
    assert rewards == sorted(rewards)
    assert rewards[-2] < 0.5


def test_parts_tell_how_far_a_program_got() -> None:
    task = ask(FizzBuzz())
    verdict, sandbox = scripted(task, 6, rest=Outcome("exception", error="ValueError"))
    assert [verdict.rewards[name].value for name in ("format", "runs")] == [1.0, 0.25]
    assert verdict.detail["outcomes"] == {"ok": 6, "exception": 18}
    assert "ValueError" in verdict.rewards["passed"].note
    assert sandbox.programs[0].entry == task.data.entry
    assert len(sandbox.programs[0].inputs) == 24


def test_a_broken_sandbox_is_an_error_and_no_reward() -> None:
    with pytest.raises(RuntimeError, match="the daemon is gone"):
        scripted(ask(FizzBuzz()), 23, rest=Outcome("infra_error", error="the daemon is gone"))


@pytest.mark.parametrize(
    "text",
    ["", "no code", "```python\n1", f"```python\n{'#' * 30_000}\n```", "```c\nint f;\n```"],
)
def test_without_a_program_nothing_is_run(text: str) -> None:
    env = FizzBuzz(services=Services(sandboxes={"default": Scripted([])}))
    (verdict,) = judge(env, ask(env), text)
    assert verdict.rewards.keys() == {"format", "runs", "passed"}
    assert not verdict.passed
    assert {reward.value for reward in verdict.rewards.values()} == {0.0}


NAN = float("nan")
SAME = [
    (1, 1), ("a", "a"), ([1, (2,)], [1, (2,)]), ({"a": [1]}, {"a": [1]}), (None, None), (b"x", b"x"),
    ({"a": 1, "b": [2]}, {"b": [2], "a": 1}), ({1, 9, (17, "a")}, {(17, "a"), 9, 1}),
]  # fmt: skip
OTHER = [
    (True, 1), (1, 1.0), (1, "1"), ([1], (1,)), ([1], [1, 2]), ([1, 2], [1]), ({"a": 1}, {"a": True}), ({"a": 1}, {"b": 1}), (None, False),
    ({1}, frozenset({1})), ("a", b"a"), (float("nan"), float("nan")), ([True], [1]), ({True}, {1}), ({1: "a"}, {True: "a"}), ({1.0}, {1}),
    ({(1, 2)}, {(True, 2)}), ({"a": 1}, {"a": 1, "b": 2}), (NAN, NAN), ([NAN], [NAN]),
]  # fmt: skip


def test_values_are_compared_by_type_and_value() -> None:
    assert all(same_value(found, expected) for found, expected in SAME)
    assert not any(same_value(found, expected) for found, expected in OTHER)


@pytest.mark.parametrize(
    ("family", "cases"),
    [
        (families.balanced, {"": True, "()": True, "([)]": False, "(": False, ")": False, "a(b)c": True}),
        (families.deepest, {"": 0, "()": 1, "(())()": 2, "(": -1, "[<>]": 2}),
        (families.first_error, {"": -1, "()": -1, "(]": 1, "((": 2, "())": 2}),
        (families.insertions, {"": 0, "(": 1, "))": 2, "())(": 2, ")(": 2}),
        (families.longest, {"": 0, "(()": 2, ")()())": 4, "(()))()": 4, "((": 0}),
        (families.with_jokers, {"": True, "*": True, "(*": True, "*(": False, "(*))": True, ")*": False}),
        (families.score, {"()": 1, "(())": 2, "()()": 2, "(()(()))": 6}),
        (families.unfold, {"": "", "a2(b)": "abb", "2(a3(b))": "abbbabbb", "1()": ""}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_families_are_right_about_cases_worked_by_hand(family: Any, cases: dict[str, Any]) -> None:
    assert {text: family(text) for text in cases} == cases


# With real jails


@pytest.mark.slow
def test_the_environment_keeps_the_promises_of_programs(services: Services) -> None:
    """Those that are about any text run hundreds of programs; they are asked below."""
    only = ["declared", "task", "verdict", "floor.code", "floor.cheats", "floor.canaries"]
    assert_environment(FizzBuzz(services=services), tasks=4, only=only)


@pytest.mark.heavy
@pytest.mark.parametrize("env_class", BOTH)
def test_the_environment_keeps_every_promise(env_class: type[Any], services: Services) -> None:
    assert_environment(env_class(services=services), tasks=10)


@pytest.mark.parametrize("env_class", BOTH)
def test_nobody_passes_an_impossible_problem_and_nobody_learns_the_answers(
    env_class: type[Any], services: Services
) -> None:
    env = env_class(services=services)
    for task in env.canaries():
        (verdict,) = judge(env, task, env.reference(task))
        assert verdict.scored
        assert not verdict.passed
        assert verdict.rewards["passed"].value < 0.5


@pytest.mark.heavy
@pytest.mark.parametrize("env_class", BOTH)
def test_no_attack_is_paid_and_none_disturbs_the_verdict_of_an_honest_neighbour(
    env_class: type[Any], services: Services
) -> None:
    """With many jails, since some attacks do nothing but wait."""
    sandbox = Auto(AutoConfig(jails=12))
    env = env_class(
        CodeConfig(difficulty=1, cases=2, cpu_seconds=0.5, memory_mb=128),
        Services(sandboxes={"default": sandbox}),
    )
    task = ask(env)
    attacks = [f"```python\n{source}\n{task.data.entry} = f\n```" for source in ATTACKS.values()]
    honest = [env.reference(task)] * 10
    verdicts = judge(env, task, *attacks[::2], *honest, *attacks[1::2])
    asyncio.run(sandbox.close())
    assert [verdict.error for verdict in verdicts] == [None] * len(verdicts)
    names = [*list(ATTACKS)[::2], *["honest"] * 10, *list(ATTACKS)[1::2]]
    paid = [
        (name, verdict.rewards["passed"].value, verdict.passed)
        for name, verdict in zip(names, verdicts, strict=True)
        if verdict.rewards["passed"].value
    ]
    assert paid == [("honest", 1.0, True)] * 10


def test_a_program_that_knows_only_the_examples_is_paid_almost_nothing(services: Services) -> None:
    env = FizzBuzz(services=services)
    for index in range(3):
        task = ask(env, index, level=0.3)
        known = {case.arguments: case.expected for case in task.data.examples}
        source = f"def {task.data.entry}(*arguments): return {known!r}.get(arguments, '')"
        (verdict,) = judge(env, task, f"```python\n{source}\n```")
        assert verdict.rewards["passed"].value < 0.1


@pytest.mark.parametrize("cases", [1, 2, 24, 60])
def test_there_are_as_many_cases_as_are_asked_for(cases: int) -> None:
    for env_class in BOTH:
        for difficulty in (1, 6, 10):
            env = env_class(CodeConfig(difficulty=difficulty, cases=cases))
            assert len(env.held_out_cases(ask(env))) == cases


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cases": 0}, "cases is 0; it has to be above 0"),
        ({"cpu_seconds": 0.0}, "it has to be above 0 and finite"),
        ({"cpu_seconds": math.nan}, "it has to be above 0 and finite"),
        ({"memory_mb": 10**13}, "memory_mb is 10000000000000; it can be at most"),
        ({"cpu_seconds": 101.0}, r"cpu_seconds is 101\.0; at most 100 fit"),
    ],
)
def test_settings_that_leave_nothing_to_judge_or_outlast_a_verdict_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    """A program that outlasts the verdict would be left out as an error, where one that fails gets 0."""
    with pytest.raises(ConfigError, match=said):
        load_environment(PluginHost(), "fizzbuzz", settings, lend=lambda _: Services())
    assert CodeEnvironment.timeout_seconds > 2.5 * MAX_CPU_SECONDS


@pytest.mark.parametrize(("cpu", "wall"), [(1.0, 5.0), (2.0, 5.0), (20.0, 50.0)])
def test_limits_reach_the_sandbox_and_leave_a_program_its_cpu_time(cpu: float, wall: float) -> None:
    limits = {"cpu_seconds": cpu, "memory_mb": 100}
    sandbox = scripted(ask(FizzBuzz()), 24, rest=Outcome("ok"), **limits)[1]
    assert sandbox.programs[0].limits == Limits(wall_seconds=wall, **limits)  # type: ignore[arg-type]
