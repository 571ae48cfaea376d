"""What a completer that serves clients outside of training can be asked besides, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, TypeGuard

from grpo_core import ToolCall
from grpo_core.protocol.endpoint import Choice, Completer, CompletionRequest
from grpo_core.protocol.sampler import Extras

Likely = tuple[tuple[str, float], ...]
"""The texts of the most likely tokens at a place with their log-probs."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Hold what has been added to a completion since the last delta."""

    choice: int
    """Number of the completion within its request."""
    thoughts: str = ""
    content: str = ""
    tokens: tuple[str, ...] = ()
    """The text of each token (T,) that was drawn since; it may end in the midst of `content`."""
    logprobs: tuple[float | None, ...] = ()
    """Log-prob of each token (T,); None for the first token of a prompt."""
    alternatives: tuple[Likely, ...] = ()
    """The most likely tokens (T,) at each place, if they were asked for."""
    calls: tuple[ToolCall, ...] = ()
    """The calls of tools; they come with the last delta."""
    finish: Literal["stop", "length", "tool_calls"] | None = None
    """Why the completion ended; only in its last delta."""


@dataclass(frozen=True, slots=True)
class ServedRequest(CompletionRequest):
    """Asks as `CompletionRequest`, and for more."""

    top_k: int | None = None
    """Draw from the k most likely tokens; 0: from all; None: as the server's settings say."""
    min_p: float | None = None
    """Draw from tokens at least this fraction as likely as the most likely one; None: as `top_k`.
    """
    extras: Extras = field(default_factory=Extras)
    """Bias, penalties and alternatives."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""
    echoes: bool = False
    """Whether the completion begins with its prompt, a text."""
    scores_prompt: bool = False
    """Whether the log-probs of an echoed prompt are wanted."""
    called: str | None = None
    """Name of the tool that has to be called, "" for any; then the completion is JSON of
    `json_schema`. None: no tool has to be called."""
    tell: Callable[[Delta], None] | None = None
    """Is called with what has been added to a completion."""


@dataclass(frozen=True, slots=True)
class ServedChoice(Choice):
    """Holds one completion, and the alternatives of its tokens."""

    alternatives: tuple[Likely, ...] = ()
    """The most likely tokens (T,) at each place, if they were asked for."""


class ServingCompleter(Completer, Protocol):
    """Answers a `ServedRequest` as it answers a `CompletionRequest`."""

    serves_more: bool
    """True."""
    context: int | None
    """Most tokens of prompt and completion; None if unknown."""


def serves_more(completer: Completer) -> TypeGuard[ServingCompleter]:
    """Return whether a completer takes a `ServedRequest`."""
    return bool(getattr(completer, "serves_more", False))


def as_served(request: CompletionRequest, **more: Any) -> ServedRequest:
    """Return a request with further wishes.

    Args:
        request: the request.
        more: fields of `ServedRequest`, in place of those that the request has.
    """
    own = {each.name: getattr(request, each.name) for each in fields(CompletionRequest)}
    return ServedRequest(**{**own, **more})
