"""Thoughts that a server sends apart, and answers without a text: kept, judged as they are, and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.bridges.endpoint.chat import Turn, read_turn
from grpo_core.cli.app import app
from grpo_core.runs.lines import read_lines

from ..plugins.endpoint import Endpoint
from .evaluated import FRAIL, GUESS, HERE, chat, evaluate, invoke, passed

pytestmark = pytest.mark.usefixtures("quick")
PONDERED = f"{HERE / 'chat_envs.py'}:Pondered"


def turn(
    message: dict[str, Any],
    finish: str = "stop",
    usage: dict[str, Any] | None = None,
    *,
    has_tools: bool = False,
) -> Turn:
    value = {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}
    return read_turn(value, has_tools=has_tools)


def silent(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **fields}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reasoning_content": "so 3"}, "reasoning_content"),
        ({"reasoning": "so 3"}, "reasoning"),
        ({"reasoning_content": "so 3", "reasoning": "so 3"}, "reasoning_content"),
        ({"reasoning": "so 3", "reasoning_details": [{"text": "so 3"}]}, "reasoning"),
        (
            {"reasoning_details": [{"type": "reasoning.text", "text": "so "}, {"summary": "3"}]},
            "reasoning_details",
        ),
        ({"thinking": "so 3"}, "thinking"),
        ({"thinking_blocks": [{"type": "thinking", "thinking": "so 3"}]}, "thinking_blocks"),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "so 3"}]}]},
            "content",
        ),
        ({"content": [{"type": "reasoning", "text": "so 3"}]}, "content"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_thoughts_are_read_from_every_field_that_servers_use(
    fields: dict[str, Any], field: str
) -> None:
    read = turn(silent(**fields))
    assert (read.text, read.thoughts, read.thoughts_in, read.no_text) == (
        "", "so 3", field, "thoughts",
    )  # fmt: skip
    content = fields.get("content", [])
    right = turn(silent(**{**fields, "content": [*content, {"type": "text", "text": "3"}]}))
    assert (right.text, right.thoughts, right.no_text) == ("3", "so 3", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": None},
        {"reasoning_content": ""},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "Q=="}]},
        {"reasoning": {"effort": "low"}},
        {"reasoning": 7, "thinking": [[[[[["too deep"]]]]]]},
    ],
)
def test_what_holds_no_thoughts_is_read_as_none(fields: dict[str, Any]) -> None:
    read = turn(silent(content="3", **fields))
    assert (read.text, read.thoughts, read.thoughts_in) == ("3", "", "")


@pytest.mark.parametrize(
    ("message", "finish", "usage", "why"),
    [
        (silent(), "stop", None, "empty"),
        (silent(content=" \n"), "stop", None, "empty"),
        (silent(), "length", None, "cut"),
        (silent(reasoning="hm"), "length", None, "thoughts_cut"),
        (silent(), "length", {"completion_tokens_details": {"reasoning_tokens": 9}}, "thoughts_cut"),
        (silent(refusal="I cannot."), "stop", None, "refusal"),
        (silent(tool_calls=[{"function": {"name": "look"}}]), "tool_calls", None, "calls"),
        (silent(), "content_filter", None, None),
        (silent(content="3", reasoning="hm"), "length", None, None),
        (silent(content="3", refusal="I cannot."), "stop", None, None),
    ],
)  # fmt: skip
def test_the_reason_is_known_for_which_an_answer_has_no_text(
    message: dict[str, Any], finish: str, usage: Any, why: str | None
) -> None:
    assert turn(message, finish, usage).no_text == why


def test_calls_of_tools_are_a_turn_where_there_are_tools() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert turn(silent(tool_calls=[call]), "tool_calls", has_tools=True).no_text is None


@pytest.mark.parametrize(
    ("counts", "written"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}, 20),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 25}, 20),  # thoughts apart
        ({"prompt_tokens": 5, "completion_tokens": 20}, 20),
        ({"completion_tokens": 20, "total_tokens": 25}, 20),
        ({"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 3}, 20),
    ],
)
def test_tokens_of_thoughts_count_as_written_however_a_server_counts_them(
    counts: dict[str, int], written: int
) -> None:
    read = turn(silent(content="3"), usage=counts)
    assert (read.tokens, read.usage.completion_tokens) == (written, written)


def test_an_evaluation_whose_answers_are_all_thoughts_says_so_and_keeps_them(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """What is judged is the content, also by a worker; the field that holds the rest is named."""
    endpoint.reply = lambda asked: (200, chat(silent(reasoning_content="so 3")))
    done = invoke(PONDERED, endpoint.url, tmp_path / "out")
    assert done.exit_code == 0, done.output
    said = "8 of 8 answers have no text; the server puts it into reasoning_content"
    assert said in done.stderr
    assert "reasoning parser" in done.stderr
    found = evaluate(PONDERED, endpoint.url, tmp_path / "out")  # read from the folder
    assert len(endpoint.asked) == 8
    assert found["results"][0]["no_text"] == {"thoughts": 8}
    assert found["remarks"][0].startswith(said)
    assert passed(found) == 0.0
    for line in read_lines(tmp_path / "out" / "attempts.jsonl"):
        assert line["messages"] == [{"role": "assistant", "content": "", "thoughts": "so 3"}]
        assert line["verdict"]["answer"] == "so 3"
        assert line["thoughts_in"] == "reasoning_content"


def test_the_table_counts_answers_without_text(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda asked: (200, chat(silent(), finish="length"))
    words = ["--env", FRAIL, "--endpoint", endpoint.url, "--model-name", "any", "--tasks", "4"]
    done = CliRunner().invoke(app, ["eval", *words, "--samples", "2", "--out", str(tmp_path / "o")])
    assert done.exit_code == 0, done.output
    (row,) = [line for line in done.stdout.splitlines() if "answers without text" in line]
    assert row.split("│")[2].strip() == "8"
    assert 'they were cut off before it (finish_reason "length"). Raise --max-new-tokens' in (
        done.stderr
    )


def test_each_cause_of_empty_answers_has_a_sentence(endpoint: Endpoint, tmp_path: Path) -> None:
    answers = {
        "0": chat(silent(reasoning="hm"), finish="length"),
        "1": chat(silent(refusal="I cannot.")),
        "2": chat(silent(tool_calls=[{"function": {"name": "look"}}]), finish="tool_calls"),
        "3": chat(silent()),
    }
    endpoint.reply = lambda asked: (200, answers[asked["messages"][0]["content"].strip("Say .")])
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out")
    assert found["results"][0]["no_text"] == {
        "thoughts_cut": 2, "refusal": 2, "calls": 2, "empty": 2,
    }  # fmt: skip
    said = "\n".join(found["remarks"])
    for words in (
        "2 of 8 answers have no text; their thoughts took all tokens",
        "2 of 8 answers are refusals",
        "2 of 8 answers have no text but calls of tools, which the environment does not offer",
        "2 of 8 answers are empty, and the server says that the model ended them itself",
    ):
        assert words in said
    assert (passed(found), found["results"][0]["unscored"]) == (0.0, 0)
    refusals = [
        line["messages"][0]["content"]
        for line in read_lines(tmp_path / "out" / "attempts.jsonl")
        if "refusal" in line.get("no_text", {})
    ]
    assert refusals == ["I cannot."] * 2


def test_thoughts_of_each_turn_are_kept_and_not_sent_back(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.reply = lambda asked: (
        200, chat(silent(content="0", reasoning=f"after {len(asked['messages'])}")),
    )  # fmt: skip
    found = evaluate(GUESS, endpoint.url, tmp_path / "out", "--tasks", 1, "--samples", 1)
    assert found["remarks"] == []
    (line,) = read_lines(tmp_path / "out" / "attempts.jsonl")
    mine = [message for message in line["messages"] if message["role"] == "assistant"]
    sizes = [len(asked["messages"]) for asked in endpoint.asked]
    assert len(sizes) > 1
    assert [message["thoughts"] for message in mine] == [f"after {size}" for size in sizes]
    assert all(
        message.keys() <= {"role", "content"}
        for asked in endpoint.asked
        for message in asked["messages"]
    )


def test_thoughts_before_the_turns_of_an_agent_are_kept(endpoint: Endpoint, tmp_path: Path) -> None:
    """The agent's client sends back what was said without them."""

    def reply(asked: dict[str, Any]) -> Any:
        number = len(asked["messages"]) // 2
        words = ("wrong", "right", "end")[number]
        return 200, chat(silent(content=words, reasoning_content=f"thought {number}"))

    endpoint.reply = reply
    agent = f"{HERE.parent / 'core' / 'agent_envs.py'}:Asking"
    evaluate(agent, endpoint.url, tmp_path / "out", "--tasks", 1, "--samples", 1)
    (line,) = read_lines(tmp_path / "out" / "attempts.jsonl")
    assert [message.get("thoughts") for message in line["messages"]] == [
        "thought 0", None, "thought 1", None, "thought 2",
    ]  # fmt: skip


def test_a_folder_of_an_older_version_goes_on(endpoint: Endpoint, tmp_path: Path) -> None:
    """Its lines say nothing of thoughts."""
    endpoint.reply = lambda asked: (200, chat(silent(content="3")))
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out")
    for line in read_lines(tmp_path / "out" / "attempts.jsonl"):
        assert line.keys().isdisjoint({"no_text", "thoughts_in"})
        assert line["messages"] == [{"role": "assistant", "content": "3"}]
    assert found["remarks"] == []
    assert evaluate(FRAIL, endpoint.url, tmp_path / "out")["results"] == found["results"]
    assert len(endpoint.asked) == 8
