"""FizzBuzz and parentheses: programs that are wrong are not paid in full, whoever made them wrong; right ones always are."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from grpo_core import Program, Rollout, Services, Task, TaskKey
from grpo_core.programs import Case, CodeConfig, CodeEnvironment, Problem, same_value
from grpo_env_fizzbuzz.env import FizzBuzz
from grpo_env_parentheses.env import Parentheses
from grpo_kit.answers.syntax_mutants import syntax_mutants

from .in_process import InProcess, run_program
from .right_programs import right_programs

DIFFICULTIES = range(1, 11)
BOTH: list[type[CodeEnvironment[Any]]] = [FizzBuzz, Parentheses]


def build(
    env_class: type[CodeEnvironment[Any]], difficulty: int, sandbox: Any = None
) -> CodeEnvironment[Any]:
    config = CodeConfig(difficulty=difficulty)  # type: ignore[arg-type]
    return env_class(config, Services(sandboxes={"default": sandbox or InProcess()}))


def ask(env: CodeEnvironment[Any], index: int, *, draw: int = 0) -> Task[Any]:
    task = env.task(TaskKey(type(env).__name__.lower(), "train", index, 0, 0.0))
    return Task(task.key, task.prompt, task.data, draw)


def passes(env: CodeEnvironment[Any], task: Task[Any], source: str) -> bool:
    return asyncio.run(env.averify(task, Rollout.of(f"```python\n{source}\n```"))).passed


# What a lazy policy found


def replaced(old: str, new: str) -> Callable[[Problem], str]:
    def edit(problem: Problem) -> str:
        assert old in problem.source
        return problem.source.replace(old, new)

    return edit


def written(*lines: str) -> Callable[[Problem], str]:
    return lambda problem: "\n    ".join([f"def {problem.entry}(s):", *lines])


def bound(lower: str, upper: str) -> Callable[[Problem], str]:
    def edit(problem: Any) -> str:
        (rule,) = [rule for rule in problem.game.rules if rule.kind == "between"]
        right = rule.source()
        return problem.source.replace(right, right.replace("<= n", lower).replace("n <=", upper))

    return edit


def last_digit(problem: Any) -> str:
    (rule,) = [rule for rule in problem.game.rules if rule.kind == "contains"]
    return problem.source.replace(rule.source(), f"str(n)[-1] == '{rule.value}'")


_BY_TRIAL = "all(n % d for d in range(2, int(n ** 0.5) + 1))"
_BY_FOUR = "(n in (2, 3, 5, 7) or all(n % d for d in (2, 3, 5, 7)))"
_KINDS = "('()', '[]', '{}', '<>')"
_COUNTED = f"all(s.count(o) == s.count(c) for o, c in {_KINDS})"
LAZY = [
    ("an exclusive upper bound", FizzBuzz, (7,), bound("<= n", "n <")),
    ("an exclusive lower bound", FizzBuzz, (7,), bound("< n", "n <=")),
    ("1 is prime", FizzBuzz, (8, 10), replaced("n > 1 and", "n >= 1 and")),
    ("primes by 2, 3, 5, 7 only", FizzBuzz, (8, 10), replaced(_BY_TRIAL, _BY_FOUR)),
    ("the last digit", FizzBuzz, (7, 8, 9, 10), last_digit),
    ("counting", Parentheses, (1, 2, 3), written(f"return {_COUNTED}")),
    ("counting and the ends", Parentheses, (1, 2, 3), written(
        "t = [c for c in s if c in '()[]{}<>']",
        f"return not t or t[0] in '([{{<' and t[-1] in ')]}}>' and {_COUNTED}",
    )),
    ("kinds ignored", Parentheses, (2, 3), replaced("open_ones.pop() != closes[c]", "not open_ones.pop()")),
    ("jokers from the left", Parentheses, (8,), written(
        "d = 0",
        "for c in s:",
        "    d += -1 if c == ')' else 1",
        "    if d < 0: return False",
        "return s.count('(') - s.count(')') <= s.count('*')",
    )),
]  # fmt: skip


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("env_class", "difficulty", "edit"),
    [
        pytest.param(env_class, difficulty, edit, id=f"{name}-{difficulty}")
        for name, env_class, difficulties, edit in LAZY
        for difficulty in difficulties
    ],
)
def test_a_lazy_program_is_never_paid_in_full(
    env_class: type[Any], difficulty: int, edit: Callable[[Problem], str]
) -> None:
    env = build(env_class, difficulty)
    for index in range(4):
        task = ask(env, index)
        assert not passes(env, task, edit(task.data)), edit(task.data)


# The table of mistakes that the cases are drawn against


@pytest.mark.sampled(4)
@pytest.mark.parametrize("env_class", BOTH)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_each_wrong_program_runs_and_is_told_apart_and_its_function_does_the_same(
    env_class: type[Any], difficulty: int
) -> None:
    env = build(env_class, difficulty)
    for index in range(2):
        task = ask(env, index, draw=index)
        cases = env.held_out_cases(task)
        if env_class is Parentheses and difficulty in (1, 2, 3, 8):  # half of the answers are yes
            assert sum(case.expected for case in cases) == 12
        functions = env.wrong_functions(task.data)
        programs = env.wrong_programs(task.data)
        assert programs.keys() == functions.keys()
        fenced = {f"```python\n{source}\n```" for source in programs.values()}
        assert fenced == set(env.mutants(task).values())
        for mistake, source in programs.items():
            outcomes = run_program(Program(source, task.data.entry, [c.arguments for c in cases]))
            assert {outcome.status for outcome in outcomes} == {"ok"}, f"{mistake} raises"
            values = [outcome.value for outcome in outcomes]
            assert not all(map(same_value, values, (case.expected for case in cases))), source
            returned = [functions[mistake](*case.arguments) for case in cases]
            assert all(map(same_value, returned, values)), mistake


@pytest.mark.parametrize("env_class", BOTH)
def test_cases_differ_from_draw_to_draw_and_follow_from_key_and_draw(env_class: type[Any]) -> None:
    for difficulty in (1, 8):
        env, again = build(env_class, difficulty), build(env_class, difficulty)
        drawn = [env.held_out_cases(ask(env, 0, draw=draw)) for draw in range(4)]
        inputs = [{case.arguments for case in cases} for cases in drawn]
        assert all(len(cases) == 24 for cases in drawn)
        assert drawn[1] == again.held_out_cases(ask(again, 0, draw=1))
        assert all(len(inputs[0] - others) >= 6 for others in inputs[1:])


REDRAWN = {(FizzBuzz, 6): 0.5, (FizzBuzz, 8): 0.4, (FizzBuzz, 10): 0.4}
"""The largest share of tasks that are drawn again; elsewhere 0.05."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("env_class", BOTH)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_few_tasks_are_drawn_again(env_class: type[Any], difficulty: int) -> None:
    env = build(env_class, difficulty)
    keys = [TaskKey("redrawn", "train", index, 0, 0.0) for index in range(20)]
    redrawn = sum(env.redraws(key) > 0 for key in keys) / len(keys)
    assert redrawn <= REDRAWN.get((env_class, difficulty), 0.05)


