"""The field that bounds new tokens: which a request has, and which an endpoint wants instead."""

import pytest

from grpo_core.calls.api_client import CallError, FailureKind
from grpo_core.calls.api_requests import (
    has_no_credit,
    is_too_large,
    limit_field,
    wants_other_limit_field,
    with_limit,
    with_limit_field,
)

OLD, NEW = "max_tokens", "max_completion_tokens"


def rejected(
    message: str, *, status: int = 400, kind: FailureKind = FailureKind.REJECTED
) -> CallError:
    return CallError(f"HTTP status {status}: {message}", kind, status=status)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({OLD: 64}, OLD),
        ({NEW: 64}, NEW),
        ({OLD: 16, NEW: 32}, OLD),
        ({OLD: None, NEW: 32}, NEW),
        ({"model": "m"}, None),
        ({OLD: True}, None),
    ],
)
def test_the_bound_of_a_request_is_read_from_whichever_field_has_it(
    body: dict[str, object], field: str | None
) -> None:
    assert limit_field(body) == field


def test_another_bound_goes_into_the_field_that_has_one_and_leaves_the_rest() -> None:
    body = {"model": "m", NEW: 64}
    assert with_limit(body, 32) == {"model": "m", NEW: 32}
    assert body[NEW] == 64
    assert with_limit({OLD: 64, NEW: 48}, 24) == {OLD: 24, NEW: 24}
    assert with_limit({"model": "m"}, 32) == {"model": "m"}


def test_a_bound_moves_to_another_field() -> None:
    assert with_limit_field({"model": "m", OLD: 64}, NEW) == {"model": "m", NEW: 64}
    assert with_limit_field({"model": "m"}, NEW) == {"model": "m"}


REFUSALS = [
    "Unsupported parameter: 'max_tokens' is not supported with this model. "
    "Use 'max_completion_tokens' instead. (unsupported_parameter)",
    "Unsupported parameter: 'max_tokens' (unsupported_parameter)",
    "this model is not supported MaxTokens, please use MaxCompletionTokens",
    "This model does not support max_tokens.",
]


@pytest.mark.parametrize("message", REFUSALS)
def test_an_endpoint_that_refuses_max_tokens_wants_max_completion_tokens(message: str) -> None:
    assert wants_other_limit_field(rejected(message), {OLD: 64}) == NEW


@pytest.mark.parametrize(
    "message",
    [
        "Unrecognized request argument supplied: max_completion_tokens",
        '{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],'
        '"msg":"Extra inputs are not permitted","input":64}]}',
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_an_endpoint_that_knows_max_tokens_alone_gets_it(message: str, status: int) -> None:
    assert wants_other_limit_field(rejected(message, status=status), {NEW: 64}) == OLD


@pytest.mark.parametrize(
    ("error", "body"),
    [
        (rejected("Unsupported value: 'temperature' (unsupported_value)"), {OLD: 64}),
        (rejected("Unsupported value: max_tokens does not support 0"), {OLD: 0}),
        (rejected("'max_tokens' or 'max_completion_tokens' must be at least 1"), {OLD: 0}),
        (rejected(REFUSALS[0], status=401), {OLD: 64}),
        (rejected(REFUSALS[0], status=500, kind=FailureKind.UNAVAILABLE), {OLD: 64}),
        (rejected("max_tokens is too large", kind=FailureKind.REFUSED), {OLD: 64}),
        (rejected(REFUSALS[0]), {OLD: 64, NEW: 64}),
        (rejected(REFUSALS[0]), {}),
    ],
)
def test_what_an_endpoint_refuses_otherwise_moves_no_bound(
    error: CallError, body: dict[str, object]
) -> None:
    assert wants_other_limit_field(error, body) is None


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("Request too large for gpt on tokens per min (TPM): Limit 1000, Requested 9000.", 429, True),
        ("The request is too large for your tier", 429, True),
        ("Rate limit reached (TPM): Limit 1000, Used 900, Requested 200.", 429, False),
        ("Rate limit reached (RPM): Limit 3, Requested 1.", 429, False),
        ("Concurrency limit: 5, requested: 8", 429, False),
        ("Request too large", 413, False),
    ],
)  # fmt: skip
def test_a_request_that_exceeds_its_rate_limit_alone_is_told_from_one_that_came_too_fast(
    message: str, status: int, expected: bool
) -> None:
    error = rejected(message, status=status, kind=FailureKind.UNAVAILABLE)
    assert is_too_large(error) is expected


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("You exceeded your current quota (insufficient_quota)", 429, True),
        ("You exceeded your current quota, please retry in 12 s (RESOURCE_EXHAUSTED)", 429, False),
        ("Rate limit reached. Add a payment method in account/billing (rate_limit)", 429, False),
        ("insufficient_quota", 500, False),
    ],
)
def test_a_used_up_account_is_told_from_a_rate_limit(
    message: str, status: int, expected: bool
) -> None:
    error = rejected(message, status=status, kind=FailureKind.UNAVAILABLE)
    assert has_no_credit(error) is expected
