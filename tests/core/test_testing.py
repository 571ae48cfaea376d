"""The helpers for the tests of environments: what they report, how they fail, and the fakes."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import pytest
from echo import Echo
from planted_dialogues import Guess

from grpo_core import GrpoError, JudgeRequest, Message, Outcome, Program, Services, Task, TaskKey
from grpo_core.testing import (
    FakeJudge,
    FakeSandbox,
    assert_environment,
    check_environment,
    play_turns,
)


class Stingy(Echo):
    def reference(self, task: Task[str]) -> str:
        return task.data.upper()


class Ended(Echo):
    """Pays metres; a reference goes one."""

    reward_range = (0.0, 100.0)


class Endless(Ended):
    open_ended = True


class Bare(Echo):
    """Offers nothing to check with."""

    deterministic = False

    def reference(self, task: Task[str]) -> str | None:  # type: ignore[override]
        return None

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return ()

    def size(self, split: Literal["train", "eval"]) -> int | None:
        return 3 if split == "train" else 0


@pytest.mark.slow
async def test_an_environment_that_keeps_its_promises_passes_every_check() -> None:
    """As in a notebook, where an event loop is running."""
    assert_environment(Echo(), tasks=2, only=["declared", "task"])
    statuses = {result.status for result in check_environment(Echo(), tasks=8).results}
    assert statuses == {"valid", "not_checked"}


@pytest.mark.slow
def test_a_reference_of_an_environment_without_a_best_answer_has_to_pass_and_no_more() -> None:
    assert not check_environment(Endless(), isolation="inline", only=["verdict"]).problems
    (problem,) = check_environment(Ended(), isolation="inline", only=["verdict"]).problems
    assert "it must pass with 100" in problem.message


def test_what_could_not_be_looked_at_is_not_reported_as_valid() -> None:
    report = check_environment(Bare(), tasks=8)
    left_out = {result.check for result in report.results if result.status == "not_checked"}
    assert {"task.split", "verdict.reference", "verdict.repeat", "floor.cheats"} <= left_out
    assert report.problems == ()


@pytest.mark.slow
def test_the_assertion_shows_the_whole_report() -> None:
    said = r"(?s)Stingy: 1 faults.*fault +verdict.reference.*it must pass with 1"
    with pytest.raises(AssertionError, match=said):
        assert_environment(Stingy(), only=["verdict"])


async def test_ctrl_c_just_after_the_work_in_a_notebook_is_a_ctrl_c_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, here = Future.result, threading.get_ident()

    def interrupted(self: Future[Any], timeout: float | None = None) -> Any:
        found = result(self, timeout)
        if threading.get_ident() == here:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_environment(Echo(), tasks=2, only=["declared"])


IN_A_NOTEBOOK = """
import asyncio, os, signal, threading, time
from echo import Echo
from grpo_core.testing import check_environment

class Patient(Echo):
    timeout_seconds = 60.0

    def verify(self, task, rollout):
        started.set()
        time.sleep(60)

async def cell():
    check_environment(Patient(), tasks=2, isolation="inline")

def interrupt():
    started.wait()
    os.kill(os.getpid(), signal.SIGINT)

started = threading.Event()
threading.Thread(target=interrupt, daemon=True).start()
try:
    asyncio.new_event_loop().run_until_complete(cell())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_the_checks_inside_a_running_event_loop() -> None:
    command, here = [sys.executable, "-c", IN_A_NOTEBOOK], Path(__file__).parent
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=here)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_the_turns_of_a_script_are_played_with_the_replies_between_them() -> None:
    env = Guess()
    task = env.task(TaskKey("guess", "train", 0))
    low, right = str(task.data - 1), str(task.data)
    rollout = play_turns(env, task, (low, right, "unheard"))
    assert [message.content for message in rollout.messages] == [low, "higher", right]
    assert env.verify(task, rollout).passed
    assert play_turns(env, task, low).messages == (Message("assistant", low),)
    assert len(play_turns(env, task, [low] * 9).messages) == 2 * env.max_turns - 1


def test_a_reply_that_lacks_its_service_fails_the_test_that_plays() -> None:
    class Asking(Guess):
        async def reply(self, task: Task[int], messages: Sequence[Message]) -> None:
            self.services.judge()

    env = Asking()
    with pytest.raises(GrpoError, match="no judge 'default' is configured"):
        play_turns(env, env.task(TaskKey("guess", "train", 0)), ("1", "2"))


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