class Doubled(CodeEnvironment[Problem]):
    """Asks for a function that doubles."""

    def problem(
        self, rng: random.Random, difficulty: int, *, number: int, impossible: bool = False
    ) -> Problem:
        entry = f"double_{number}"
        source = f"def {entry}(n): return 2 * n"
        return Problem("Double n.", entry, "n", source, (Case((1,), 2),), impossible)

    def cases(self, problem: Problem, rng: random.Random, count: int) -> Sequence[Case]:
        return [Case((n,), 2 * n) for n in (rng.randint(1, 99) for _ in range(count))]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("def {}(n): return n + n", r"50 problems in a row .* 'zero': give edge_cases"),
        ("def f(n: return", "a wrong program must load and bind 'double_"),
    ],
)
def test_a_wrong_program_that_is_right_or_does_not_load_is_named(program: str, said: str) -> None:
    class Named(Doubled):
        def wrong_programs(self, problem: Problem) -> dict[str, str]:
            return {"zero": program.format(problem.entry)}

    with pytest.raises(ValueError, match=said):
        ask(Named(), 0)


class WrongAtZero(Doubled):
    def wrong_programs(self, problem: Problem) -> dict[str, str]:
        return {"zero": f"def {problem.entry}(n): return 2 * n if n else 1"}

    def edge_cases(self, problem: Problem, rng: random.Random) -> Sequence[Case]:
        return [Case((n,), 2 * n) for n in (-1, 0, 1)]


