"""Call an OpenAI-compatible endpoint once: the result is a body, or a failure of some kind.

A call is one HTTP request. Its time and the size of its body are bounded as a whole, so that an
endpoint can neither send slowly for ever nor fill the memory. There are no retries here.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from enum import Enum
from typing import Any

import openai

from grpo_core.calls.api_settings import NO_KEY
from grpo_core.calls.client_logs import redact_client_logs
from grpo_core.calls.pace import LONGEST_PAUSE_SECONDS, Pace
from grpo_core.calls.redaction import Redactor
from grpo_core.protocol.errors import ConfigError

MAX_BODY_BYTES = 10_000_000
MAX_ERROR_BYTES = 50_000
_LATER_STATUSES = frozenset({409, 420, 425, 429, 430, 498, 529})
"""Statuses of a server that wants the request later, whatever its text."""
_REFUSAL = re.compile(
    r"content[ _-]?(filter|policy|management)|usage polic|flagged|invalid[ _]prompt"
    r"|context[ _-]?(length|size|window)|maximum context|exceed.{0,60}context"
    r"|too (long|large)|too many (input |prompt )?tokens|string_above_max_length"
    r"|(maximum|max) (input|prompt|sequence|model)? ?(length|tokens)"
    r"|maximum number of .{0,20}tokens|range of input length|tokens.{0,60}must be <",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(
    r"(request|prompt)( is)? too (large|long)"
    r"|(input|prompt|output|message)\w* .{0,40}must be (reduced|shortened)",
    re.IGNORECASE,
)
"""In the message of status 429: the request alone exceeds the limit, so that no waiting helps."""
_AMOUNTS = re.compile(r"limit:? *(\d[\d,]*\d|\d).{0,40}requested:? *(\d[\d,]*\d|\d)", re.IGNORECASE)
_TOKENS = re.compile(r"token|\bTPM\b", re.IGNORECASE)
_CALLS = re.compile(
    r"\bRPM\b|requests|window|per (second|minute|hour|day)|concurren|parallel|simultaneous"
    r"|connection",
    re.IGNORECASE,
)
"""What the amounts count: tokens, or calls, which say nothing of one request alone."""
_LOAD = re.compile(
    r"overload|over capacity|at capacity|rate.?limit|too many (concurrent )?requests|throttl"
    r"|quota|slow down|server is busy|please wait|(try|retry).{0,20} later"
    r"|queue is full|resource.?exhausted",
    re.IGNORECASE,
)
"""In the message of a server's error: the server has too much to do."""
_SECRET_HEADER = re.compile(r"key|auth|token|secret|cookie", re.IGNORECASE)


class FailureKind(Enum):
    """Name kinds of failed calls, by their cause."""

    UNAVAILABLE = "no answer, or one of a server that is broken: it may pass by itself"
    LIMITED = "the server is busy, or allows fewer requests: a later one may be answered"
    REJECTED = "the request is refused for a key, a permission, a model or a setting"
    REFUSED = "the text is refused, for what it says or for its length"
    UNREADABLE = "an answer that cannot be read"


