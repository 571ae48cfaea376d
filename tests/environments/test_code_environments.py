"""FizzBuzz and parentheses: what they ask at each difficulty, that the references solve it, and that nothing less does."""

from __future__ import annotations

import asyncio
import math
import random
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
    Case,
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


def run_here(source: str, entry: str, cases: Sequence[Case]) -> list[Any]:
    """Only for programs of our own."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return [namespace[entry](*case.arguments) for case in cases]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("env_class", BOTH)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_references_solve_their_problems(env_class: type[Any], difficulty: int) -> None:
    env = env_class(CodeConfig(difficulty=difficulty))
    for index in range(30):
        problem = ask(env, index).data
        cases = [*problem.examples, *env.cases(problem, random.Random(index), 24)]
        found = run_here(problem.source, problem.entry, cases)
        assert all(
            same_value(value, case.expected) for value, case in zip(found, cases, strict=True)
        )


@pytest.mark.parametrize("env_class", BOTH)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_a_constant_is_right_in_about_half_of_the_cases_at_most(
    env_class: type[Any], difficulty: int
) -> None:
    env = env_class(CodeConfig(difficulty=difficulty))
    shares = [constant_share(env.held_out_cases(ask(env, index))) for index in range(10)]
    assert sum(shares) / len(shares) <= 0.55


@pytest.mark.parametrize("difficulty", [d for d in DIFFICULTIES if d in (1, 2, 3, 8)])
def test_answers_of_yes_and_no_are_balanced(difficulty: int) -> None:
    env = Parentheses(CodeConfig(difficulty=difficulty))  # type: ignore[arg-type]
    for index in range(10):
        answers = [
            case.expected for case in env.cases(ask(env, index).data, random.Random(index), 24)
        ]
        assert sum(answers) == 12


@pytest.mark.parametrize("env_class", BOTH)
def test_levels_are_difficulties_and_a_setting_overrules_them(env_class: type[Any]) -> None:
    by_level = [ask(env_class(), 0, level=(d - 1) / 9).data.statement for d in DIFFICULTIES]
    by_setting = [
        ask(env_class(CodeConfig(difficulty=d)), 0, level=0.0).data.statement for d in DIFFICULTIES
    ]  # type: ignore[arg-type]
    assert len(set(by_level)) >= 8
    assert [len(text) > 0 for text in by_setting] == [True] * 10


@pytest.mark.parametrize("env_class", BOTH)
def test_train_and_eval_share_no_prompt(env_class: type[Any]) -> None:
    env = env_class()
    train, held_out = (
        {ask(env, i, split=split).prompt for i in range(300)} for split in ("train", "eval")
    )
    assert not train & held_out


@pytest.mark.parametrize("env_class", BOTH)
def test_a_prompt_shows_two_examples_and_the_name_but_no_solution(env_class: type[Any]) -> None:
    for index in range(20):
        task = ask(env_class(), index, level=index / 20)
        (message,) = task.prompt
        assert len(task.data.examples) == 2
        assert message.content.count(f"{task.data.entry}(") >= 3
        assert task.data.source.splitlines()[-1] not in message.content


@pytest.mark.parametrize("env_class", BOTH)
def test_held_out_cases_differ_from_draw_to_draw_and_replay(env_class: type[Any]) -> None:
    env = env_class()
    problem = ask(env).data
    drawn = [
        [case.arguments for case in env.cases(problem, random.Random(seed), 24)]
        for seed in (1, 2, 1)
    ]
    assert drawn[0] == drawn[2] != drawn[1]


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
    cases = env.held_out_cases(task)
    sandbox = Scripted(
        [Outcome("ok", case.expected) if i < right else rest for i, case in enumerate(cases)]
    )
    env = FizzBuzz(CodeConfig(**config), Services(sandboxes={"default": sandbox}))
    (verdict,) = judge(env, task, "```python\ndef f(n): return 1\n```")
    return verdict, sandbox


def test_the_seeds_rule_pays_half_of_the_share_and_ours_only_what_is_beyond_a_constant() -> None:
    task = ask(FizzBuzz(CodeConfig(difficulty=4)))
    wrong = Outcome("ok", "?")
    constant = constant_share(FizzBuzz().held_out_cases(task))
    assert scripted(task, 24, rest=wrong)[0].rewards["passed"].value == 1
    assert scripted(task, 18, rest=wrong, partial="seed")[0].rewards[
        "passed"
    ].value == pytest.approx(0.5 * 18 / 24)
    assert scripted(task, 18, rest=wrong)[0].rewards["passed"].value == pytest.approx(
        0.5 * (18 / 24 - constant) / (1 - constant)
    )
    assert scripted(task, 0, rest=wrong)[0].rewards["passed"].value == 0
    assert scripted(task, 23, rest=wrong, partial="none")[0].rewards["passed"].value == 0


def test_parts_tell_how_far_a_program_got() -> None:
    task = ask(FizzBuzz())
    verdict, sandbox = scripted(task, 6, rest=Outcome("exception", error="ValueError"))
    assert {name: reward.value for name, reward in verdict.rewards.items() if name != "passed"} == {
        "format": 1.0,
        "runs": 0.25,
    }
    assert verdict.detail["outcomes"] == {"ok": 6, "exception": 18}
    assert "ValueError" in verdict.rewards["passed"].note
    assert sandbox.programs[0].entry == task.data.entry
    assert len(sandbox.programs[0].inputs) == 24


def test_a_broken_sandbox_is_an_error_and_no_reward() -> None:
    with pytest.raises(RuntimeError, match="the daemon is gone"):
        scripted(ask(FizzBuzz()), 23, rest=Outcome("infra_error", error="the daemon is gone"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no code",
        "```python\ndef f(n): return 1",
        f"```python\n{'#' * 30_000}\n```",
        "```c\nint f;\n```",
    ],
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


def test_the_best_constant_passes_as_many_cases_as_its_value_is_expected_in() -> None:
    for pairs, share in ((SAME, 1.0), (OTHER, 0.5)):
        for pair in pairs:
            assert (
                constant_share([Case((number,), value) for number, value in enumerate(pair)])
                == share
            ), pair


def test_what_is_paid_grows_with_the_share_and_is_one_only_for_all() -> None:
    for constant in (0.1, 0.5):
        rewards = [
            passed_reward([True] * n + [False] * (24 - n), constant, "above_constant")
            for n in range(25)
        ]
        assert rewards == sorted(rewards)
        assert rewards[-1] == 1
        assert rewards[-2] < 0.5


# Wrong variants of the references


MUTATIONS = {
    "balanced": [
        ("return not open_ones", "return True"),
        ("open_ones.pop() != closes[c]", "open_ones.pop() == closes[c]"),
        ("not open_ones or", "False and"),
        ("return False", "return not open_ones"),
        ("not open_ones or open_ones.pop()", "open_ones and open_ones.pop()"),
        ("return not open_ones", "return len(s) % 2 == 0"),
    ],
    "deepest": [
        ("max(most, len(open_ones))", "len(open_ones)"),
        ("-1 if open_ones else most", "most"),
        ("return -1\n", "return most\n"),
        ("most = 0", "most = 1"),
        ("max(most, len(open_ones))", "max(most, s.count(c))"),
    ],
    "first_error": [
        ("return index", "return index + 1"),
        ("len(s) if open_ones else -1", "-1"),
        ("len(s) if open_ones", "len(s) - 1 if open_ones"),
        ("open_ones.pop() != closes[c]", "open_ones.pop() is None"),
        ("enumerate(s)", "enumerate(s, 1)"),
    ],
    "insertions": [
        ("missing + open_now", "missing"),
        ("missing + open_now", "open_now"),
        ("missing + open_now", "abs(missing - open_now)"),
        ("missing += 1", "missing = 1"),
        ("open_now -= 1", "open_now = 0"),
    ],
    "longest": [
        ("[-1]", "[0]"),
        ("index - starts[-1]", "index - starts[-1] + 1"),
        ("max(best, index - starts[-1])", "index - starts[-1]"),
        ("starts.append(index)\n    return", "starts.append(-1)\n    return"),
        ("index - starts[-1])", "len(starts))"),
    ],
    "with_jokers": [
        ('most += -1 if c == ")" else 1', 'most += 1 if c == "(" else -1'),
        ("fewest = max(fewest, 0)", "pass"),
        ("return fewest == 0", "return True"),
        ("return fewest == 0", "return most == 0"),
        ("return False", "return True"),
    ],
    "score": [
        ("2 * inner", "inner"),
        ("if inner else 1", "if inner else 2"),
        ("+= 2 * inner", "= 2 * inner"),
        ("2 * inner if", "2 + inner if"),
        ("worth[0]", "worth[-1] + 1"),
    ],
    "unfold": [
        ("inner * times.pop()", "inner"),
        ("times.pop()", "times.pop(0)"),
        ("parts[-1] += inner", "parts[-1] = inner"),
        ("index - 1", "index - 2"),
        ("parts[-1] += c", "parts[-1] = c"),
    ],
}


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_every_wrong_variant_of_a_parentheses_reference_fails(difficulty: int) -> None:
    env = Parentheses(CodeConfig(difficulty=difficulty))  # type: ignore[arg-type]
    problem = ask(env).data
    assert len(MUTATIONS[problem.family]) >= 5
    for old, new in MUTATIONS[problem.family]:
        assert old in problem.source, old
        assert fails(env, problem, problem.source.replace(old, new)), (
            f"{problem.family}: {old} -> {new}"
        )


FIZZBUZZ_MUTATIONS = [
    (" == 0", " == 1"),
    ("words.append(", "words.insert(0, "),
    ("if words else", "if not words else"),
    ("return ", "return [] and "),
    ("% ", "// "),
    ("''.join(words)", "words[0]"),
    ("words[0]", "words[-1]"),
    ("stop + 1", "stop"),
    ("range(start", "range(start + 1"),
    ("str(n) if", "str(n + 1) if"),
    ("str(abs(n))", "str(abs(n))[0]"),
]


@pytest.mark.slow
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_every_wrong_variant_of_a_fizzbuzz_reference_fails_somewhere(difficulty: int) -> None:
    """A variant that this problem cannot tell (order of words that never meet) is told by another one of the same difficulty."""
    env = FizzBuzz(CodeConfig(difficulty=difficulty))  # type: ignore[arg-type]
    tried = 0
    for old, new in FIZZBUZZ_MUTATIONS:
        problems = [
            problem
            for problem in (ask(env, index).data for index in range(12))
            if old in problem.source
        ]
        tried += bool(problems)
        assert not problems or any(
            fails(env, problem, problem.source.replace(old, new)) for problem in problems
        ), f"{old} -> {new}"
    assert tried >= 5


def fails(env: Any, problem: Any, source: str) -> bool:
    """In most of several draws."""
    failed = 0
    for seed in range(10):
        cases = env.cases(problem, random.Random(seed), 24)
        try:
            failed += not all(
                same_value(value, case.expected)
                for value, case in zip(run_here(source, problem.entry, cases), cases, strict=True)
            )
        except Exception:  # noqa: BLE001 - a variant may raise what it likes
            failed += 1
    return failed >= 8


def test_families_are_right_about_cases_worked_by_hand() -> None:
    assert [families.balanced(s) for s in ("", "()", "([)]", "(", ")", "a(b)c")] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert [families.deepest(s) for s in ("", "()", "(())()", "(", "[<>]")] == [0, 1, 2, -1, 2]
    assert [families.first_error(s) for s in ("", "()", "(]", "((", "())")] == [-1, -1, 1, 2, 2]
    assert [families.insertions(s) for s in ("", "(", "))", "())(", ")(")] == [0, 1, 2, 2, 2]
    assert [families.longest(s) for s in ("", "(()", ")()())", "()(()", "((")] == [0, 2, 4, 2, 0]
    assert [families.with_jokers(s) for s in ("", "*", "(*", "*(", "(*))", "**)", ")*")] == [
        True,
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    assert [families.score(s) for s in ("()", "(())", "()()", "(()(()))")] == [1, 2, 2, 6]
    assert [families.unfold(s) for s in ("", "a2(b)", "2(a3(b))", "1()")] == [
        "",
        "abb",
        "abbbabbb",
        "",
    ]


# With real jails


@pytest.mark.sampled(1)
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
    earned = {
        name: verdict.rewards["passed"].value for name, verdict in zip(names, verdicts, strict=True)
    }
    assert {name: value for name, value in earned.items() if value} == {"honest": 1.0}
    assert sum(verdict.passed for verdict in verdicts) == 10


def test_a_program_that_knows_only_the_examples_is_paid_almost_nothing(services: Services) -> None:
    env = FizzBuzz(services=services)
    for index in range(5):
        task = ask(env, index, level=0.3)
        known = {case.arguments: case.expected for case in task.data.examples}
        source = f"def {task.data.entry}(*arguments): return {known!r}.get(arguments, '')"
        (verdict,) = judge(env, task, f"```python\n{source}\n```")
        assert verdict.rewards["passed"].value < 0.1


@pytest.mark.parametrize("cases", [1, 2, 5, 24, 60])
def test_there_are_as_many_cases_as_are_asked_for(cases: int) -> None:
    for env_class in BOTH:
        for difficulty in DIFFICULTIES:
            env = env_class(CodeConfig(difficulty=difficulty, cases=cases))
            assert len(env.held_out_cases(ask(env))) == cases


def test_settings_that_leave_nothing_to_judge_are_refused() -> None:
    host = PluginHost()
    with pytest.raises(ConfigError, match="cases is 0; it has to be above 0"):
        load_environment(host, "fizzbuzz", {"cases": 0}, lend=lambda _: Services())


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_cpu_time_that_is_no_limit_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="it has to be above 0 and finite"):
        load_environment(
            PluginHost(), "fizzbuzz", {"cpu_seconds": seconds}, lend=lambda _: Services()
        )


def test_more_memory_than_a_limit_can_say_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory_mb is 10000000000000; it can be at most"):
        load_environment(PluginHost(), "fizzbuzz", {"memory_mb": 10**13}, lend=lambda _: Services())


def test_a_cpu_time_that_a_verdict_does_not_last_is_refused() -> None:
    """A program that hangs would be left out as an error, where one that fails gets 0."""
    with pytest.raises(ConfigError, match=r"cpu_seconds is 101\.0; at most 100 fit"):
        load_environment(
            PluginHost(), "fizzbuzz", {"cpu_seconds": 101.0}, lend=lambda _: Services()
        )
    assert CodeEnvironment.timeout_seconds > 2.5 * MAX_CPU_SECONDS


def test_limits_of_the_environment_reach_the_sandbox() -> None:
    task = ask(FizzBuzz())
    sandbox = scripted(task, 24, rest=Outcome("ok"), cpu_seconds=1.5, memory_mb=100)[1]
    assert sandbox.programs[0].limits == Limits(cpu_seconds=1.5, memory_mb=100)


def test_a_program_may_last_long_enough_to_use_its_cpu_time() -> None:
    task = ask(FizzBuzz())
    limits = [
        scripted(task, 24, rest=Outcome("ok"), cpu_seconds=seconds)[1]
        .programs[0]
        .limits.wall_seconds
        for seconds in (1.0, 2.0, 20.0)
    ]
    assert limits == [5.0, 5.0, 50.0]