@pytest.mark.parametrize("cases", [1, 2, 24])
def test_an_edge_case_is_among_the_cases_where_only_it_tells_a_program_apart(cases: int) -> None:
    env = WrongAtZero(CodeConfig(cases=cases))
    for draw in range(20):
        drawn = env.held_out_cases(ask(env, 0, draw=draw))
        assert (len(drawn), (0,) in [case.arguments for case in drawn]) == (cases, True)


# Mutants that nobody drew cases against


def judge_mutants(
    env_class: type[Any], difficulty: int, *, tasks: range, most: int | None = None
) -> tuple[int, int, list[str]]:
    """Return how many mutants were judged, how many equal the solution, and those paid in full."""
    env = build(env_class, difficulty)
    judged = equivalent = 0
    paid: list[str] = []
    for index in tasks:
        task = ask(env, index, draw=index)
        mutants = list(syntax_mutants(task.data.source))
        chosen = random.Random(index).sample(mutants, min(most or len(mutants), len(mutants)))
        domain: list[Case] = []
        for what, source in chosen:
            judged += 1
            if passes(env, task, source):
                domain = domain or ten_thousand_cases(env, task.data)
                if agrees(source, task.data.entry, domain):
                    equivalent += 1
                else:
                    paid.append(f"{env_class.__name__} {difficulty}, {what}:\n{source}")
    return judged, equivalent, paid


def ten_thousand_cases(env: CodeEnvironment[Any], problem: Problem) -> list[Case]:
    rng = random.Random(0)
    return [*env.edge_cases(problem, rng), *env.cases(problem, rng, 10_000)]


def agrees(source: str, entry: str, cases: Sequence[Case]) -> bool:
    """Whether a program returns what is expected in all cases; it stops at the first where it does not."""
    for start in range(0, len(cases), 500):
        batch = cases[start : start + 500]
        program = Program(source, entry, [case.arguments for case in batch])
        outcomes = run_program(program, seconds=30.0)
        if any(outcome.status != "ok" for outcome in outcomes):
            return False
        found = [outcome.value for outcome in outcomes]
        if not all(map(same_value, found, [case.expected for case in batch])):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("env_class", BOTH)
def test_changes_of_the_syntax_tree_are_not_paid_in_full(env_class: type[Any]) -> None:
    results = [judge_mutants(env_class, level, tasks=range(1), most=12) for level in DIFFICULTIES]
    assert sum(judged for judged, _, _ in results) == 120
    assert [program for _, _, paid in results for program in paid] == []


@pytest.mark.heavy
def test_of_ten_thousand_changed_programs_at_most_ten_are_paid_in_full() -> None:
    results = [judge_mutants(env, level, tasks=range(9)) for env in BOTH for level in DIFFICULTIES]
    judged = sum(judged for judged, _, _ in results)
    equivalent = sum(equivalent for _, equivalent, _ in results)
    paid = [program for _, _, programs in results for program in programs]
    print(f"{judged} judged, {equivalent} equivalent, {len(paid)} paid in full", *paid, sep="\n")
    assert judged >= 10_000
    assert equivalent <= 0.1 * judged
    assert len(paid) <= 10


# Right programs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("env_class", BOTH)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_right_programs_of_another_kind_are_paid_in_full(
    env_class: type[Any], difficulty: int
) -> None:
    env = build(env_class, difficulty)
    for index in range(3):
        task = ask(env, index, draw=index)
        for source in [task.data.source, *right_programs(task.data)]:
            assert passes(env, task, source), source


# With real jails


@pytest.mark.heavy
def test_the_sandbox_gives_the_same_verdicts_as_this_process(services: Services) -> None:
    compared = alike = 0
    for env_class in BOTH:
        for difficulty in DIFFICULTIES:
            here = build(env_class, difficulty)
            jailed = build(env_class, difficulty, services.sandbox())
            task = ask(here, 0)
            mutants = [source for _, source in syntax_mutants(task.data.source)]
            programs = [*right_programs(task.data), *random.Random(difficulty).sample(mutants, 10)]
            for source in programs:
                text = Rollout.of(f"```python\n{source}\n```")
                one, other = (asyncio.run(env.averify(task, text)) for env in (here, jailed))
                assert one.passed == other.passed, text.text
                alike += one.total == other.total
                compared += 1
    assert compared >= 240
    assert alike >= 0.98 * compared  # a jail has limits on what a call returns
