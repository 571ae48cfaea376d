"""Types of fields that several kinds of requests have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic_core import core_schema

from grpo_core.calls.json_limits import check_json
from grpo_endpoint.errors import TAG

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 500
"""As much of the end of a completion is read again after each of its tokens."""
MAX_PARTS = 4096
"""Parts of one message."""
MAX_NAME_CHARACTERS = 1024


class Body(BaseModel):
    """Takes JSON of exactly the types that are written, and no unknown fields."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        populate_by_name=True,
    )


@dataclass(frozen=True, slots=True, eq=False)  # equal types are shared, and 0 equals False
class Only:
    """Takes nothing but given values: those of a parameter that change nothing here."""

    values: tuple[Any, ...]
    """The values, as JSON data."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [*self.values]}

    def _check(self, value: Any) -> Any:
        # A bool equals a number in Python.
        if any(
            value == own and isinstance(value, bool) == isinstance(own, bool) for own in self.values
        ):
            return value
        values = " or ".join(json.dumps(own) for own in self.values)
        raise ValueError(f"this server supports only {values}; leave the parameter out")


_TEXT, _PARTS = TAG.format("text"), TAG.format("parts")


def _kind_of_texts(value: Any) -> str:
    return _TEXT if isinstance(value, str) else _PARTS


class TextPart(Body):
    """A part of a message; there are no images, sounds or files."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, part: Any) -> Any:
        if isinstance(part, dict) and part.get("type", "text") != "text":
            raise ValueError("this server takes parts of the type text alone")
        return part


Content = Annotated[
    Annotated[str, Tag(_TEXT)]
    | Annotated[
        Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)],
        Tag(_PARTS),
    ],
    Discriminator(_kind_of_texts),
]
"""A text, or its parts, which are joined."""

StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]
"""A text that changes nothing, or names something."""
Stop = Annotated[
    Annotated[StopText, Tag(_TEXT)]
    | Annotated[
        Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True)],
        Tag(_PARTS),
    ],
    Discriminator(_kind_of_texts),
]
"""A text, or several."""


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool = False
    """End with a chunk that has the numbers of tokens."""
    include_obfuscation: Annotated[Any, Only((None, False))] = None
    """Nothing is added to the chunks."""
    continuous_usage_stats: Annotated[Any, Only((None, False))] = None
    """Not supported; see `include_usage`."""


class Sampling(Body):
    """Hold the parameters that all requests for completions share."""

    model: str
    """Name of the model."""
    stream: bool | None = None
    """Send the answer in chunks, by server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of a streamed answer."""
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Most tokens of a completion."""
    n: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Number of completions."""
    stop: Stop | None = None
    """A completion ends before one of these texts."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Temperature of sampling; 0 takes the most likely token."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw from the smallest set of tokens that holds this much probability."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """Equal requests with equal seeds get equal completions, where the sampler can do that."""
    user: Name | None = None
    """Changes nothing."""
    frequency_penalty: Annotated[Any, Only((None, 0))] = None
    """Not supported."""
    presence_penalty: Annotated[Any, Only((None, 0))] = None
    """Not supported."""
    logit_bias: Annotated[Any, Only((None, {}))] = None
    """Not supported."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the texts that end a completion."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        """Return whether a streamed answer ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


def joined(content: str | list[TextPart] | None) -> str:
    """Return the text of a content."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def json_object(text: str) -> Mapping[str, Any]:
    """Return the object that a JSON text holds.

    Raises:
        ValueError: it holds none.
    """
    try:
        check_json(text)
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
