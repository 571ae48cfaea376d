"""The conformance checks find each broken promise by themselves, and only that one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from grpo_core import Environment, JudgeRequest, Outcome, Program, Reward, Rollout, Services, Task, TaskKey, Verdict
from grpo_core.testing import EchoEnvironment, FakeJudge, FakeSandbox, Report, assert_environment, check_environment

sys.path.insert(0, str(Path(__file__).parent))

import hostile_envs as hostile


def statuses(report: Report) -> dict[str, str]:
    return {result.check: result.status for result in report.results}


class Generous(EchoEnvironment):
    """Pays for anything that is not empty, as one published environment does."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said = bool(rollout.text)
        return Verdict(rewards={"reward": Reward(float(said))}, passed=said)

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return ()


class Constant(EchoEnvironment):
    """Accepts one answer everywhere."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said = rollout.text.startswith("train-") and " " not in rollout.text
        return Verdict(rewards={"reward": Reward(float(said))}, passed=said)


class Echoed(EchoEnvironment):
    """Looks for the word anywhere, and the prompt holds it."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said = task.data in rollout.text
        return Verdict(rewards={"reward": Reward(float(said))}, passed=said)

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return ()


class Cheatable(EchoEnvironment):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return super().verify(task, Rollout.of(rollout.text.lower()))


class Fragile(EchoEnvironment):
    """Raises on an empty answer."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        rollout.text.encode()[0]
        return super().verify(task, rollout)

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return ("wrong",)


class Nameless(EchoEnvironment):
    """Leaves its part out when the answer is wrong."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        return verdict if verdict.passed else Verdict()

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return ()


class Stingy(EchoEnvironment):
    def reference(self, task: Task[str]) -> str:
        return task.data.upper()


class Endless(EchoEnvironment):
    """Pays metres, of which there are always more; a reference goes one."""

    reward_range = (0.0, 100.0)
    open_ended = True


class Moody(EchoEnvironment):
    judged = 0

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.judged += 1
        return replace(super().verify(task, rollout), answer=str(self.judged))


class Impure(EchoEnvironment):
    made = 0

    def task(self, key: TaskKey) -> Task[str]:
        self.made += 1
        return replace(super().task(key), prompt=f"Task number {self.made}")


class Leaky(EchoEnvironment):
    """Trains on its held-out tasks: seed and index in one sum, and the split forgotten."""

    def task(self, key: TaskKey) -> Task[str]:
        word = f"train-{key.seed + key.index}"
        return Task(key, f"Say {word}", word)


class Holding(EchoEnvironment):
    """Keeps a function in its tasks."""

    def task(self, key: TaskKey) -> Task[Any]:
        task: Task[Any] = super().task(key)
        return replace(task, data=lambda word=task.data: word)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return super().verify(replace(task, data=task.data()), rollout)

    def reference(self, task: Task[Any]) -> str:
        word: str = task.data()
        return word

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return ("wrong",)


class Unequal(EchoEnvironment):
    reward_range = (1.0, 2.0)


class Bare(EchoEnvironment):
    """Offers nothing to check with."""

    deterministic = False

    def reference(self, task: Task[str]) -> str | None:  # type: ignore[override]
        return None

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return ()

    def size(self, split: Literal["train", "eval"]) -> int | None:
        return 3 if split == "train" else 0


class Taskless(EchoEnvironment):
    def task(self, key: TaskKey) -> Task[str]:
        raise OSError("the data set is not there")


def test_an_environment_that_keeps_its_promises_passes_every_check() -> None:
    report = check_environment(EchoEnvironment())
    assert set(statuses(report).values()) == {"valid"}
    assert_environment(EchoEnvironment())


BROKEN: list[tuple[type[Environment[Any]], set[str]]] = [
    (Generous, {"junk", "constants"}),
    (Constant, {"constants"}),
    (Echoed, {"constants"}),
    (Cheatable, {"cheats"}),
    (Fragile, {"junk"}),
    (Nameless, {"junk"}),
    (Stingy, {"references"}),
    (Moody, {"determinism"}),
    (Leaky, {"splits"}),
    (Holding, {"pickling"}),
]


def test_a_reference_of_an_environment_without_a_best_answer_has_to_pass_and_no_more() -> None:
    assert not check_environment(Endless(), isolation="inline").problems
    Endless.open_ended = False
    try:
        (problem,) = check_environment(Endless(), isolation="inline").problems
    finally:
        Endless.open_ended = True
    assert "it must pass with 100" in problem.message


@pytest.mark.parametrize(("env", "found"), BROKEN, ids=[env.__name__ for env, _ in BROKEN])
def test_a_broken_promise_is_found_by_the_check_for_it_and_by_no_other(env: type[Environment[Any]], found: set[str]) -> None:
    assert {problem.check for problem in check_environment(env()).problems} == found


def test_tasks_that_are_not_a_function_of_their_key_are_found() -> None:
    assert "purity" in {problem.check for problem in check_environment(Impure()).problems}


def test_data_that_cannot_be_compared_leaves_purity_unchecked() -> None:
    assert statuses(check_environment(Holding()))["purity"] == "not_checked"


def test_a_floor_outside_the_declared_range_is_found() -> None:
    assert "declarations" in {problem.check for problem in check_environment(Unequal()).problems}


def test_what_could_not_be_looked_at_is_not_reported_as_valid() -> None:
    report = check_environment(Bare())
    found = statuses(report)
    assert {name for name, status in found.items() if status == "not_checked"} == {
        "splits",
        "references",
        "cheats",
        "constants",
        "determinism",
    }
    assert report.problems == ()


def test_an_environment_without_tasks_fails_with_its_own_words() -> None:
    report = check_environment(Taskless())
    assert statuses(report)["tasks"] == "invalid"
    assert "the data set is not there" in str(report)


def test_the_assertion_shows_the_whole_report() -> None:
    with pytest.raises(AssertionError, match=r"(?s)Generous: 2 problems in 10 checks.*invalid +junk.*got 1 and passed"):
        assert_environment(Generous())


def test_a_verifier_that_hangs_on_junk_is_found_in_bounded_time() -> None:
    started = time.monotonic()
    report = check_environment(hostile.SleepyOnJunk(), tasks=2)
    assert {problem.check for problem in report.problems} == {"junk"}
    assert "exceeded its deadline" in str(report)
    assert time.monotonic() - started < 10


def test_the_checks_run_inside_a_running_event_loop() -> None:
    async def run() -> Report:
        return check_environment(EchoEnvironment(), tasks=2)

    assert asyncio.run(run()).problems == ()


def test_fakes_answer_as_they_are_told_and_keep_what_they_were_asked() -> None:
    sandbox = FakeSandbox(lambda program, one: Outcome("ok", value=sum(one)))
    judge = FakeJudge(lambda request: float(request.candidate == "good"))
    services = Services(sandboxes={"default": sandbox}, judges={"default": judge})
    program = Program("source", "f", [[1, 2], [3, 4]])
    outcomes = asyncio.run(services.sandbox().run([program]))
    assert [outcome.value for outcome in outcomes[0]] == [3, 7]
    assert sandbox.programs == [program]
    judgements = asyncio.run(services.judge().judge([JudgeRequest("good"), JudgeRequest("bad")]))
    assert [judgement.score for judgement in judgements] == [1.0, 0.0]
    assert [request.candidate for request in judge.requests] == ["good", "bad"]
