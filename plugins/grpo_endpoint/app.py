"""Route requests: check them, have them answered, and write what came of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo_core.calls.web_callers import WebCallers
from grpo_core.protocol.endpoint import CompletionAnswer
from grpo_endpoint.answers import ChatAnswer, TextAnswer, health, model_card, model_list
from grpo_endpoint.bodies import Bodies
from grpo_endpoint.chat import ChatBody
from grpo_endpoint.doors import Doors
from grpo_endpoint.errors import ApiError, invalid_body
from grpo_endpoint.gate import KeyHolder
from grpo_endpoint.openapi import document
from grpo_endpoint.responses import JsonResponse, PendingResponse, PendingStream, error_response
from grpo_endpoint.service import Service
from grpo_endpoint.text import TextBody

AnyBody = TypeVar("AnyBody", ChatBody, TextBody)
_MOST_ERRORS = 100
"""A body with more errors is refused without saying which they are."""
_LOGGER = logging.getLogger(__name__)


def make_app(service: Service) -> ASGIApp:
    """Return the ASGI app of a service."""
    api = _Api(service)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/completions", api.text, methods=["POST"]),
            Route("/v1/models", api.models, methods=["GET"]),
            Route("/v1/models/{name:path}", api.model, methods=["GET"]),
            Route("/health", api.health, methods=["GET"]),
            Route("/openapi.json", api.openapi, methods=["GET"]),
        ],
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: _on_failure,
        },
    )
    return partial(_with_id, Doors(app, WebCallers(service.config.host, service.config.hosts)))


class _Api:
    """Answer the requests to each route."""

    def __init__(self, service: Service) -> None:
        self._service, self._config = service, service.config
        self._bodies = Bodies(service.config.body_mb)

    async def chat(self, request: Request) -> ASGIApp:
        """Answer POST /v1/chat/completions."""
        return await self._completions(request, ChatBody)

    async def text(self, request: Request) -> ASGIApp:
        """Answer POST /v1/completions."""
        return await self._completions(request, TextBody)

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models."""
        self._service.client(request.headers.get("authorization"))
        return JsonResponse(model_list(self._config.model, self._service.created))

    async def model(self, request: Request) -> Response:
        """Answer GET /v1/models/NAME."""
        self._service.client(request.headers.get("authorization"))
        self._check_model(request.path_params["name"])
        return JsonResponse(model_card(self._config.model, self._service.created))

    async def health(self, request: Request) -> Response:
        """Answer GET /health."""
        self._service.check_open()
        return JsonResponse(health())

    async def openapi(self, request: Request) -> Response:
        """Answer GET /openapi.json."""
        return JsonResponse(document(self._config.model, self._config.max_choices))

    async def _completions(
        self, request: Request, body_class: type[ChatBody] | type[TextBody]
    ) -> ASGIApp:
        """Return what answers a request for completions.

        Raises:
            ApiError: the request cannot be answered as it is.
        """
        client = self._service.client(request.headers.get("authorization"))
        held = self._bodies.open()
        try:
            body = _parsed(await held.read(request), body_class)
            work = self._start(client, body)
        except BaseException:
            held.release()
            raise
        work.add_done_callback(lambda _: held.release())
        why_given_up = partial(self._service.why_given_up, client)
        write = partial(_answer, body)
        if not body.stream:
            return PendingResponse(work, why_given_up, lambda answers: write(answers).whole())
        return PendingStream(
            work,
            why_given_up,
            lambda answers: write(answers).chunks(usage=body.includes_usage),
            self._config.keep_alive_seconds,
        )

    def _start(
        self, client: KeyHolder, body: ChatBody | TextBody
    ) -> asyncio.Task[list[CompletionAnswer]]:
        """Return the task that answers a valid body.

        Raises:
            ApiError: the request cannot be answered as it is.
        """
        self._check_model(body.model)
        requests = body.requests()
        count, most = sum(asked.count for asked in requests), self._config.max_choices
        if count > most:
            raise ApiError(
                400,
                f"n: {count} completions were asked for, and this server gives {most} at most; "
                "send several requests",
                param="n",
            )
        return self._service.start(client, requests)

    def _check_model(self, name: str) -> None:
        """Raise ApiError unless the model is the one that there is."""
        if name != self._config.model:
            raise ApiError(
                404,
                f"model: {name[:80]!r} was found, and there is only {self._config.model!r}",
                code="model_not_found",
                param="model",
            )


def _parsed(data: bytes, body_class: type[ChatBody] | type[TextBody]) -> ChatBody | TextBody:
    """Return what a body says.

    Raises:
        ApiError: it is not valid.
    """
    try:
        return body_class.model_validate_json(data)
    except ValidationError as error:
        if (count := error.error_count()) > _MOST_ERRORS:  # each would take time to describe
            raise ApiError(
                400, f"the body has {count} fields that are wrong; compare it with /openapi.json"
            ) from None
        raise invalid_body(error.errors(include_url=False)) from None


def _answer(body: ChatBody | TextBody, answers: list[CompletionAnswer]) -> ChatAnswer | TextAnswer:
    """Return what writes the answers to a body."""
    if isinstance(body, ChatBody):
        return ChatAnswer(answers[0], body.model, logprobs=bool(body.logprobs))
    return TextAnswer(answers, body.model, logprobs=body.logprobs is not None)


async def _with_id(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Give each answer an id, by which clients refer to it."""
    name = secrets.token_hex(12).encode()

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", b"req_" + name)]
        await send(message)

    await app(scope, receive, send_with_id)


async def _on_api_error(_: Request, error: Any) -> Response:
    return error_response(error)


async def _on_http_error(request: Request, error: Any) -> Response:
    """Answer a request to a route or by a method that does not exist."""
    path = str(request.scope["path"])[:80]
    if error.status_code == 405:
        message = f"{path} does not take {request.method[:20]}; see /openapi.json"
    else:
        message = f"there is nothing at {path}; see /openapi.json"
    response = error_response(ApiError(error.status_code, message))
    response.headers.update(error.headers or {})
    return response


async def _on_disconnect(_: Request, error: Any) -> Response:
    """Return an answer that nobody reads."""
    return Response(status_code=400)


async def _on_failure(_: Request, error: Any) -> Response:
    """Answer a request after a failure of this program."""
    _LOGGER.error("a request could not be answered", exc_info=error)
    return error_response(ApiError(500, "the server failed; its log has the reason"))
