"""The bound of new tokens and the limits of an account: halved, moved to another field, or an error at once."""

from typing import Any

import pytest

from ..plugins.endpoint import failed
from .evaluated import FRAIL, Evaluated, index_of, passed

pytestmark = pytest.mark.usefixtures("quick")
OLD, NEW = "max_tokens", "max_completion_tokens"
MOVED = ("--request", f"{OLD}=null", "--request", f"{NEW}=64")
ANY_RATE = ("--set", "verify.max_error_rate=1")


def refuses(field: str, message: str = "Unsupported parameter: '{0}'. Use '{1}' instead.") -> Any:
    other = NEW if field == OLD else OLD
    message = message.format(field, other)
    return failed(400, message, param=field, code="unsupported_parameter")


@pytest.mark.parametrize(
    ("options", "field"), [(("--max-new-tokens", 64), OLD), (MOVED, NEW)], ids=[OLD, NEW]
)
def test_a_turn_is_shortened_in_whichever_field_bounds_it(
    options: tuple[Any, ...], field: str, endpoint: Evaluated
) -> None:
    def reply(asked: dict[str, Any]) -> Any:
        assert asked.keys() & {OLD, NEW} == {field}
        if asked[field] > 40:
            return failed(400, "maximum context length is 100 tokens")
        return index_of(asked)

    endpoint.reply = reply
    found = endpoint.evaluate(FRAIL, *options)
    assert {asked[field] for asked in endpoint.asked} == {64, 32}
    assert (passed(found), found["results"][0]["refused"]) == (1.0, {})


def test_a_request_without_a_bound_is_refused_for_its_text_alone(endpoint: Evaluated) -> None:
    refusal = failed(400, "prompt is too long")
    endpoint.reply = lambda asked: refusal if index_of(asked) == "2" else index_of(asked)
    found = endpoint.evaluate(FRAIL, "--request", f"{OLD}=null")
    assert found["results"][0]["refused"] == {"context": 2}
    assert passed(found) == 0.75


@pytest.mark.parametrize(
    ("options", "refused"), [(("--max-new-tokens", 64), OLD), (MOVED, NEW)], ids=[OLD, NEW]
)
def test_a_server_that_wants_the_bound_in_another_field_gets_it_and_it_is_said_once(
    options: tuple[Any, ...],
    refused: str,
    endpoint: Evaluated,
    caplog: pytest.LogCaptureFixture,
) -> None:
    endpoint.reply = lambda asked: refuses(refused) if refused in asked else index_of(asked)
    found = endpoint.evaluate(FRAIL, *options, "--concurrency", 4)
    assert (passed(found), found["usage"]["retries"]) == (1.0, 0)
    bounds = [asked for asked in endpoint.asked if refused not in asked]
    assert {asked[NEW if refused == OLD else OLD] for asked in bounds} == {64}
    assert len(endpoint.asked) - len(bounds) <= 4
    (record,) = [record for record in caplog.records if "refuses the field" in record.message]
    assert f"refuses the field {refused}" in record.message


def test_a_server_that_knows_neither_field_ends_the_evaluation(endpoint: Evaluated) -> None:
    endpoint.reply = lambda asked: (
        refuses(OLD if OLD in asked else NEW, "Unknown parameter: '{0}'")
        if asked.keys() & {OLD, NEW}
        else index_of(asked)
    )
    done = endpoint.invoke(FRAIL, "--concurrency", 1, out="a")
    assert done.exit_code == 2
    assert "Unknown parameter: 'max_completion_tokens'" in done.stderr
    assert len(endpoint.asked) <= 4
    assert passed(endpoint.evaluate(FRAIL, "--request", f"{OLD}=null", out="b")) == 1.0


def test_a_request_that_no_waiting_makes_possible_is_an_error_at_once(endpoint: Evaluated) -> None:
    """The account's limit is neither the model's fault nor over in a minute."""

    message = "tokens per min (TPM): Limit 1000, Requested 9000"
    refusal = failed(429, message, code="rate_limit_exceeded")
    endpoint.reply = lambda asked: refusal if index_of(asked) == "2" else index_of(asked)
    found = endpoint.evaluate(FRAIL, "--retries", 1000, *ANY_RATE)
    assert len(endpoint.asked) == 8
    assert (passed(found), found["results"][0]["unscored"]) == (1.0, 2)
    assert "lower --max-new-tokens, or raise the limit" in next(iter(found["errors"]))
    totals = [line["verdict"]["total"] for line in endpoint.lines() if "error" in line]
    assert totals == [None, None]


def test_a_rate_limit_that_passes_is_waited_for(endpoint: Evaluated) -> None:
    message = "Rate limit reached on tokens per min (TPM): Limit 9000, Used 8990, Requested 385"
    busy = failed(429, message)
    endpoint.reply = lambda asked: busy if len(endpoint.asked) <= 3 else index_of(asked)
    found = endpoint.evaluate(FRAIL)
    assert (passed(found), found["usage"]["retries"]) == (1.0, 3)


def test_an_account_without_credit_ends_the_evaluation_which_goes_on_later(
    endpoint: Evaluated,
) -> None:
    spent = failed(429, "You exceeded your current quota.", code="insufficient_quota")
    endpoint.reply = lambda asked: spent if len(endpoint.asked) > 4 else index_of(asked)
    done = endpoint.invoke(FRAIL, "--retries", 1000, "--concurrency", 1)
    assert done.exit_code == 2
    assert "insufficient_quota); add credit to the account" in done.stderr
    assert f"--out {endpoint.out}" in done.stderr
    endpoint.reply = index_of
    assert passed(endpoint.evaluate(FRAIL)) == 1.0
