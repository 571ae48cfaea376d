"""`Message.thoughts`: they travel to workers, stay in logs, are shown, and are missing in older logs."""

from __future__ import annotations

import json

import pytest

from grpo_core import Group, Message, Reward, Rollout, Task, TaskKey, ToolCall, Verdict
from grpo_core.calls.wire import decode, encode
from grpo_core.report.inspect_log import samples_of
from grpo_core.report.rescoring import saved_rollout
from grpo_core.report.terminal.texts import group_text
from grpo_core.runs.attempts import Fields, group_line, rollout_lines
from grpo_core.verify.cache import verdict_key
from grpo_core.verify.checks import BrokenContractError, check_reply

CALL = ToolCall("add", {"a": 1}, "id-1")
MESSAGES = (
    Message("assistant", "", (CALL,), "I should add."),
    Message("tool", "3"),
    Message("assistant", "3", thoughts="It is 3."),
    Message("assistant", "", ()),
)
TASK = Task(TaskKey("sums", "train", 5), (Message("user", "1 + 2?"),), None)


def test_messages_cross_a_pipe_with_calls_and_thoughts() -> None:
    sent = json.loads(json.dumps([encode(MESSAGES), encode(Rollout(MESSAGES))]))
    assert decode(sent[0]) == MESSAGES
    assert decode(sent[1]).messages == MESSAGES


def test_messages_without_thoughts_are_written_as_ever() -> None:
    """So the digests of prompts and the keys of caches stay."""
    assert encode((Message("user", "hi"), MESSAGES[3])) == {
        "messages": [["user", "hi"], ["assistant", "", []]]
    }
    assert Message("user", "hi").to_json() == {"role": "user", "content": "hi"}


def test_a_log_keeps_thoughts_and_one_without_them_still_reads() -> None:
    group = Group(TASK, [Rollout(MESSAGES)], [Verdict({"exact": Reward(1.0)})])
    (line,) = json.loads(json.dumps(list(rollout_lines(group))))
    assert line["messages"][2] == {"role": "assistant", "content": "3", "thoughts": "It is 3."}
    assert saved_rollout(line) == Rollout(MESSAGES)
    for message in line["messages"]:
        message.pop("thoughts", None)
    older = saved_rollout(line)
    assert older is not None
    assert [message.thoughts for message in older.messages] == [""] * 4
    assert older.text == Rollout(MESSAGES).text


def test_thoughts_are_no_part_of_the_text_that_is_judged() -> None:
    assert Rollout(MESSAGES[:3]).text == "3"


def test_a_verdict_of_other_thoughts_is_not_taken_from_the_cache() -> None:
    """A verifier may read them."""
    plain, thought = (Rollout((Message("assistant", "3", thoughts=text),)) for text in ("", "hm"))
    assert verdict_key("f", TASK, plain) != verdict_key("f", TASK, thought)


def test_thoughts_are_shown_before_what_was_said_after_them() -> None:
    group = Group(TASK, [Rollout(MESSAGES[2:3])], [Verdict({"exact": Reward(1.0)})])
    (line,) = rollout_lines(group)
    shown = group_text(
        {**group_line(group, Fields()), "step": 1, "split": "train", "number": 0}
        | {"rollouts": [{**line, "advantage": 0.0}]},
        None,
    )
    assert "[thoughts]\nIt is 3.\n[end of thoughts]\n3" in shown


def test_a_log_of_inspect_has_thoughts_as_reasoning() -> None:
    group = Group(TASK, [Rollout(MESSAGES[2:3])], [Verdict({"exact": Reward(1.0)})])
    (line,) = rollout_lines(group)
    data = {**group_line(group, Fields()), "step": 1, "split": "train", "number": 0}
    (sample,) = samples_of({**data, "rollouts": [{**line, "advantage": 0.0}]}, "m")
    assert sample["messages"][-1]["content"] == [
        {"type": "reasoning", "reasoning": "It is 3."},
        {"type": "text", "text": "3"},
    ]
    assert sample["output"]["completion"] == "3"


def test_a_reply_whose_thoughts_are_no_text_is_refused() -> None:
    with pytest.raises(
        BrokenContractError, match="a message whose thoughts is a int; it must be a str"
    ):
        check_reply([Message("user", "hi", None, 7)])  # type: ignore[arg-type]
