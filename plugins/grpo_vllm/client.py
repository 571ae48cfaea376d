"""Calls a vLLM server over HTTP, and tells failures of the server from requests it refuses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from grpo_core import GrpoError

_CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0
"""A connection that was unused for longer is not used again. vLLM closes it after 5 seconds, and a
request that crosses that would look like the failure of the server."""
_HEALTH_SECONDS = 10.0
_MAX_SHOWN_CHARS = 500


class ServerFailedError(Exception):
    """The server gave no answer; it may have died."""


class RefusedError(GrpoError):
    """The server does not take a request."""


class VllmClient:
    """A connection to a server. It belongs to one event loop.

    Args:
        address: a Unix socket of a server on this machine, or a URL.
        at_once: largest number of requests in flight; further ones wait.
        seconds: timeout of one request.
    """

    def __init__(self, address: Path | str, *, at_once: int, seconds: float) -> None:
        socket = str(address) if isinstance(address, Path) else None
        key = os.environ.get("VLLM_API_KEY", "")
        limits = httpx2.Limits(
            max_connections=at_once,
            max_keepalive_connections=at_once,
            keepalive_expiry=IDLE_SECONDS,
        )
        self._http = httpx2.AsyncClient(
            base_url="http://vllm" if socket else str(address).removesuffix("/v1"),
            transport=httpx2.AsyncHTTPTransport(uds=socket, limits=limits, retries=0),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(seconds, connect=_CONNECT_SECONDS, pool=None),
        )

    async def is_healthy(self) -> bool:
        """Return whether the server answers and its engine runs."""
        try:
            response = await self._http.get("/health", timeout=_HEALTH_SECONDS)
        except httpx2.HTTPError:
            return False
        return response.is_success

    async def models(self) -> list[str]:
        """Return the names of the models that the server has.

        Raises:
            ServerFailedError: it gave no answer.
        """
        return [model["id"] for model in (await self._request("GET", "/v1/models"))["data"]]

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON that the server answers; None if it answers another text.

        Raises:
            ServerFailedError: it gave no answer, or reported a failure of its own.
            RefusedError: it refuses the request.
        """
        return await self._request("POST", path, body)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise ServerFailedError(f"{type(error).__name__} {error}".strip()) from None
        if response.is_success:
            is_json = response.headers.get("content-type", "").startswith("application/json")
            return response.json() if is_json else None
        problem = f"HTTP status {response.status_code}: {_message(response)}"
        # A server that was restarted by somebody else has lost the adapter: 404.
        if response.status_code >= 500 or response.status_code == 404:
            raise ServerFailedError(problem)
        raise RefusedError(f"the vLLM server refuses {path}: {problem}")


def _message(response: httpx2.Response) -> str:
    """Return what an answer says about an error, as OpenAI's endpoints write it if it does."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(response.json()["error"]["message"])[:_MAX_SHOWN_CHARS]
    return response.text[:_MAX_SHOWN_CHARS]
