"""The kit plays dialogues and tools, and finds what is planted in them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Environment, GrpoError, Message, Rollout, Services, Task, TaskKey
from grpo_core.config.settings import Isolation, VerifyConfig
from grpo_core.kit.result import CheckResult, catalogue
from grpo_core.kit.scripts import join_turns, split_turns
from grpo_core.kit.tool_calls import described_tools
from grpo_core.testing import FakeJudge, Report, check_environment
from grpo_core.verify.conversation import StatelessConversations
from grpo_core.verify.engine import Verifier
from grpo_core.verify.isolated import IsolatedReplies
from grpo_core.verify.playing import play

from .distributions import grpo

sys.path.insert(0, str(Path(__file__).parent))

import planted_dialogues as planted

COUNT = 8


def problems(report: Report) -> set[str]:
    return {result.check for result in report.results if result.status == "invalid"}


# Playing


class Scripted(StatelessConversations):
    """Replies with these messages, one after the other, and then ends the dialogue."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        number = sum(message.role == "user" for message in messages)
        return [Message("user", self.texts[number])] if number < len(self.texts) else None


TASK = Task(TaskKey("guess", "train", 0), "?", 7)


def test_a_script_is_played_as_a_rollout_and_ends_with_its_last_turn() -> None:
    played = asyncio.run(play(Scripted("a", "b", "c"), TASK, ["1", "2"], max_turns=9))
    assert played.rollout == Rollout(
        (Message("assistant", "1"), Message("user", "a"), Message("assistant", "2")),
        reply_dropped=True,
    )
    assert not played.ended
    assert played.replies == ([Message("user", "a")], [Message("user", "b")])


def test_the_environment_and_the_most_turns_end_a_script_before_its_end() -> None:
    ended = asyncio.run(play(Scripted("a"), TASK, ["1", "2", "3"], max_turns=9))
    assert (ended.ended, ended.rollout.text) == (True, "2")
    limited = asyncio.run(play(Scripted("a", "b", "c"), TASK, lambda _: "go on", max_turns=2))
    assert (limited.ended, len(limited.rollout.messages)) == (False, 3)


def test_a_reply_that_fails_is_an_error_of_the_rollout() -> None:
    async def played(isolation: Isolation) -> Rollout:
        settings = VerifyConfig(isolation=isolation)
        async with IsolatedReplies(planted.Raises(), settings=settings) as replies:
            task = planted.Raises().task(TASK.key)
            return (await play(replies, task, ["1", "2"], max_turns=3)).rollout

    for isolation in ("inline", "auto"):
        rollout = asyncio.run(played(isolation))
        assert (rollout.finish, "KeyError" in rollout.error) == ("error", True), rollout.error


def test_a_reply_that_blocks_does_not_hold_the_caller_and_is_not_asked_twice() -> None:
    async def errors(isolation: Isolation) -> list[str]:
        settings = VerifyConfig(isolation=isolation, timeout_seconds=0.5)
        async with IsolatedReplies(planted.Blocks(), settings=settings) as replies:
            task = planted.Blocks().task(TASK.key)
            return [
                (await play(replies, task, ["1", "2"], max_turns=3)).rollout.error for _ in range(3)
            ]

    for isolation in ("inline", "auto"):
        started = time.monotonic()
        assert set(asyncio.run(errors(isolation))) == {"reply() exceeded its deadline of 0.5 s"}
        assert time.monotonic() - started < 5


def test_turns_of_references_come_back_from_workers() -> None:
    async def reference(isolation: Isolation, env: planted.Guess) -> object:
        async with Verifier(env, settings=VerifyConfig(isolation=isolation)) as verifier:
            (task,) = await verifier.tasks([TASK.key])
            return await verifier.reference(task)

    right = planted.Guess().task(TASK.key).data
    for isolation in ("inline", "process"):
        found = asyncio.run(reference(isolation, planted.Guess()))
        assert found == (str(right - 1), str(right))
        with pytest.raises(GrpoError, match="that is not one of texts; it must return a str"):
            asyncio.run(reference(isolation, planted.NumbersAsReference()))


@pytest.mark.slow
def test_references_and_cheats_of_several_turns_are_played() -> None:
    report = check_environment(
        planted.Guess(), tasks=COUNT, only=["verdict", "floor.cheats", "floor.near", "floor.suffix"]
    )
    assert not problems(report), str(report)
    results = {result.check: result for result in report.results}
    assert results["verdict.reference"].message == "8 references pass with 1"
    assert results["floor.cheats"].message == "10 cheats get the floor"
    assert results["floor.near"].status == results["floor.suffix"].status == "valid"


