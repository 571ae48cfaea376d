"""The kit tries what is almost right: the author's mutants, and small changes of programs."""

import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import planted
import pytest
from bases import TaggedSum

from grpo_core import Program, Reward, Rollout, Services, Task, TaskKey, Verdict
from grpo_core.programs import Case, CodeConfig, CodeEnvironment, Problem, same_value
from grpo_kit.answers.syntax_mutants import syntax_mutants

from ..environments.in_process import InProcess
from .kit_runs import result_of

result = partial(result_of, tasks=4)


# The author's mutants


def test_a_mutant_that_passes_is_a_fault_with_its_mistake() -> None:
    found = result(planted.MutantPays(), "floor.mutants")
    assert found.status == "invalid"
    assert "the mutant 'a carry forgotten', '<answer>" in found.message
    assert "it must get a verdict, not pass, and earn less than 1" in found.message
    assert result(planted.Sum(), "floor.mutants").message == "10 mutants of 10 tasks do not pass"


class WholeReward(planted.MutantPays):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return Verdict(verdict.rewards, passed=answer == task.data, answer=verdict.answer)


def test_a_mutant_that_earns_the_whole_reward_without_passing_is_a_fault() -> None:
    assert "got 1 and did not pass" in result(WholeReward(), "floor.mutants").message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("<answer>1</answer>",), r"returned a tuple; it must return a dict of answers"),
        ({1: "<answer>1</answer>"}, r"it must return a dict of answers by the name"),
        ({"none": None}, r"the mutant 'none' is None; leave it out of mutants\(\)"),
        ({"number": 7}, r"must return a str"),
        (3, r"returned a int|an int"),
    ],
)
def test_mutants_that_are_no_answers_by_name_are_a_fault(given: Any, message: str) -> None:
    class Given(planted.Sum):
        def mutants(self, task: Task[int]) -> Any:
            return given

    found = result(Given(), "floor.mutants")
    assert found.status == "invalid"
    assert re.search(message, found.message), found.message


def test_without_mutants_the_check_is_not_carried_out() -> None:
    found = result(TaggedSum(), "floor.mutants")
    assert (found.status, "list what is almost right" in found.message) == ("not_checked", True)


# Changes of programs


class Clamped(CodeEnvironment[Problem]):
    """Asks for a function with two bounds, and tries both with their neighbours."""

    def problem(
        self, rng: random.Random, difficulty: int, *, number: int, impossible: bool = False
    ) -> Problem:
        entry, number = f"clamp_{number}", number + 5
        source = f"def {entry}(n):\n    if n < 0:\n        return 0\n    return min(n, {number})"
        statement = f"Return n, but at least 0 and at most {number}."
        return Problem(statement, entry, "n", source, (Case((1,), min(1, number)),), impossible)

    def cases(self, problem: Problem, rng: random.Random, count: int) -> Sequence[Case]:
        top = self.top(problem)
        return [self.case(rng.randint(-top, 3 * top), top) for _ in range(count)]

    def edge_cases(self, problem: Problem, rng: random.Random) -> Sequence[Case]:
        top = self.top(problem)
        return [self.case(bound + add, top) for bound in (0, top) for add in (-1, 0, 1)]

    def wrong_programs(self, problem: Problem) -> Mapping[str, str]:
        edits = {"lower": ("n < 0", "n < -1"), "upper": ("n, ", "n + (n == 1), ")}
        edits["highest"] = (f"{self.top(problem)})", f"{self.top(problem)} - 1)")
        edits["higher"] = (f"{self.top(problem)})", f"{self.top(problem)} + 1)")
        return {name: problem.source.replace(*edit) for name, edit in edits.items()}

    def top(self, problem: Problem) -> int:
        return int(problem.entry.partition("_")[2]) + 5

    def case(self, n: int, top: int) -> Case:
        return Case((n,), max(0, min(n, top)))


class Weak(Clamped):
    """Tries positive numbers only."""

    def held_out_cases(self, task: Task[Problem]) -> Sequence[Case]:
        cases = self.cases(task.data, task.rng(), 24)
        return [case for case in cases if case.arguments[0] > 0] or cases


