"""Route requests: check them, have them answered, and write what came of it."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
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
from grpo_core.protocol.endpoint import CompletionAnswer, CompletionRequest
from grpo_endpoint.answer_types import Model
from grpo_endpoint.answers import ChatAnswer, TextAnswer, health, model_card, model_list
from grpo_endpoint.bodies import Bodies
from grpo_endpoint.chat import ChatBody
from grpo_endpoint.doors import Doors
from grpo_endpoint.errors import ApiError, invalid_body
from grpo_endpoint.metrics import CONTENT_TYPE
from grpo_endpoint.openapi import document
from grpo_endpoint.requests import Delta, ServedRequest, serves_more
from grpo_endpoint.responses import (
    JsonResponse,
    News,
    PendingResponse,
    PendingStream,
    error_response,
)
from grpo_endpoint.served_bodies import ServedChatBody, ServedTextBody
from grpo_endpoint.service import Service
from grpo_endpoint.streams import ChatChunks, Chunks, TextChunks
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
            Route("/metrics", api.metrics, methods=["GET"]),
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
        return await self._completions(request, ChatBody, ServedChatBody)

    async def text(self, request: Request) -> ASGIApp:
        """Answer POST /v1/completions."""
        return await self._completions(request, TextBody, ServedTextBody)

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models."""
        return JsonResponse(model_list(self._card(request)))

    async def model(self, request: Request) -> Response:
        """Answer GET /v1/models/NAME."""
        card = self._card(request)
        self._check_model(request.path_params["name"])
        return JsonResponse(card)

    def _card(self, request: Request) -> Model:
        """Return the description of the model for who asks."""
        completer = self._service.client(request.headers.get("authorization")).completer
        context = completer.context if serves_more(completer) else None
        return model_card(self._config.model, self._service.created, context)

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics, which there is outside of training alone."""
        if not self._service.serves_more:
            raise HTTPException(404)
        return Response(self._service.metrics(), media_type=CONTENT_TYPE)

    async def health(self, request: Request) -> Response:
        """Answer GET /health."""
        self._service.check_open()
        return JsonResponse(health())

    async def openapi(self, request: Request) -> Response:
        """Answer GET /openapi.json."""
        config = self._config
        return JsonResponse(
            document(config.model, config.max_choices, serves_more=self._service.serves_more)
        )

    async def _completions(
        self, request: Request, plain: type[AnyBody], served: type[AnyBody]
    ) -> ASGIApp:
        """Return what answers a request for completions.

        Args:
            request: the request.
            plain: the type of its body.
            served: the type for completers that take more.

        Raises:
            ApiError: the request cannot be answered as it is.
        """
        client = self._service.client(request.headers.get("authorization"))
        body_class = served if serves_more(client.completer) else plain
        held, news = self._bodies.open(), News()
        try:
            body = _parsed(await held.read(request), body_class)
            asked = self._requests(body)
            work = self._service.start(client, _told(asked, news) if body.stream else asked)
        except BaseException:
            held.release()
            raise
        work.add_done_callback(lambda _: held.release())
        why_given_up = partial(self._service.why_given_up, client)
        if not body.stream:
            return PendingResponse(work, why_given_up, partial(_whole, body))
        chunks = _chunks(body)
        return PendingStream(
            work, why_given_up, chunks.rest, self._config.keep_alive_seconds, news, chunks.of
        )

    def _requests(self, body: ChatBody | TextBody) -> list[CompletionRequest]:
        """Return what a valid body asks.

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
        return requests

    def _check_model(self, name: str) -> None:
        """Raise ApiError unless the model is the one that there is."""
        if name != self._config.model:
            raise ApiError(
                404,
                f"model: {name[:80]!r} was found, and there is only {self._config.model!r}",
                code="model_not_found",
                param="model",
            )


def _parsed(data: bytes, body_class: type[AnyBody]) -> AnyBody:
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


def _told(requests: list[CompletionRequest], news: News) -> list[CompletionRequest]:
    """Return requests whose deltas are told, numbered through, by completers that can do that."""
    told: list[CompletionRequest] = []
    number = 0
    for asked in requests:
        if isinstance(asked, ServedRequest):
            tell = partial(_tell, news, number)
            told.append(replace(asked, tell=tell))
        else:
            told.append(asked)
        number += asked.count
    return told


def _tell(news: News, before: int, delta: Delta) -> None:
    """Add the delta of a completion that stands behind those of other prompts."""
    news.add(replace(delta, choice=before + delta.choice))


def _whole(body: ChatBody | TextBody, answers: list[CompletionAnswer]) -> Any:
    """Return the answers to a body."""
    if isinstance(body, ChatBody):
        return ChatAnswer(answers[0], body.model, logprobs=bool(body.logprobs)).whole()
    return TextAnswer(answers, body.model, logprobs=body.logprobs is not None).whole()


def _chunks(body: ChatBody | TextBody) -> Chunks:
    """Return what writes the answers to a body in chunks."""
    usage = body.includes_usage
    if isinstance(body, ChatBody):
        return ChatChunks(body.model, logprobs=bool(body.logprobs), usage=usage)
    return TextChunks(body.model, logprobs=body.logprobs is not None, usage=usage)


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
