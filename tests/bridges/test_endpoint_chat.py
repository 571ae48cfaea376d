"""Dialogues as requests of the OpenAI API, and its answers as turns, whatever a server writes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core import ConfigError, Message
from grpo_core.calls.api_client import CallError
from grpo_core.protocol.tool_calls import MAX_CALLS
from grpo_core.protocol.types import ToolCall
from grpo_evals.chat import ChatTurn, Dialogue, read_body, read_turn

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def written(name: str, arguments: Any, call_id: Any = "a") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def answer(message: Any, finish: Any = "stop", usage: Any = None) -> Any:
    choice = {"message": message, "finish_reason": finish}
    return read_body(json.dumps({"choices": [choice], "usage": usage}).encode())


def turn(
    message: Any, finish: Any = "stop", usage: Any = None, *, has_tools: bool = True
) -> ChatTurn:
    return read_turn(answer(message, finish, usage), has_tools=has_tools)


def test_a_turn_has_text_calls_and_what_it_cost() -> None:
    calls = [written("add", '{"a": 2}'), written("add", {"a": 3}, "b"), written("stop", "")]
    read = turn(
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "hm"},
        "tool_calls",
        {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {}},
    )
    assert (read.text, read.finish) == ("", "stop")
    assert read.tool_calls == (
        ToolCall("add", {"a": 2}, "a"),
        ToolCall("add", {"a": 3}, "b"),
        ToolCall("stop", {}, "a"),
    )
    assert (read.usage.prompt_tokens, read.usage.completion_tokens, read.tokens) == (7, 2, 2)
    assert read.message == {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize(
    ("finish", "expected", "refused"),
    [
        ("length", "length", None),
        ("content_filter", "length", "filter"),
        ("stop", "stop", None),
        (None, "stop", None),
        ("eos", "stop", None),
    ],
)
def test_how_a_turn_ended(finish: Any, expected: str, refused: Any) -> None:
    read = turn({"content": "x"}, finish)
    assert (read.text, read.finish, read.refused) == ("x", expected, refused)


def test_a_call_that_cannot_be_read_says_why_and_is_sent_back_as_it_was() -> None:
    calls = [written("add", "{'a': 2}"), written("add", "[2]"), written("add", '{"a": NaN}'), 7]
    read = turn({"content": "", "tool_calls": calls})
    assert read.tool_calls is not None
    assert all(call.error and not call.name for call in read.tool_calls)
    dialogue = Dialogue((Message("user", "2 + 2?"),))
    dialogue.add_turn(read)
    dialogue.add([Message("tool", "error: no") for _ in calls])
    _, mine, *results = dialogue.fields()["messages"]
    assert mine["tool_calls"][:3] == calls[:3]
    assert [result["tool_call_id"] for result in results] == ["a", "a", "a", "call_4"]


def test_more_calls_than_are_answered_are_left_out() -> None:
    read = turn({"content": "", "tool_calls": [written("add", "{}")] * 50})
    assert read.tool_calls is not None
    assert len(read.tool_calls) == len(read.message["tool_calls"]) == MAX_CALLS


def test_calls_without_tools_are_no_calls() -> None:
    read = turn({"content": "x", "tool_calls": [written("add", "{}")]}, has_tools=False)
    assert (read.tool_calls, "tool_calls" in read.message) == (None, False)


def test_each_call_has_a_result_as_the_api_wants_it() -> None:
    """Also calls that the environment answers with words of its own, and results of calls in the text."""
    dialogue = Dialogue((Message("user", "Go."),))
    dialogue.add_turn(
        turn({"content": "", "tool_calls": [written("a", "{}", "1"), written("b", "{}", "2")]})
    )
    dialogue.add([Message("tool", "one"), Message("user", "And now?")])
    dialogue.add_turn(turn({"content": '<tool_call>{"name": "a"}</tool_call>'}))
    dialogue.add([Message("tool", "three")])
    messages = dialogue.fields()["messages"]
    assert [(m["role"], m["content"], m.get("tool_call_id")) for m in messages] == [
        ("user", "Go.", None),
        ("assistant", "", None),
        ("tool", "one", "1"),
        ("tool", "", "2"),
        ("user", "And now?", None),
        ("assistant", '<tool_call>{"name": "a"}</tool_call>', None),
        ("tool", "three", "call"),
    ]


def test_examples_in_a_prompt_may_have_calls() -> None:
    calls = (ToolCall("add", {"a": 2}), ToolCall("add", {"a": 3}, "mine"))
    prompt = (Message("user", "2?"), Message("assistant", "", calls), Message("tool", "4"))
    _, example, *results = Dialogue(prompt).fields()["messages"]
    assert example["tool_calls"] == [
        written("add", '{"a": 2}', "call_1"),
        written("add", '{"a": 3}', "mine"),
    ]
    assert [(r["tool_call_id"], r["content"]) for r in results] == [("call_1", "4"), ("mine", "")]


def test_raw_text_grows_by_what_is_said() -> None:
    dialogue = Dialogue("Once upon a")
    value = {"choices": [{"text": " time", "finish_reason": "stop"}]}
    dialogue.add_turn(read_turn(value, has_tools=False))
    dialogue.add([Message("user", ". And then")])
    assert dialogue.fields() == {"prompt": "Once upon a time. And then"}


def test_a_prompt_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="surrogate"):
        Dialogue((Message("user", "a\ud800"),))


def test_a_text_of_the_server_can_always_be_sent_back() -> None:
    read = turn({"content": "a\ud800b", "tool_calls": [written("x\udfff", '{"a": "\ud801"}')]})
    assert read.text == "a?b"
    json.dumps(read.message, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"null", b'{"choices": []}', b'{"choices": [{}]}', b"\xff", b"[" * 10**6),
        *(b'{"choices": [{"message": {"content": NaN}}]}', b'{"error": {"message": "x"}}'),
        *(b'{"choices": [{"message": "x"}]}', b'{"choices": [{"text": 3}]}', b"9" * 10**6),
        b'{"choices": [{"message": {"content": "x"}, "finish_reason": "abort"}]}',
    ],
    ids=range(13),
)  # fmt: skip
def test_an_answer_that_holds_no_turn_is_a_failed_call(body: bytes) -> None:
    with pytest.raises(CallError):
        read_turn(read_body(body), has_tools=True)


@pytest.mark.slow
@settings(deadline=None)  # a busy machine is no fault
@given(message=JSON, finish=JSON, usage=JSON, calls=JSON, has_tools=st.booleans())
def test_no_answer_is_an_exception_of_another_kind(
    message: Any, finish: Any, usage: Any, calls: Any, has_tools: bool
) -> None:
    if isinstance(message, dict):
        message = {"content": "x", **message, "tool_calls": calls}
    try:
        read = turn(message, finish, usage, has_tools=has_tools)
    except CallError:
        return
    dialogue = Dialogue((Message("user", "?"),))
    dialogue.add_turn(read)
    dialogue.add([Message("tool", "x")])
    json.dumps(dialogue.fields(), ensure_ascii=False, allow_nan=False).encode()
    assert isinstance(read.text, str)
    assert read.tokens >= 0