def with_sandbox(env_class: type[CodeEnvironment[Any]]) -> CodeEnvironment[Any]:
    return env_class(CodeConfig(), Services(sandboxes={"default": InProcess()}))


def test_changed_programs_that_pass_are_a_warning_with_an_input_for_which_they_fail() -> None:
    found = result(with_sandbox(Weak), "floor.changed")
    assert (found.status, found.severity) == ("invalid", "warning")
    assert "small changes of references pass, such as 'def clamp_" in found.message
    assert ", which fails for '(-" in found.message


def test_changes_that_make_no_difference_are_no_finding() -> None:
    """`n < 0` may as well be `n <= 0`."""
    found = result(with_sandbox(Clamped), "floor.changed")
    assert found.status == "valid", found.message


class Bare(planted.Coded):
    """Its references are programs that nobody else knows how to compare; it tries one or two inputs."""

    inputs: Sequence[tuple[int]] = ((1,), (5,), (-7,))

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, f"Write f(n), the rest of {key.index} n by 9 or 0 below 0.", key.index)

    def reference(self, task: Task[int]) -> str:
        factor = task.data + 2
        return f"def f(n):\n    if n < 0:\n        return 0\n    return n * {factor} % 9\n"

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        programs = [
            Program(text, "f", self.inputs) for text in (rollout.text, self.reference(task))
        ]
        given, right = await self.services.sandbox().run(programs)
        passed = all(map(same_value, [o.value for o in given], [o.value for o in right]))
        passed &= all(outcome.status == "ok" for outcome in given)
        return Verdict({"reward": Reward(float(passed))}, passed=passed)


class FewInputs(Bare):
    inputs = ((9,),)


def test_an_environment_that_tries_few_inputs_is_told_how_many_changed_programs_pass() -> None:
    services = Services(sandboxes={"default": InProcess()})
    found = result(FewInputs(None, services), "floor.changed")
    assert (found.status, found.severity) == ("invalid", "warning")
    assert re.search(r"\d+ of 60 small changes of references pass, such as 'def f", found.message)
    assert "each is either equivalent to its reference or not told apart" in found.message
    found = result(Bare(None, services), "floor.changed")
    assert (found.status, "so few may be equivalent" in found.message) == ("valid", True), found


def test_where_nothing_is_run_no_program_is_changed() -> None:
    assert result(planted.Sum(), "floor.changed").message == "it runs no programs"


def test_changes_are_programs_that_differ_and_most_return_something_else() -> None:
    source = (
        "def f(items: list[int]) -> int:\n"
        '    """Add up what is between 3 and 9."""\n'
        "    total = 0\n"
        "    for item in items[1:]:\n"
        "        if 3 <= item < 9 and item % 2 == 0:\n"
        "            total += max(item, 5)\n"
        "        elif item == 100:\n"
        "            break\n"
        "    return total if total else -1\n"
    )
    changed = dict(syntax_mutants(source))
    programs = list(changed.values())
    assert len(programs) == len(set(programs)) >= 40
    assert all("Add up what is between 3 and 9." in program for program in programs)
    assert all("items: list[int]" in program for program in programs)
    kinds = {what.partition(": ")[2] for what in changed}
    assert {
        *("3 becomes 4", "3 becomes 2", "LtE becomes Lt", "the lower bound is dropped"),
        *("and and or are exchanged", "a condition is dropped", "max becomes min"),
        *("the lower bound of a slice is dropped", "Add becomes Sub", "the condition is negated"),
        *("the else branch is dropped", "break becomes continue", "lines 3 and 4 are exchanged"),
    } <= kinds
    inputs = [[], [1], [9, 4, 8, 3], [0, 2, 9, 6, 100, 8], [4, 100, 4], [1, 3, 4, 5, 6, 7, 8, 9]]
    differ = 0
    for program in programs:
        names: dict[str, Any] = {}
        right: dict[str, Any] = {}
        exec(source, right)
        exec(program, names)
        try:
            differ += not all(same_value(names["f"](x), right["f"](x)) for x in inputs)
        except Exception:  # noqa: BLE001 - a changed program may raise what it likes
            differ += 1
    assert differ >= 0.75 * len(programs)