def test_turns_beyond_max_turns_are_a_fault_of_the_reference() -> None:
    (result,) = check_environment(
        planted.TooManyTurns(), tasks=COUNT, only=["verdict.reference"]
    ).results
    assert "has 2 turns, and max_turns is 1" in result.message


def test_turns_are_one_text_that_can_be_changed() -> None:
    text = join_turns(["first", "the answer is 7"])
    assert split_turns(text.replace("7", "8")) == ("first", "the answer is 8")
    assert split_turns(join_turns("one turn")) == ("one turn",)


# Faults, and honest twins

HANGING = {
    planted.Blocks,
    planted.BlocksTrusted,
    planted.Exits,
}
"""What only a process of its own ends in time; the others are asked in this process, which is faster."""
OF_DIALOGUES = [check for check in catalogue() if check.startswith(("reply.", "tool."))]


@cache
def results(env: type[Environment[Any]], *only: str) -> dict[str, CheckResult]:
    isolation: Isolation = "auto" if env in HANGING else "inline"
    report = check_environment(env(), tasks=COUNT, only=only, isolation=isolation)
    return {result.check: result for result in report.results}


SOUND_TWIN: dict[str, type[Environment[Any]]] = {
    **dict.fromkeys(OF_DIALOGUES, planted.Guess),
    **{check: planted.Greps for check in OF_DIALOGUES if check.startswith("tool.")},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("faulty", "check"), planted.FAULTS.items())
def test_a_fault_of_a_dialogue_is_found_by_its_check_where_the_sound_twin_is_valid(
    faulty: type[Environment[Any]], check: str
) -> None:
    found = results(faulty, check)[check]
    assert found.status == "invalid", found.message
    assert found.seconds < 10
    sound = results(SOUND_TWIN[check], "reply", "tool")[check]
    assert sound.status == "valid", sound.message


@pytest.mark.sampled(2)
@pytest.mark.parametrize("env", planted.SOUND)
def test_honest_dialogues_have_no_fault(env: type[Environment[Any]]) -> None:
    found = results(env, "verdict", "reply", "tool", "floor.cheats")
    assert not [result for result in found.values() if result.status == "invalid"]


@pytest.mark.parametrize(
    "env",
    [
        planted.Guess,
        pytest.param(planted.Doors, marks=pytest.mark.heavy),
        pytest.param(planted.Greps, marks=pytest.mark.heavy),
    ],
)
def test_a_whole_check_of_a_dialogue_has_no_fault_and_is_quick(env: type[Environment[Any]]) -> None:
    started = time.monotonic()
    report = check_environment(env())
    assert not problems(report), str(report)
    assert time.monotonic() - started < 40  # 20 s on a machine that does nothing else


def test_replies_that_ask_a_judge_are_played() -> None:
    judge = FakeJudge(lambda request: len(request.candidate) / 100)
    env = planted.Critic(None, Services(judges={"default": judge}))
    report = check_environment(env, tasks=COUNT, only=["verdict", "reply"])
    assert not problems(report), str(report)
    assert {result.check for result in report.results if result.status == "valid"} >= {
        "reply.form",
        "reply.secret",
        "reply.echo",
        "reply.hostile",
    }


@pytest.mark.slow
def test_a_hanging_reply_is_found_within_seconds_and_not_asked_by_every_check() -> None:
    started = time.monotonic()
    report = check_environment(planted.BlocksTrusted(), only=["reply", "tool", "verdict"], tasks=4)
    assert time.monotonic() - started < 20
    found = {result.check: result for result in report.results}
    assert found["reply.form"].status == "invalid"
    assert "exceeded its deadline of 2 s" in found["reply.form"].message
    assert {found[check].status for check in OF_DIALOGUES if check != "reply.form"} == {
        "not_checked"
    }


def test_environments_without_dialogues_pay_nothing() -> None:
    found = results(planted.Sum, "reply", "tool")
    assert {result.status for result in found.values()} == {"not_checked"}
    assert found["reply.form"].message == "its dialogues have a single turn (max_turns = 1)"
    assert found["tool.form"].message == "it has no tools"
    assert sum(result.seconds for result in found.values()) < 0.1


def test_arguments_are_made_for_schemas_of_many_kinds() -> None:
    (tool,) = [tool for tool in described_tools(planted.Typed()) if tool.name == "further"]
    for arguments in tool.samples():
        assert planted.Typed.further(**arguments)
    calls = tool.calls_with_text("hello")
    assert len(calls) == 1, calls
    assert "hello" in calls[0]


@pytest.mark.slow
def test_the_example_of_a_dialogue_has_no_fault() -> None:
    example = Path(__file__).parents[2] / "examples" / "04_dialogue.py"
    result = grpo("env", "check", f"{example}:Guess")
    assert result.exit_code == 0, result.output
    assert "0 faults, 0 warnings" in result.output
