"""Define the types of what the server answers, as the OpenAI API has them."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

FinishReason = Literal["stop", "length", "tool_calls"]


class FunctionCall(TypedDict):
    """A called function."""

    name: str
    arguments: str


class WrittenCall(TypedDict):
    """A call of a tool; `index` is its number, in a chunk."""

    index: NotRequired[int]
    id: str
    type: Literal["function"]
    function: FunctionCall


class AnswerMessage(TypedDict):
    """A message of the policy; `reasoning_content` is there if it thought before its content."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    refusal: None
    tool_calls: NotRequired[list[WrittenCall]]


class LikelyToken(TypedDict):
    """A token and its log-prob; `bytes` is null where the token is no whole text."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(LikelyToken):
    """A token that was drawn, and the most likely ones at its place, if they were asked for."""

    top_logprobs: list[LikelyToken]


class ChatLogprobs(TypedDict):
    """The log-probs of a message."""

    content: list[TokenLogprob]
    refusal: None


class ChatChoice(TypedDict):
    """A message that answers a chat."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class Usage(TypedDict):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(TypedDict):
    """The answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class TextLogprobs(TypedDict):
    """The log-probs of a text; the first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(TypedDict):
    """A continuation of a text; in chunks, `finish_reason` is null before the last."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class TextCompletion(TypedDict):
    """The answer to a text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class Model(TypedDict):
    """A model; `max_model_len` is the most tokens of prompt and completion."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: NotRequired[int]


class Models(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[Model]


class Health(TypedDict):
    """Tell a client that the server is running."""

    status: Literal["ok"]
