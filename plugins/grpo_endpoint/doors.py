"""Refuse requests of web pages before anything else looks at them."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from grpo_core.calls.web_callers import WebCallers
from grpo_endpoint.errors import ApiError
from grpo_endpoint.responses import error_response


class Doors:
    """Pass requests on that name this server, and that no strange page sent.

    Args:
        app: answers them.
        callers: decides.
    """

    def __init__(self, app: ASGIApp, callers: WebCallers) -> None:
        self._app, self._callers = app, callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        problem = self._callers.refusal(
            hosts=None if _is_unix(scope) else _values(scope, b"host"),
            origins=_values(scope, b"origin"),
            sites=_values(scope, b"sec-fetch-site"),
        )
        if problem is None:
            await self._app(scope, receive, send)
            return
        error = ApiError(403, problem, code="forbidden")
        await error_response(error)(scope, receive, send)


def _is_unix(scope: Scope) -> bool:
    """Return whether a request came by a Unix socket, which has a path and no port."""
    server = scope.get("server")
    return server is None or server[1] is None


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]
