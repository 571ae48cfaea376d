"""Read the bodies of requests, each within its limits and all of them in bounded memory."""

from __future__ import annotations

from starlette.requests import Request

from grpo_core.calls.json_limits import JsonLimitError, JsonScan
from grpo_endpoint.errors import ApiError

_DISCARDED = 8
"""A body that is refused is read up to this many times the limit before the client is told: many
clients read nothing before they have sent everything."""
_TOGETHER = 8
"""So many bodies of the largest size are held at a time."""
_SMALL_BYTES = 65_536
"""So much of each body is not counted, so that small requests are answered beside large ones."""
_RETRY_SECONDS = 5
_JSON = "application/json"


class Bodies:
    """Count the bytes of all bodies whose requests are not answered yet.

    Args:
        limit_mb: largest body in MiB.
    """

    def __init__(self, limit_mb: float) -> None:
        self._limit_mb = limit_mb
        self._limit = int(limit_mb * 2**20)
        self._held = 0

    def open(self) -> RequestBody:
        """Return the body of a request that begins now; it has to be released in the end."""
        return RequestBody(self)

    def hold(self, count: int) -> None:
        """Count further bytes; a negative number takes them back.

        Raises:
            ApiError: there are too many.
        """
        if self._held + max(0, count) > _TOGETHER * self._limit:
            raise ApiError(
                429,
                "other requests with large bodies are being answered; send this one again later",
                code="rate_limit_exceeded",
                retry_seconds=_RETRY_SECONDS,
            )
        self._held += count

    def check_size(self, size: int) -> None:
        """Raise ApiError if a body is too large."""
        if size > self._limit:
            raise ApiError(
                413,
                f"the body has more than {self._limit_mb:g} MiB; send shorter messages",
                code="request_too_large",
            )

    def is_hopeless(self, size: int) -> bool:
        """Return whether a body is so large that its client is told before it has sent it."""
        return size > _DISCARDED * self._limit


class RequestBody:
    """Hold the body of one request."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self._counted = bodies, 0

    async def read(self, request: Request) -> bytes:
        """Return the bytes of the body, which a JSON parser may take.

        Raises:
            ApiError: it is not declared as JSON, is too large, or has too many parts.
            ClientDisconnect: the client is gone.
        """
        _check_type(request.headers.get("content-type"))
        body, size, scan = bytearray(), 0, JsonScan()
        refusal: ApiError | None = None
        async for part in request.stream():
            size += len(part)
            if refusal is None:
                try:
                    self._take(len(part), size)
                    scan.add(part)
                    body += part
                except JsonLimitError as error:
                    refusal = ApiError(400, f"the body is too complex: {error}")
                except ApiError as error:
                    refusal = error
            elif self._bodies.is_hopeless(size):
                break
        if refusal is not None:
            raise refusal
        return bytes(body)

    def release(self) -> None:
        """Forget the bytes, which are no longer needed; more than one call is harmless."""
        self._bodies.hold(-self._counted)
        self._counted = 0

    def _take(self, count: int, size: int) -> None:
        """Count a part of the body, which has now `size` bytes.

        Raises:
            ApiError: there are too many bytes.
        """
        self._bodies.check_size(size)
        counted = min(count, max(0, size - _SMALL_BYTES))
        self._bodies.hold(counted)
        self._counted += counted


def _check_type(content_type: str | None) -> None:
    """Refuse what web pages may send anywhere without being asked: texts and forms.

    Raises:
        ApiError: the body is declared as something else than JSON.
    """
    kind = (content_type or _JSON).partition(";")[0].strip().lower()
    if kind != _JSON and not kind.endswith("+json"):
        raise ApiError(
            415,
            f"the body is declared as {kind[:80]!r}; send JSON, with Content-Type: {_JSON}",
        )
