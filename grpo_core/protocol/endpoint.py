"""Define the endpoint: how programs that speak the OpenAI API reach the policy.

A plugin offers one by the hook `grpo_endpoints`: its target is called with its settings and returns
an `Endpoint`, a server. The server knows HTTP, keys and limits; what a request means for the policy
is the business of the `Completer` behind its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Message


class RefusedRequestError(GrpoError):
    """A request cannot be answered as it is; the message says why, and what to change.

    Args:
        message: the message.
        code: `code` of the error that the client gets, as `context_length_exceeded`.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Asks the policy to continue a text or a chat."""

    prompt: str | tuple[int, ...] | tuple[Message, ...]
    """Raw text, tokens, or the messages of a chat. A message of the policy that calls tools has
    `tool_calls`, and its `content` is what it wrote beside them."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the functions that the policy may call, as chat templates take them."""
    max_tokens: int | None = None
    """Most tokens of a completion; None: as many as there is room for."""
    stop: tuple[str, ...] = ()
    """A completion ends with the token that completes one of these strings."""
    temperature: float | None = None
    """None: the one of the run or of the server; so are the next two."""
    top_p: float | None = None
    seed: int | None = None
    count: int = 1
    """Number of completions."""
    json_schema: Mapping[str, Any] | None = None
    """The completion has to be JSON of this schema; None: any text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Holds one completion."""

    text: str
    """What the policy wrote; a stop string at its end is left out."""
    message: Message
    """The same as a message: its calls of tools are in `tool_calls`, with ids, and not in the
    text. A client that sends it back unchanged continues the tokens of this completion."""
    finish: Literal["stop", "length", "tool_calls"]
    """Why it ended: by itself or by a stop string, by its budget, or with calls of tools."""
    token_ids: tuple[int, ...]
    """The sampled tokens (T,), with the end token."""
    tokens: tuple[str, ...]
    """The text of each token (T,)."""
    logprobs: tuple[float, ...]
    """Log-prob of each token (T,) under the full distribution at the temperature."""


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """Answers a request."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    """Number of tokens that were continued."""


class Completer(Protocol):
    """Answers the requests that come with one key."""

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        """Return the completions of a request; a cancelled one is given up.

        Raises:
            RefusedRequestError: the request cannot be answered; the client is to blame.
            GrpoError: the policy cannot be sampled; the client is not to blame.
        """
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """Describe how a client reaches the endpoint."""

    base_url: str
    """The address, as a client's `base_url` or OPENAI_BASE_URL; it ends with "/v1"."""
    key: str
    """The key, as a client's `api_key` or OPENAI_API_KEY."""
    model: str
    """Name of the only model."""
    socket: str | None = None
    """Path of a Unix socket at which the server listens, too; None: it has none."""


class Endpoint(Protocol):
    """Serves the policy to programs that speak the OpenAI API.

    It belongs to one event loop, the one of `open`.
    """

    async def open(self) -> None:
        """Start to listen; more than one call is harmless.

        Raises:
            UserError: it cannot listen, as where the port is taken.
        """
        ...

    def admit(self, completer: Completer, *, key: str | None = None) -> Access:
        """Register a completer under a new key, and return the access for its clients.

        Args:
            completer: answers the requests that come with the key.
            key: the key; None: a random one; "": requests without a key, or with an unknown one.
        """
        ...

    async def dismiss(self, key: str) -> None:
        """Refuse the key from now on, and give up its requests in progress; wait until they end."""
        ...

    async def close(self) -> None:
        """End all requests and stop listening."""
        ...
