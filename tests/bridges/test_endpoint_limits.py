"""The bound of new tokens and the limits of an account: halved, moved to another field, or an error at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_core.runs.lines import read_lines

from ..plugins.endpoint import Endpoint
from .evaluated import FRAIL, evaluate, index_of, invoke, passed, right

pytestmark = pytest.mark.usefixtures("quick")
OLD, NEW = "max_tokens", "max_completion_tokens"
MOVED = ("--request", f"{OLD}=null", "--request", f"{NEW}=64")
ANY_RATE = ("--set", "verify.max_error_rate=1")


def refuses(field: str, message: str = "Unsupported parameter: '{0}'. Use '{1}' instead.") -> Any:
    other = NEW if field == OLD else OLD
    code = "unsupported_parameter"
    return 400, {"error": {"message": message.format(field, other), "param": field, "code": code}}


@pytest.mark.parametrize(
    ("options", "field"), [(("--max-new-tokens", 64), OLD), (MOVED, NEW)], ids=[OLD, NEW]
)
def test_a_turn_is_shortened_in_whichever_field_bounds_it(
    options: tuple[Any, ...], field: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    def reply(asked: dict[str, Any]) -> Any:
        assert asked.keys() & {OLD, NEW} == {field}
        if asked[field] > 40:
            return 400, {"error": {"message": "maximum context length is 100 tokens"}}
        return right(asked)

    endpoint.reply = reply
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out", *options)
    assert {asked[field] for asked in endpoint.asked} == {64, 32}
    assert (passed(found), found["results"][0]["refused"]) == (1.0, {})


def test_a_request_without_a_bound_is_refused_for_its_text_alone(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    def reply(asked: dict[str, Any]) -> Any:
        long = index_of(asked) == "2"
        return (400, {"error": {"message": "prompt is too long"}}) if long else right(asked)

    endpoint.reply = reply
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out", "--request", f"{OLD}=null")
    assert found["results"][0]["refused"] == {"context": 2}
    assert passed(found) == 0.75


@pytest.mark.parametrize(
    ("options", "refused"), [(("--max-new-tokens", 64), OLD), (MOVED, NEW)], ids=[OLD, NEW]
)
def test_a_server_that_wants_the_bound_in_another_field_gets_it_and_it_is_said_once(
    options: tuple[Any, ...],
    refused: str,
    endpoint: Endpoint,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    endpoint.reply = lambda asked: refuses(refused) if refused in asked else right(asked)
    more = (*options, "--concurrency", 4)
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out", *more)
    assert (passed(found), found["usage"]["retries"]) == (1.0, 0)
    bounds = [asked for asked in endpoint.asked if refused not in asked]
    assert {asked[NEW if refused == OLD else OLD] for asked in bounds} == {64}
    assert len(endpoint.asked) - len(bounds) <= 4
    (record,) = [record for record in caplog.records if "refuses the field" in record.message]
    assert f"refuses the field {refused}" in record.message


def test_a_server_that_knows_neither_field_ends_the_evaluation(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.reply = lambda asked: (
        refuses(OLD if OLD in asked else NEW, "Unknown parameter: '{0}'")
        if asked.keys() & {OLD, NEW}
        else right(asked)
    )
    done = invoke(FRAIL, endpoint.url, tmp_path / "a", "--concurrency", 1)
    assert done.exit_code == 2
    assert "Unknown parameter: 'max_completion_tokens'" in done.stderr
    assert len(endpoint.asked) <= 4
    found = evaluate(FRAIL, endpoint.url, tmp_path / "b", "--request", f"{OLD}=null")
    assert passed(found) == 1.0


def test_a_request_that_no_waiting_makes_possible_is_an_error_at_once(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    """The account's limit is neither the model's fault nor over in a minute."""

    def reply(asked: dict[str, Any]) -> Any:
        if index_of(asked) == "2":
            message = "tokens per min (TPM): Limit 1000, Requested 9000"
            return 429, {"error": {"message": message, "code": "rate_limit_exceeded"}}
        return right(asked)

    endpoint.reply = reply
    more = ("--retries", 1000, *ANY_RATE)
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out", *more)
    assert len(endpoint.asked) == 8
    assert (passed(found), found["results"][0]["unscored"]) == (1.0, 2)
    assert "lower --max-new-tokens, or raise the limit" in next(iter(found["errors"]))
    failed = [line for line in read_lines(tmp_path / "out" / "attempts.jsonl") if "error" in line]
    assert [line["verdict"]["total"] for line in failed] == [None, None]


def test_a_rate_limit_that_passes_is_waited_for(endpoint: Endpoint, tmp_path: Path) -> None:
    message = "Rate limit reached on tokens per min (TPM): Limit 9000, Used 8990, Requested 385"

    def reply(asked: dict[str, Any]) -> Any:
        busy = len(endpoint.asked) <= 3
        return (429, {"error": {"message": message}}) if busy else right(asked)

    endpoint.reply = reply
    found = evaluate(FRAIL, endpoint.url, tmp_path / "out")
    assert (passed(found), found["usage"]["retries"]) == (1.0, 3)


def test_an_account_without_credit_ends_the_evaluation_which_goes_on_later(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    error = {"message": "You exceeded your current quota.", "code": "insufficient_quota"}
    endpoint.reply = lambda asked: (
        (429, {"error": error}) if len(endpoint.asked) > 4 else right(asked)
    )
    done = invoke(FRAIL, endpoint.url, tmp_path / "out", "--retries", 1000, "--concurrency", 1)
    assert done.exit_code == 2
    assert "insufficient_quota); add credit to the account" in done.stderr
    assert f"--out {tmp_path / 'out'}" in done.stderr
    endpoint.reply = right
    assert passed(evaluate(FRAIL, endpoint.url, tmp_path / "out")) == 1.0
