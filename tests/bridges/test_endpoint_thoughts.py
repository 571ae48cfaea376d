"""Thoughts that a server sends apart or in the answer, and answers without a text: kept, judged as they are, and reported."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core import Verdict
from grpo_core.cli.app import app

from ..plugins.endpoint import choice
from .evaluated import AGENT, FRAIL, GUESS, PONDERED, Evaluated, index_of, passed
from .test_endpoint_chat import turn

pytestmark = pytest.mark.usefixtures("quick")


def silent(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **fields}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reasoning_content": "so 3"}, "reasoning_content"),
        ({"reasoning": "so 3"}, "reasoning"),
        ({"reasoning_content": "so 3", "reasoning": "so 3"}, "reasoning_content"),
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
    ],
)  # fmt: skip
def test_the_reason_is_known_for_which_an_answer_has_no_text(
    message: dict[str, Any], finish: str, usage: Any, why: str | None
) -> None:
    assert turn(message, finish, usage, has_tools=False).no_text == why
    if why == "calls":
        assert turn(message, finish, usage).no_text is None


@pytest.mark.parametrize(
    ("counts", "written"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}, 20),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 25}, 20),  # thoughts apart
        ({"completion_tokens": 20, "total_tokens": 25}, 20),
        ({"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 3}, 20),
    ],
)
def test_tokens_of_thoughts_count_as_written_however_a_server_counts_them(
    counts: dict[str, int], written: int
) -> None:
    read = turn(silent(content="3"), usage=counts)
    assert (read.tokens, read.usage.completion_tokens) == (written, written)


@pytest.mark.slow
def test_an_evaluation_whose_answers_are_all_thoughts_says_so_and_keeps_them(
    endpoint: Evaluated,
) -> None:
    """What is judged is the content, also by a worker; the field that holds the rest is named."""
    endpoint.reply = lambda asked: choice(None, reasoning_content="so 3")
    done = endpoint.invoke(PONDERED)
    assert done.exit_code == 0, done.output
    said = "8 of 8 answers have no text; the server puts it into reasoning_content"
    assert said in done.stderr
    assert "reasoning parser" in done.stderr
    found = endpoint.evaluate(PONDERED)  # read from the folder
    assert len(endpoint.asked) == 8
    assert found["results"][0]["no_text"] == {"thoughts": 8}
    assert found["remarks"][0].startswith(said)
    assert passed(found) == 0.0
    for line in endpoint.lines():
        assert line["messages"] == [{"role": "assistant", "content": "", "thoughts": "so 3"}]
        assert line["verdict"]["answer"] == "so 3"
        assert line["thoughts_in"] == "reasoning_content"


def test_the_table_counts_answers_without_text(endpoint: Evaluated) -> None:
    endpoint.reply = lambda asked: choice(None, "length")
    words = endpoint.words(FRAIL, "--tasks", 4, "--samples", 2)
    done = CliRunner().invoke(app, [word for word in words if word != "--json"])
    assert done.exit_code == 0, done.output
    (row,) = [line for line in done.stdout.splitlines() if "answers without text" in line]
    assert row.split("│")[2].strip() == "8"
    assert 'they were cut off before it (finish_reason "length"). Raise --max-new-tokens' in (
        done.stderr
    )


def test_each_cause_of_empty_answers_has_a_sentence(endpoint: Evaluated) -> None:
    answers = {
        "0": choice(None, "length", reasoning="hm"),
        "1": choice(None, refusal="I cannot."),
        "2": choice(None, "tool_calls", tool_calls=[{"function": {"name": "look"}}]),
        "3": choice(None),
    }
    endpoint.reply = lambda asked: answers[index_of(asked)]
    found = endpoint.evaluate(FRAIL)
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
        for line in endpoint.lines()
        if "refusal" in line.get("no_text", {})
    ]
    assert refusals == ["I cannot."] * 2


def test_thoughts_of_each_turn_are_kept_and_not_sent_back(endpoint: Evaluated) -> None:
    endpoint.reply = lambda asked: choice("0", reasoning=f"after {len(asked['messages'])}")
    found = endpoint.evaluate(GUESS, "--tasks", 1, "--samples", 1)
    assert found["remarks"] == []
    (line,) = endpoint.lines()
    mine = [message for message in line["messages"] if message["role"] == "assistant"]
    sizes = [len(asked["messages"]) for asked in endpoint.asked]
    assert len(sizes) > 1
    assert [message["thoughts"] for message in mine] == [f"after {size}" for size in sizes]
    assert all(
        message.keys() <= {"role", "content"}
        for asked in endpoint.asked
        for message in asked["messages"]
    )


@pytest.mark.slow
def test_thoughts_that_stand_in_an_answer_are_split_off(endpoint: Evaluated) -> None:
    """As where a server runs without a reasoning parser; the verdict is of what follows them."""
    endpoint.reply = lambda asked: f"<think>\nso {index_of(asked)}\n</think>\n\n{index_of(asked)}"
    found = endpoint.evaluate(f"{PONDERED}Elsewhere")
    assert (passed(found), found["remarks"]) == (1.0, [])
    for line in endpoint.lines():
        (message,) = line["messages"]
        assert message["thoughts"] == line["verdict"]["answer"] == f"so {message['content']}"
        assert message["thought_marks"] == ["<think>\n", "\n</think>\n\n"]
    endpoint.evaluate(f"{PONDERED}Elsewhere")
    assert len(endpoint.asked) == 8


def test_a_thought_that_takes_all_tokens_is_reported(endpoint: Evaluated) -> None:
    endpoint.reply = lambda asked: choice("<think>hm", "length")
    found = endpoint.evaluate(PONDERED)
    assert found["results"][0]["no_text"] == {"thoughts_cut": 8}
    assert "their thoughts took all tokens" in found["remarks"][0]
    for line in endpoint.lines():
        note = line["verdict"]["rewards"]["reward"]["note"]
        assert note.startswith("the turn holds only thoughts, which are never closed by </think>")


def test_the_tags_are_those_of_the_setting(endpoint: Evaluated) -> None:
    endpoint.reply = lambda asked: f"[THINK]hm[/THINK]{index_of(asked)}"
    setting = ("--set", "model.thought_tags=[THINK],[/THINK]")
    assert passed(endpoint.evaluate(PONDERED, *setting, out="one")) == 1.0
    assert passed(endpoint.evaluate(PONDERED, out="two")) == 0.0
    none = ("--set", "model.thought_tags=")
    assert passed(endpoint.evaluate(PONDERED, *none, out="three")) == 0.0
    done = endpoint.invoke(PONDERED, out="one")
    assert done.exit_code != 0
    assert "thought_tags was" in f"{done.output} {done.exception}"


def test_an_agent_gets_the_thoughts_apart_and_the_server_as_it_wrote_them(
    endpoint: Evaluated,
) -> None:
    words = ("wrong", "right", "end")
    said = [f"<think>thought {place}</think>\n{word}" for place, word in enumerate(words)]
    endpoint.reply = lambda asked: said[len(asked["messages"]) // 2]
    endpoint.evaluate(AGENT, "--tasks", 1, "--samples", 1)
    (line,) = endpoint.lines()
    mine = [m for m in line["messages"] if m["role"] == "assistant"]
    assert [m["content"] for m in mine] == list(words)
    assert [m["thoughts"] for m in mine] == ["thought 0", "thought 1", "thought 2"]
    sent = [m["content"] for m in endpoint.asked[-1]["messages"] if m["role"] == "assistant"]
    assert sent == said[:2]


def test_attempts_of_an_older_version_are_split_before_they_are_judged_again(
    endpoint: Evaluated,
) -> None:
    endpoint.reply = index_of
    endpoint.evaluate(PONDERED)
    file = endpoint.out / "attempts.jsonl"
    lines = endpoint.lines()
    for line in lines:
        line["messages"][0]["content"] = f"<think>hm</think>{line['messages'][0]['content']}"
        line["verdict"] = Verdict.failed("the judge was away").to_json()
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert passed(endpoint.evaluate(PONDERED)) == 1.0
    assert len(endpoint.asked) == 8
