"""The kit plays dialogues, tools and episodes, and finds what is planted in them."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import planted_dialogues as planted
import pytest
from bases import PlainSum

from grpo_core import Environment, GrpoError, Message, Rollout, Services, Task, TaskKey
from grpo_core.config.settings import Isolation, VerifyConfig
from grpo_core.testing import FakeJudge, check_environment
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.conversation import StatelessConversations
from grpo_core.verify.episodes.isolated import IsolatedReplies
from grpo_core.verify.episodes.playing import play
from grpo_core.verify.examining import CheckResult
from grpo_kit.dialogues.scripts import join_turns, split_turns
from grpo_kit.dialogues.tool_calls import described_tools
from grpo_kit.run import catalogue

from .distributions import grpo
from .kit_runs import checked, problems, result_of, results

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
        (error,) = set(asyncio.run(errors(isolation)))
        assert error.startswith("reply() exceeded its deadline of 0.5 s")
        assert time.monotonic() - started < 20  # a reply blocks for 30 s


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
    report = checked(planted.Guess(), "verdict", "floor.cheats", "floor.near", "floor.suffix")
    assert not problems(report), str(report)
    found = {result.check: result for result in report.results}
    assert found["verdict.reference"].message == "8 references pass with 1"
    assert found["floor.cheats"].message == "10 cheats get the floor"
    assert found["floor.near"].status == found["floor.suffix"].status == "valid"


def test_turns_beyond_max_turns_are_a_fault_of_the_reference() -> None:
    message = result_of(planted.TooManyTurns(), "verdict.reference").message
    assert "has 2 turns, and max_turns is 1" in message


def test_turns_are_one_text_that_can_be_changed() -> None:
    text = join_turns(["first", "the answer is 7"])
    assert split_turns(text.replace("7", "8")) == ("first", "the answer is 8")
    assert split_turns(join_turns("one turn")) == ("one turn",)


# Faults, and honest twins

HANGING = {planted.Blocks, planted.Exits}
"""What only a process of its own ends in time; the others are asked in this process, which is faster."""


def found_in(env: type[Environment[Any]], *only: str) -> dict[str, CheckResult]:
    return results(env, *only, isolation="auto" if env in HANGING else "inline")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("faulty", "check", "twin"), [(env, *found) for env, found in planted.FAULTS.items()]
)
def test_a_fault_is_found_by_its_check_where_the_sound_twin_is_valid(
    faulty: type[Environment[Any]], check: str, twin: type[Environment[Any]]
) -> None:
    found = found_in(faulty, check)[check]
    assert found.status == "invalid", found.message
    assert found.seconds < 10
    sound = found_in(twin, check)[check]
    assert sound.status == "valid", sound.message


@pytest.mark.slow
@pytest.mark.parametrize("env", planted.SOUND)
def test_honest_dialogues_have_no_fault(env: type[Environment[Any]]) -> None:
    found = found_in(env, "verdict", "reply", "tool", "episode", "floor.empty", "floor.cheats")
    assert not [result for result in found.values() if result.status == "invalid"]


@pytest.mark.slow
def test_an_episode_that_cannot_be_replayed_is_judged_while_it_lives() -> None:
    found = found_in(planted.NotReplayable, "verdict", "episode", "reply.echo", "floor.empty")
    for check in ("verdict.reference", "floor.empty", "episode.repeat", "episode.talk"):
        assert found[check].status == "valid", found[check].message
    for check in ("episode.replay", "episode.apart", "verdict.repeat", "verdict.process"):
        assert found[check].status == "not_checked"
        assert "does not declare replayable = True" in found[check].message


@pytest.mark.slow
@pytest.mark.parametrize("env", [planted.Guess, planted.Greps])
def test_a_whole_check_of_a_dialogue_has_no_fault_and_is_quick(env: type[Environment[Any]]) -> None:
    started = time.monotonic()
    report = check_environment(env())
    assert not problems(report), str(report)
    assert time.monotonic() - started < 40  # 20 s on a machine that does nothing else


def test_replies_that_ask_a_judge_are_played() -> None:
    judge = FakeJudge(lambda request: len(request.candidate) / 100)
    env = planted.Critic(None, Services(judges={"default": judge}))
    report = checked(env, "verdict", "reply")
    assert not problems(report), str(report)
    valid = {result.check for result in report.results if result.status == "valid"}
    assert {"reply.form", "reply.secret", "reply.echo", "reply.hostile"} <= valid


@pytest.mark.slow
def test_a_hanging_reply_is_found_within_seconds_and_not_asked_by_every_check() -> None:
    started = time.monotonic()
    report = check_environment(planted.Blocks(), only=["reply", "tool", "verdict"], tasks=4)
    assert time.monotonic() - started < 20
    found = {result.check: result for result in report.results}
    assert found["reply.form"].status == "invalid"
    assert "exceeded its deadline of 2 s" in found["reply.form"].message
    others = {check for check in catalogue() if check.startswith(("reply.", "tool."))}
    assert {found[check].status for check in others - {"reply.form"}} == {"not_checked"}


def test_environments_without_dialogues_pay_nothing() -> None:
    found = found_in(PlainSum, "reply", "tool", "episode")
    assert {
        (result.check.partition(".")[0], result.status, result.message) for result in found.values()
    } == {
        ("reply", "not_checked", "its dialogues have a single turn (max_turns = 1)"),
        ("tool", "not_checked", "it has no tools"),
        ("episode", "not_checked", "its attempts are no episodes"),
    }
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
