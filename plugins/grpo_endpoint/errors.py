"""Errors as clients of the OpenAI API read them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from grpo_core.words import fit

_MAX_SHOWN_CHARS = 80
_MAX_SHOWN_ERRORS = 5
TAG = "<{}>"
"""Name of an alternative, which pydantic adds to the place of an error."""
_ENCODER = json.JSONEncoder(default=str)
_SHOULD = re.compile(r"^\w+ should ")


class ErrorContent(TypedDict):
    """Describe an error of a request, or of the server."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """Hold the body of an answer with an error status."""

    error: ErrorContent


class ApiError(Exception):
    """A request is answered with an error.

    Args:
        status: the HTTP status.
        message: what is wrong and what to do.
        code: a word for programs.
        param: the parameter that is wrong.
        retry_seconds: when the client may come again, if that is known.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_seconds = retry_seconds

    @property
    def body(self) -> ErrorBody:
        """Return the body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the answer."""
        headers = {} if self.retry_seconds is None else {"retry-after": str(self.retry_seconds)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (403, 413, 415):  # the body was not read
            headers["connection"] = "close"
        return headers


def invalid_body(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the error for a body that is not valid, from pydantic's description.

    Its message names the field, the value that was sent and the values that are allowed.
    """
    if errors[0]["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {errors[0]['ctx']['error']}")
    messages: dict[str, list[str]] = {}
    for error in errors:
        messages.setdefault(_place(error["loc"]), []).append(_message(error))
    texts = [f"{place or 'the body'}: {'; or: '.join(found)}" for place, found in messages.items()]
    more = len(texts) - _MAX_SHOWN_ERRORS
    text = "; ".join(texts[:_MAX_SHOWN_ERRORS]) + (f"; and {more} more" if more > 0 else "")
    return ApiError(400, text, param=next(iter(messages)) or None)


def _place(path: Sequence[int | str]) -> str:
    """Return the name of a field, such as "messages.0.content", without names of alternatives."""
    parts: list[str] = []
    for number, part in enumerate(path):
        before = path[:number]
        is_role = len(before) == 2 and before[0] == "messages"
        is_format = before == ("response_format",)
        if not (is_role or is_format or str(part).startswith(TAG[0])):
            parts.append(_cut(str(part)))
    return ".".join(parts)


def _message(error: Mapping[str, Any]) -> str:
    """Return what is wrong with one field."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return "it is missing; send it"
    if kind == "extra_forbidden":
        return "this server does not support it; leave it out"
    if kind == "union_tag_not_found":
        return f"it has no {context['discriminator'].strip(chr(39))}; send one"
    if kind == "union_tag_invalid":
        name = context["discriminator"].strip("'")
        tag, known = _cut(str(context["tag"])), context["expected_tags"]
        return f"{name} is {tag!r}; it has to be one of {known}"
    reason = _SHOULD.sub("it has to ", error["msg"].removeprefix("Value error, "))
    return f"{_shown(error['input'])} was found; {reason}"


def _shown(value: Any) -> str:
    """Return the beginning of a value as JSON, of which no more is written than is shown."""
    if isinstance(value, str):
        return _cut(json.dumps(value[:_MAX_SHOWN_CHARS]))
    written = ""
    try:
        for part in _ENCODER.iterencode(value):
            written += part
            if len(written) > _MAX_SHOWN_CHARS:
                return _cut(written)
    except ValueError:  # Python writes no whole number of many thousand digits
        return "a number that is too long"
    return written


def _cut(text: str) -> str:
    """Return a text, or its beginning if it is long."""
    return fit(text, _MAX_SHOWN_CHARS)
