"""`grpo eval --endpoint` names the tasks whose prompts a server refuses for their length, and gives both pass rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..plugins.endpoint import Endpoint
from .evaluated import FRAIL, GUESS, chat, evaluate, invoke, passed, says

pytestmark = pytest.mark.usefixtures("quick")


def too_long(asked: dict[str, Any]) -> Any:
    """Refuse the task with the index 2, and answer the others."""
    index = asked["messages"][0]["content"].strip("Say .")
    if index == "2":
        return 400, {"error": {"message": "This model's maximum context length is 8 tokens"}}
    return 200, chat(says("wrong" if index == "1" else index))


def test_a_prompt_that_is_refused_each_time_is_named_and_both_rates_are_given(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.reply = too_long
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out")
    (result,) = found["results"]
    assert passed(found) == 0.5
    assert result["statistics"]["pass rate of tasks asked"]["value"] == pytest.approx(2 / 3)
    assert [(task["split"], task["index"]) for task in result["unasked"]] == [("eval", 2)]
    assert result["refused"] == {"context": 2}
    assert (result["tasks"], result["attempts"]) == (4, 8)
    again = evaluate(FRAIL, endpoint.url, tmp_path / "out")
    assert again["results"] == found["results"]


def test_a_dialogue_that_is_refused_later_has_been_asked(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    def reply(asked: dict[str, Any]) -> Any:
        if len(asked["messages"]) > 7:
            return 400, {"error": {"message": "the prompt exceeds the context size"}}
        return 200, chat(says("0"))

    endpoint.reply = reply
    found = evaluate(GUESS, endpoint.url, tmp_path / "out", "--tasks", 1, "--samples", 1)
    assert found["results"][0]["refused"] == {"context": 1}
    assert "unasked" not in found["results"][0]


def test_where_all_prompts_fit_nothing_is_said_of_them(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda asked: (200, chat(says("0")))
    done = invoke(FRAIL, endpoint.url, tmp_path / "out")
    assert done.exit_code == 0
    assert "asked" not in done.stdout
