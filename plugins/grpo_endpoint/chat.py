"""Requests at /v1/chat/completions: their fields, and what they ask of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from grpo_core.protocol.endpoint import CompletionRequest
from grpo_endpoint.errors import ApiError
from grpo_endpoint.fields import Body, Name, Only, Sampling
from grpo_endpoint.messages import ChatMessage, chat_messages

MAX_MESSAGES = 8192
_MAX_TOOLS = 256
_MAX_METADATA = 64


class FunctionDefinition(Body):
    """Describes a function."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments, an object."""
    strict: bool | None = None
    """Changes nothing: arguments are as the policy writes them."""

    @field_validator("parameters")
    @classmethod
    def _check_parameters(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        properties = (parameters or {}).get("properties", {})
        if not isinstance(properties, dict) or not all(
            isinstance(schema, dict) for schema in properties.values()
        ):
            raise ValueError("properties has to be an object of JSON schemas")
        return parameters


class ToolDefinition(Body):
    """Describes a tool that the policy may call."""

    type: Literal["function"]
    function: FunctionDefinition

    def for_templates(self) -> dict[str, Any]:
        """Return the description as chat templates take it."""
        function = {
            "name": self.function.name,
            "description": self.function.description or "",
            "parameters": self.function.parameters or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A JSON schema with a name."""

    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None
    """The completion is of the schema in any case."""


class JsonSchemaFormat(Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class ChatBody(Sampling):
    """Asks for the next message of a chat."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    """The chat so far."""
    max_completion_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Another name of `max_tokens`."""
    tools: Annotated[list[ToolDefinition], Field(max_length=_MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    """The tools that the policy may call."""
    tool_choice: Literal["auto", "none"] | None = None
    """none: the policy is told of no tools."""
    logprobs: bool | None = None
    """Send the log-prob of each token."""
    response_format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
        | None
    ) = None
    """What the completion has to be."""
    metadata: Annotated[dict[str, str], Field(max_length=_MAX_METADATA)] | None = None
    """Changes nothing."""
    safety_identifier: Name | None = None
    """Changes nothing."""
    prompt_cache_key: Name | None = None
    """Changes nothing."""
    prompt_cache_retention: Name | None = None
    """Changes nothing."""
    service_tier: Annotated[Any, Only((None, "auto", "default"))] = None
    """There are no others."""
    store: Annotated[Any, Only((None, False))] = None
    """Nothing is stored."""
    parallel_tool_calls: Annotated[Any, Only((None, True))] = None
    """The policy may write several calls in a message."""
    top_logprobs: Annotated[Any, Only((None, 0))] = None
    """Not supported."""
    modalities: Annotated[Any, Only((None, ["text"]))] = None
    """There is only text."""
    verbosity: Annotated[Any, Only((None, "medium"))] = None
    """Not supported."""
    reasoning_effort: Annotated[Any, Only((None,))] = None
    """Not supported."""
    prediction: Annotated[Any, Only((None,))] = None
    """Not supported."""
    audio: Annotated[Any, Only((None,))] = None
    """Not supported."""
    web_search_options: Annotated[Any, Only((None,))] = None
    """Not supported."""
    functions: Annotated[Any, Only((None,))] = None
    """Not supported; see `tools`."""
    function_call: Annotated[Any, Only((None,))] = None
    """Not supported; see `tool_choice`."""

    def requests(self) -> list[CompletionRequest]:
        """Return what is asked of the policy, as a single request.

        Raises:
            ApiError: the messages do not follow each other as they have to, or two parameters
                contradict each other.
        """
        with_tools = bool(self.tools) and self.tool_choice != "none"
        schema = _schema(self.response_format)
        if with_tools and schema is not None:
            raise ApiError(
                400,
                "response_format: JSON and tools exclude each other here, as calls of tools are "
                "other texts; leave one of them out, or set tool_choice to none",
                param="response_format",
            )
        budgets = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(budgets) > 1:
            raise ApiError(
                400,
                f"max_completion_tokens: {self.max_completion_tokens} was found, and max_tokens is "
                f"{self.max_tokens}; send only one of them",
                param="max_completion_tokens",
            )
        tools = [tool.for_templates() for tool in self.tools or ()] if with_tools else []
        return [
            CompletionRequest(
                prompt=chat_messages(self.messages),
                tools=tools,
                max_tokens=next(iter(budgets), None),
                stop=self.stops,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=self.seed,
                count=self.n or 1,
                json_schema=schema,
            )
        ]


def _schema(
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None,
) -> Mapping[str, Any] | None:
    if isinstance(response_format, JsonSchemaFormat):
        return response_format.json_schema.schema_
    return {"type": "object"} if isinstance(response_format, JsonObjectFormat) else None
