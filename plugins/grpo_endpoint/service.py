"""Pass requests on to the completers: by key, in turn, within a deadline."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from functools import partial

from grpo_core import GrpoError
from grpo_core.protocol.endpoint import (
    Completer,
    CompletionAnswer,
    CompletionRequest,
    RefusedRequestError,
)
from grpo_endpoint.config import HttpConfig
from grpo_endpoint.errors import ApiError
from grpo_endpoint.gate import Gate, KeyHolder
from grpo_endpoint.metrics import Metrics
from grpo_endpoint.requests import serves_more

_RETRY_SECONDS = 1
_LOGGER = logging.getLogger(__name__)


class Service:
    """Holds the completers by their keys, and their requests in progress.

    Args:
        config: the limits.
    """

    def __init__(self, config: HttpConfig) -> None:
        self.config = config
        self.created = int(time.time())
        """When it was made, in seconds since 1970."""
        self.is_closing = False
        self._metrics = Metrics(config.model)
        self._clients: dict[str, KeyHolder] = {}
        self._gate = Gate(
            most=config.requests, most_of_a_client=config.requests_per_key, queue=config.queue
        )

    def admit(self, completer: Completer, key: str | None) -> str:
        """Register a completer for the requests of a new key, and return the key.

        Raises:
            GrpoError: the key has a completer.
        """
        key = f"grpo-{secrets.token_urlsafe(24)}" if key is None else key
        if key in self._clients:
            raise GrpoError("the endpoint has a completer with this key already; dismiss it first")
        self._clients[key] = KeyHolder(key, completer)
        return key

    async def dismiss(self, key: str) -> None:
        """Refuse a key from now on, and give up its requests; wait until they end."""
        client = self._clients.pop(key, None)
        if client is not None:
            client.is_dismissed = True
            await _given_up(client.work)

    async def close(self) -> None:
        """Refuse all requests from now on, and give up those in progress; wait until they end."""
        self.is_closing = True
        await _given_up({work for client in self._clients.values() for work in client.work})

    def check_open(self) -> None:
        """Raise ApiError if the server closes."""
        if self.is_closing:
            raise _closing()

    @property
    def serves_more(self) -> bool:
        """Return whether a completer takes what only clients outside of training ask for."""
        return any(serves_more(client.completer) for client in self._clients.values())

    def metrics(self) -> str:
        """Return the numbers of requests and tokens, in the text format of Prometheus."""
        return self._metrics.text(running=self._gate.running, waiting=self._gate.waiting)

    def client(self, authorization: str | None) -> KeyHolder:
        """Return who asks, by the header Authorization.

        Raises:
            ApiError: the key is missing or unknown, or the server closes.
        """
        self.check_open()
        scheme, _, key = (authorization or "").strip().partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        client = self._clients.get(key) or self._clients.get("")
        if client is None:
            raise _wrong_key(
                "this key is not known, or no longer in use" if key else "there is no key"
            )
        return client

    def start(
        self, client: KeyHolder, requests: Sequence[CompletionRequest]
    ) -> asyncio.Task[list[CompletionAnswer]]:
        """Return the task that answers requests; cancelled, it gives them up.

        It raises an ApiError if they cannot be answered.

        Raises:
            ApiError: the client was dismissed, or the server closes.
        """
        # The client's key was checked before its body arrived.
        if client.is_dismissed or self.is_closing:
            raise self.why_given_up(client)
        task = asyncio.create_task(self._answers(client, requests))
        client.work.add(task)
        task.add_done_callback(client.work.discard)
        task.add_done_callback(partial(self._count, time.monotonic()))
        return task

    def _count(self, started: float, task: asyncio.Task[list[CompletionAnswer]]) -> None:
        """Count a request that has ended."""
        if task.cancelled() or task.exception() is not None:
            self._metrics.add_failure()
        else:
            self._metrics.add(task.result(), time.monotonic() - started)

    def why_given_up(self, client: KeyHolder) -> ApiError:
        """Return the error for a request of the client that was given up here."""
        if client.is_dismissed:
            return _wrong_key("this key is no longer in use")
        return _closing()

    async def _answers(
        self, client: KeyHolder, requests: Sequence[CompletionRequest]
    ) -> list[CompletionAnswer]:
        """Return the answer to each request.

        Raises:
            ApiError: they cannot be answered.
        """
        seconds = self.config.request_seconds
        try:
            async with asyncio.timeout(seconds) as deadline, self._gate.turn(client):
                return await _all(client.completer, requests)
        except ApiError:
            raise
        except RefusedRequestError as error:
            raise ApiError(400, str(error), code=error.code) from None
        except GrpoError as error:
            _LOGGER.warning("a request could not be answered: %s", error)
            raise ApiError(
                503,
                "the policy cannot be sampled now; send the request again later",
                code="unavailable",
                retry_seconds=_RETRY_SECONDS,
            ) from None
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of native code is no Exception
            if isinstance(error, TimeoutError) and deadline.expired():
                raise ApiError(
                    504,
                    f"there was no answer within {seconds:g} s; ask for fewer or shorter "
                    "completions",
                    code="timeout",
                ) from None
            _LOGGER.exception("a request could not be answered")
            raise ApiError(500, "the server failed; its log has the reason") from None


async def _all(
    completer: Completer, requests: Sequence[CompletionRequest]
) -> list[CompletionAnswer]:
    """Return the answer to each request; the first failure gives up the others."""
    if len(requests) == 1:
        return [await completer.complete(requests[0])]
    tasks = [asyncio.create_task(completer.complete(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _given_up({*tasks})


async def _given_up(work: set[asyncio.Task[object]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)


def _wrong_key(problem: str) -> ApiError:
    return ApiError(
        401,
        f"{problem}; send the one that you were given, as in: Authorization: Bearer KEY",
        code="invalid_api_key",
    )


def _closing() -> ApiError:
    return ApiError(
        503, "the server closes; send the request again later", retry_seconds=_RETRY_SECONDS
    )
