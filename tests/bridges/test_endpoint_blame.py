"""Who is to blame for a failed request: network, server and machine make errors; policy and row are judged."""

import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from ..plugins.endpoint import Reply, broken_off, choice, closed, failed
from .evaluated import FRAIL, Evaluated, index_of, passed

pytestmark = pytest.mark.usefixtures("quick")
ANY_RATE = ("--set", "verify.max_error_rate=1")
TOO_LONG = failed(400, "This model's maximum context length is 8 tokens")


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(1.0)
    closed(handler)


FAULTS: dict[str, Reply] = {
    "429 with Retry-After": (429, b"", {"Retry-After": "0.02"}),
    "429": failed(429, "busy"),
    "408": (408, b""),
    "500": (500, b"broken"),
    "500 that names the text": (500, b"content filter crashed"),
    "timeout": hang,
    "connection closed": closed,
    "body cut off": broken_off,
    "body that is not JSON": (200, b"<html>"),
    "body without a choice": (200, {"choices": []}),
    "an answer that was given up": choice("2", "error"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_network_and_server_fail_at_is_repeated_and_then_an_error(
    fault: str, endpoint: Evaluated
) -> None:
    """No failure is a reward, however often it happens; one that passes leaves no trace."""
    lasts = True

    def reply(asked: dict[str, Any]) -> Any:
        tries = sum(before["seed"] == asked["seed"] for before in endpoint.asked)
        fails = index_of(asked) == "2" and (lasts or tries == 1)
        return FAULTS[fault] if fails else index_of(asked)

    endpoint.reply = reply
    more = ("--retries", 1, "--timeout", 0.4 if fault == "timeout" else 20, *ANY_RATE)
    found = endpoint.evaluate(FRAIL, *more)
    assert len(endpoint.asked) == 6 + 2 * 2
    assert (passed(found), found["results"][0]["unscored"]) == (1.0, 2)
    assert found["results"][0]["refused"] == {}
    errors = [line for line in endpoint.lines() if "error" in line]
    assert {(line["verdict"]["total"], line["key"]["index"]) for line in errors} == {(None, 2)}
    assert all("the endpoint failed (2 tries)" in line["error"] for line in errors)
    lasts = False
    endpoint.asked.clear()
    again = endpoint.evaluate(FRAIL, *more)
    assert (passed(again), again["results"][0]["unscored"]) == (1.0, 0)
    assert (again["usage"]["retries"], again["errors"]) == (2, {})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (TOO_LONG, "context"),
        (failed(413, "Payload too large"), "context"),
        (failed(400, "The response was filtered due to our content management policy"), "filter"),
        (failed(422, "the prompt is too long"), "context"),
        (failed(400, "blocked (content_policy_violation)"), "filter"),
        (choice(None, "content_filter"), "filter"),
    ],
    ids=["context", "size", "filtered", "too long", "blocked", "an answer that a filter cut"],
)
def test_what_the_server_refuses_of_a_text_is_judged_and_counted_apart(
    refusal: Reply, kind: str, endpoint: Evaluated
) -> None:
    endpoint.reply = lambda asked: refusal if index_of(asked) == "2" else index_of(asked)
    found = endpoint.evaluate(FRAIL)
    (result,) = found["results"]
    assert (result["refused"], result["unscored"], passed(found)) == ({kind: 2}, 0, 0.75)
    assert result["no_text"] == {}


def test_a_prompt_that_is_refused_each_time_is_named_and_both_rates_are_given(
    endpoint: Evaluated,
) -> None:
    said = {"1": "wrong", "2": TOO_LONG}
    endpoint.reply = lambda asked: said.get(index_of(asked), index_of(asked))
    found = endpoint.evaluate(FRAIL)
    (result,) = found["results"]
    assert passed(found) == 0.5
    assert result["statistics"]["pass rate of tasks asked"]["value"] == pytest.approx(2 / 3)
    assert [(task["split"], task["index"]) for task in result["unasked"]] == [("eval", 2)]
    assert result["refused"] == {"context": 2}
    assert (result["tasks"], result["attempts"]) == (4, 8)
    again = endpoint.evaluate(FRAIL)
    assert again["results"] == found["results"]
    endpoint.reply = lambda asked: "0"
    assert "asked" not in endpoint.invoke(FRAIL, out="other").stdout
