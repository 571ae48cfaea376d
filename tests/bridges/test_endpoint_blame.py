"""Who is to blame for a failed request: network, server and machine make errors; policy and row are judged."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from grpo_core.runs.lines import read_lines

from ..plugins.endpoint import Endpoint
from .evaluated import FRAIL, chat, evaluate, index_of, invoke, passed, right, says

pytestmark = pytest.mark.usefixtures("quick")
ANY_RATE = ("--set", "verify.max_error_rate=1")


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def close(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()


def cut(handler: BaseHTTPRequestHandler) -> None:
    respond(handler, 200, b'{"choices": [{"mess', Content_Length="500")
    close(handler)


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(1.0)
    close(handler)


def gave_up(handler: BaseHTTPRequestHandler) -> None:
    respond(handler, 200, json.dumps(chat(says("2"), finish="error")).encode())


FAULTS = {
    "429 with Retry-After": lambda handler: respond(handler, 429, b"", Retry_After="0.02"),
    "429": lambda handler: respond(handler, 429, b'{"error": {"message": "busy"}}'),
    "408": lambda handler: respond(handler, 408, b""),
    "500": lambda handler: respond(handler, 500, b"broken"),
    "500 that names the text": lambda handler: respond(handler, 500, b"content filter crashed"),
    "timeout": hang,
    "connection closed": close,
    "body cut off": cut,
    "body that is not JSON": lambda handler: respond(handler, 200, b"<html>"),
    "body without a choice": lambda handler: respond(handler, 200, b'{"choices": []}'),
    "an answer that was given up": gave_up,
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_network_and_server_fail_at_is_repeated_and_then_an_error(
    fault: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    """No failure is a reward, however often it happens; one that passes leaves no trace."""
    lasts = True

    def reply(asked: dict[str, Any]) -> Any:
        tries = sum(before["seed"] == asked["seed"] for before in endpoint.asked)
        fails = index_of(asked) == "2" and (lasts or tries == 1)
        return FAULTS[fault] if fails else right(asked)

    endpoint.reply = reply
    more = ("--retries", 1, "--timeout", 0.4, *ANY_RATE)
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out", *more)
    assert len(endpoint.asked) == 6 + 2 * 2
    assert (passed(found), found["results"][0]["unscored"]) == (1.0, 2)
    assert found["results"][0]["refused"] == {}
    errors = [line for line in read_lines(tmp_path / "out" / "attempts.jsonl") if "error" in line]
    assert {(line["verdict"]["total"], line["key"]["index"]) for line in errors} == {(None, 2)}
    assert all("the endpoint failed (2 tries)" in line["error"] for line in errors)
    lasts = False
    endpoint.asked.clear()
    again = evaluate(FRAIL, endpoint.url, tmp_path / "out", *more)
    assert (passed(again), again["results"][0]["unscored"]) == (1.0, 0)
    assert (again["usage"]["retries"], again["errors"]) == (2, {})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "This model's maximum context length is 8 tokens", "context"),
        (413, "Payload too large", "context"),
        (400, "The response was filtered due to our content management policy", "filter"),
        (422, "the prompt is too long", "context"),
        (400, "blocked (content_policy_violation)", "filter"),
    ],
)
def test_what_the_server_refuses_of_a_text_is_judged_and_counted_apart(
    status: int, message: str, kind: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    refusal = status, {"error": {"message": message}}
    endpoint.reply = lambda asked: refusal if index_of(asked) == "2" else right(asked)
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out")
    (result,) = found["results"]
    assert (result["refused"], result["unscored"], passed(found)) == ({kind: 2}, 0, 0.75)


def test_an_answer_that_a_filter_cut_is_judged_and_counted_apart(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    def reply(asked: dict[str, Any]) -> Any:
        blocked = chat({"role": "assistant", "content": None}, finish="content_filter")
        return (200, blocked) if index_of(asked) == "2" else right(asked)

    endpoint.reply = reply
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out")
    (result,) = found["results"]
    assert (result["refused"], result["no_text"], passed(found)) == ({"filter": 2}, {}, 0.75)


def too_long(asked: dict[str, Any]) -> Any:
    """Refuse the task with the index 2, and answer the others."""
    if index_of(asked) == "2":
        return 400, {"error": {"message": "This model's maximum context length is 8 tokens"}}
    return 200, chat(says("wrong" if index_of(asked) == "1" else index_of(asked)))


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
    endpoint.reply = lambda asked: (200, chat(says("0")))
    assert "asked" not in invoke(FRAIL, endpoint.url, tmp_path / "other").stdout
