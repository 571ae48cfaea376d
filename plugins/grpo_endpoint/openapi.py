"""Describe the server as an OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

import grpo_core
from grpo_endpoint.answer_types import ChatCompletion, Health, Model, Models, TextCompletion
from grpo_endpoint.chat import ChatBody
from grpo_endpoint.errors import ErrorBody
from grpo_endpoint.served_bodies import ServedChatBody, ServedTextBody
from grpo_endpoint.text import TextBody

_ERRORS: Mapping[int, str] = {
    400: "The request is not valid, or contradicts what the server can do.",
    401: "The key is missing, unknown, or no longer in use.",
    403: "A web page sent the request, or it names another host.",
    404: "There is no such model.",
    413: "The body is too large.",
    415: "The body is declared as something else than JSON.",
    429: "Too many requests wait; Retry-After says when to come again.",
    500: "The server failed.",
    503: "The policy cannot be sampled now, or the server closes; Retry-After says when to come "
    "again.",
    504: "There was no answer in time.",
}
_EVENT = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "description": "A chunk as JSON; [DONE] in the last event."}
    },
}
_TYPES: Mapping[Any, JsonSchemaMode] = {
    ChatCompletion: "serialization",
    TextCompletion: "serialization",
    Models: "serialization",
    Model: "serialization",
    Health: "serialization",
    ErrorBody: "serialization",
}


@cache
def document(model: str, max_choices: int, *, serves_more: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document of a server.

    Args:
        model: name of its model.
        max_choices: most completions of a request.
        serves_more: whether it takes what only clients outside of training ask for.
    """
    bodies: tuple[Any, Any] = (
        (ServedChatBody, ServedTextBody) if serves_more else (ChatBody, TextBody)
    )
    types: dict[Any, JsonSchemaMode] = {bodies[0]: "validation", bodies[1]: "validation", **_TYPES}
    places, definitions = TypeAdapter.json_schemas(
        [(kind, mode, TypeAdapter(kind)) for kind, mode in types.items()],
        ref_template="#/components/schemas/{model}",
    )
    for body in bodies:
        properties = definitions["$defs"][body.__name__]["properties"]
        properties["model"]["enum"] = [model]
        properties["n"]["anyOf"][0]["maximum"] = max_choices
    schemas = {kind: places[kind, mode] for kind, mode in types.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "The policy of grpo-core",
            "version": grpo_core.__version__,
            "description": "A server that speaks a part of the OpenAI API.",
        },
        "paths": _paths(schemas, *bodies),
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _paths(schemas: Mapping[Any, Any], chat: Any, text: Any) -> dict[str, Any]:
    """Return what each path answers; `schemas` has the schema of each type, two are bodies."""
    operation = partial(_operation, schemas)
    asked = (400, 401, 403, 404, 413, 415, 429, 500, 503, 504)
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {
            "post": operation(
                "createChatCompletion",
                "Continue a chat.",
                ChatCompletion,
                *asked,
                body=chat,
                stream=True,
            )
        },
        "/v1/completions": {
            "post": operation(
                "createCompletion",
                "Continue a text.",
                TextCompletion,
                *asked,
                body=text,
                stream=True,
            )
        },
        "/v1/models": {"get": operation("listModels", "List the models.", Models, 401, 403, 503)},
        "/v1/models/{model}": {
            "get": operation("retrieveModel", "Describe a model.", Model, 401, 403, 404, 503),
            "parameters": [name],
        },
        "/health": {"get": operation("health", "Tell whether it serves.", Health, 403, 503)},
    }


def _operation(
    schemas: Mapping[Any, Any],
    name: str,
    summary: str,
    result: Any,
    *errors: int,
    body: Any = None,
    stream: bool = False,
) -> dict[str, Any]:
    """Return the description of one operation.

    Args:
        schemas: The schema of each type.
        name: Its name.
        summary: What it does.
        result: The type of its answer.
        errors: The statuses of its errors.
        body: The type of its request, if it takes one.
        stream: Whether the answer can also come in events.
    """
    content = _json(schemas[result])
    if stream:
        content["text/event-stream"] = {"schema": _EVENT}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status in errors:
        responses[str(status)] = {
            "description": _ERRORS[status],
            "content": _json(schemas[ErrorBody]),
        }
    operation: dict[str, Any] = {"operationId": name, "summary": summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(schemas[body])}
    if 401 not in errors:
        operation["security"] = []
    return operation


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
