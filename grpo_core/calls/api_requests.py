"""Change the bound of new tokens in a request, and tell which failures no waiting ends.

Some endpoints know `max_tokens` alone, others (the reasoning models of OpenAI) refuse it and want
`max_completion_tokens`, which counts the hidden thoughts too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from grpo_core.calls.api_client import CallError, FailureKind, exceeds_rate_limit

LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
"""The fields that bound the new tokens of an answer, under the names that endpoints know."""
_UNKNOWN = re.compile(
    r"un(?:supported|recogni[sz]ed|known|expected)|not (?:supported|permitted|recogni[sz]ed)"
    r"|n[o']t (?:support|know|recogni[sz]e)|extra_forbidden|deprecated",
    re.IGNORECASE,
)
"""Words by which an endpoint refuses a field."""
_ADVISED = re.compile(r"\buse\b|instead", re.IGNORECASE)
"""Words by which it names the field that it wants."""
_WRONG_VALUE = re.compile(r"value", re.IGNORECASE)
"""A word by which it refuses what the field holds instead."""
_NO_CREDIT = re.compile(r"insufficient[ _]quota", re.IGNORECASE)


def limit_field(body: Mapping[str, Any]) -> str | None:
    """Return the field that bounds the new tokens of a request; None if there is no such bound.

    Of several fields it is the one with the smallest bound.
    """
    bounds = {name: body.get(name) for name in LIMIT_FIELDS}
    given = {name: bound for name, bound in bounds.items() if type(bound) is int}
    return min(given, key=lambda name: given[name], default=None)


def with_limit(body: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Return a copy of a request with another bound of new tokens, in each field that has one.

    A request without such a bound stays without it.
    """
    return {
        name: tokens if name in LIMIT_FIELDS and type(value) is int else value
        for name, value in body.items()
    }


def with_limit_field(body: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return a copy of a request in which `field` alone holds the bound of new tokens."""
    used = limit_field(body)
    rest = {name: value for name, value in body.items() if name not in LIMIT_FIELDS}
    return rest if used is None else {**rest, field: body[used]}


def wants_other_limit_field(error: CallError, body: Mapping[str, Any]) -> str | None:
    """Return the field in which an endpoint wants the bound, if it refuses the one used.

    Args:
        error: why the request failed.
        body: the request.

    Returns:
        The field's name; None if the endpoint refuses something else, such as the bound's value.
    """
    used = limit_field(body)
    if used is None or error.kind is not FailureKind.REJECTED or error.status not in (400, 422):
        return None
    (other,) = (name for name in LIMIT_FIELDS if name != used)
    message = str(error)
    if not _names(message, used) or other in body:
        return None
    if _names(message, other) and _ADVISED.search(message):
        return other
    return other if _UNKNOWN.search(message) and not _WRONG_VALUE.search(message) else None


def _names(message: str, field: str) -> bool:
    """Return whether a message names a field, also as MaxTokens."""
    pattern = rf"\b{field.replace('_', '_?')}\b"
    return re.search(pattern, message, re.IGNORECASE) is not None


def is_too_large(error: CallError) -> bool:
    """Return whether one request alone exceeds the tokens that a rate limit grants in a minute.

    Such a request has status 429 like those that came too fast, and fails again after any pause.
    """
    return error.status == 429 and exceeds_rate_limit(str(error))


def has_no_credit(error: CallError) -> bool:
    """Return whether status 429 says that the account has used up what it paid for."""
    return error.status == 429 and _NO_CREDIT.search(str(error)) is not None