class CallError(Exception):
    """A call failed.

    Args:
        message: what happened, without secrets.
        kind: the kind of failure.
        retry_after: the pause in seconds that the endpoint asks for, if it does.
        status: the HTTP status, if there is one.
    """

    def __init__(
        self,
        message: str,
        kind: FailureKind,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after
        self.status = status


class TimedOutError(CallError):
    """The answer was not complete in time."""


class _StatusError(Exception):
    """The endpoint answered with a status other than success."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


class ApiClient:
    """Call one OpenAI-compatible endpoint. It belongs to one event loop.

    Args:
        key: the API key; NO_KEY for none.
        base_url: the address; None is that of OpenAI.
        timeout_seconds: how long one call may take from the first byte sent to the last received.
        at_once: largest number of calls in flight.
        per_minute: largest number of calls that begin in a minute, evenly spaced; 0 is no limit.
            It is lowered as far as the endpoint limits its rate.
        check: called while calls wait for their turn; what it raises ends the wait.
        longest_pause_seconds: a longer pause that the endpoint asks for is left to the caller.
    """

    def __init__(
        self,
        *,
        key: str,
        base_url: str | None,
        timeout_seconds: float,
        at_once: int,
        per_minute: float,
        check: Callable[[], None] | None = None,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(at_once)
        self.pace = Pace(per_minute, check=check, longest_pause_seconds=longest_pause_seconds)
        http_client = openai.DefaultAsyncHttpxClient(
            event_hooks={"response": [_raise_for_status]},
            follow_redirects=False,
        )
        self._client: Any = openai.AsyncOpenAI(
            api_key=key,
            base_url=base_url,
            timeout=timeout_seconds,
            max_retries=0,
            http_client=http_client,
        )
        headers = self._client.default_headers.items()
        sent = [key, *(value for name, value in headers if _SECRET_HEADER.search(name))]
        public = (NO_KEY, f"Bearer {NO_KEY}")
        secret = [value for value in sent if isinstance(value, str) and value not in public]
        self.redact = Redactor(secret)
        redact_client_logs(key, self.redact)

    @contextlib.asynccontextmanager
    async def turn(self, *, urgent: bool = False) -> AsyncIterator[None]:
        """Wait until a call may begin; inside the block it counts as in flight.

        Args:
            urgent: let it begin before all calls that are not urgent, however long they waited.
        """
        async with self.pace.turn(self._slots, urgent=urgent):
            yield

    async def ask(self, *, chat: bool = True, **request: Any) -> bytes:
        """Return the body of the answer to a request.

        Args:
            chat: whether a chat is completed (/chat/completions), and not a text (/completions).
            request: arguments of the method `create` of the client of the package `openai`.

        Raises:
            CallError: the endpoint gave no answer.
        """
        resource = self._client.chat.completions if chat else self._client.completions
        completions = resource.with_streaming_response
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with completions.create(**request) as response:
                    body = await _read(response.iter_bytes(), MAX_BODY_BYTES)
        except TimeoutError:
            message = f"timeout: the answer was not complete after {self._timeout_seconds:g} s"
            raise TimedOutError(message, FailureKind.UNAVAILABLE) from None
        except Exception as error:  # noqa: BLE001 - of the client or of the transport below it
            cause = error.__cause__
            # Some versions of the client wrap what its transport raises.
            for status in (error, cause):
                if isinstance(status, _StatusError):
                    refusal = self._refusal(status)
                    if refusal.kind is FailureKind.LIMITED:
                        self.pace.limited(began=began, retry_after=refusal.retry_after)
                    raise refusal from None
            more = "" if cause is None else f" ({type(cause).__name__}: {cause})"
            message = self.redact(f"{type(error).__name__}: {error}{more}")
            raise CallError(message, FailureKind.UNAVAILABLE) from None
        if len(body) > MAX_BODY_BYTES:
            message = f"the answer has more than {MAX_BODY_BYTES:,} bytes"
            raise CallError(message, FailureKind.UNREADABLE)
        self.pace.answered()
        return body

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _refusal(self, error: _StatusError) -> CallError:
        """Return the failure for a status, with the endpoint's message."""
        endpoint_message = error_text(error.body)
        message = self.redact(f"HTTP status {error.status}: {endpoint_message}")
        retry_after = _retry_after(error.headers)
        kind = kind_of_failure(error.status, endpoint_message, has_pause=retry_after is not None)
        if 300 <= error.status < 400:
            to = self.redact(error.headers.get("location", ""))
            message = f"HTTP status {error.status}: a redirect to {to!r}; set the address to it"
        return CallError(message, kind, retry_after, error.status)


def kind_of_failure(status: int, message: str, *, has_pause: bool) -> FailureKind:
    """Return the kind of a failure by its HTTP status.

    Args:
        status: the status, also one that stands in a body.
        message: the endpoint's message.
        has_pause: whether the endpoint says when to ask again.
    """
    if status in (413, 429) and exceeds_rate_limit(message):
        return FailureKind.REFUSED
    if status in _LATER_STATUSES or has_pause:
        return FailureKind.LIMITED
    is_load = _LOAD.search(message) is not None
    if status >= 500 or status == 408 or status < 300:
        return FailureKind.LIMITED if is_load else FailureKind.UNAVAILABLE
    if status == 413 or (status in (400, 403, 422) and _REFUSAL.search(message)):
        return FailureKind.LIMITED if is_load else FailureKind.REFUSED
    return FailureKind.REJECTED


def exceeds_rate_limit(message: str) -> bool:
    """Return whether status 429 says that one request alone exceeds the limit of a minute.

    It fails again after any pause. Where the message has the numbers, these decide.
    """
    numbers = _AMOUNTS.search(message)
    if numbers is not None and (_TOKENS.search(message) or not _CALLS.search(message)):
        limit, requested = (int(text.replace(",", "")) for text in numbers.groups())
        return requested > limit
    return _TOO_LARGE.search(message) is not None


def check_connections(subject: str) -> None:
    """Raise ConfigError for a proxy or certificates in the environment that cannot be used.

    The message does not repeat them: the address of a proxy may hold a password.

    Args:
        subject: who makes the connections, for the message.
    """
    try:
        openai.DefaultAsyncHttpxClient()
    except Exception as error:  # noqa: BLE001 - the client raises several types
        raise ConfigError(
            f"{subject} cannot make connections ({type(error).__name__}): a variable of the "
            "environment names a proxy or certificates that cannot be used; check HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        ) from None


def error_text(body: bytes) -> str:
    """Return an endpoint's message in the body of an error."""
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        error = value.get("error", value) if isinstance(value, dict) else value
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            code = error.get("code")
            return f"{error['message']} ({code})" if isinstance(code, str) else error["message"]
    return text


async def _raise_for_status(response: Any) -> None:
    """Raise for every status but success, before a body of unbounded size is read."""
    if not 200 <= response.status_code < 300:
        body = await _read(response.aiter_bytes(), MAX_ERROR_BYTES)
        raise _StatusError(response.status_code, response.headers, body)


async def _read(parts: AsyncIterator[bytes], most: int) -> bytes:
    """Return a body, or if it is longer its beginning of a little more than `most` bytes."""
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > most:
            break
    return bytes(body)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause in seconds that the headers ask for, as a number or until a date."""
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        with contextlib.suppress(ValueError):
            seconds = float(headers.get(name, "")) / divisor
            return seconds if math.isfinite(seconds) and seconds >= 0 else None
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, date.timestamp() - time.time())
    return None
