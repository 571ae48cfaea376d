"""Requests at /v1/completions: their fields, and what they ask of the policy."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from grpo_core.protocol.endpoint import CompletionRequest
from grpo_endpoint.errors import TAG
from grpo_endpoint.fields import Only, Sampling

DEFAULT_MAX_TOKENS = 16
"""The budget of a request that names none, as in the real API."""

MAX_PROMPTS = 4096

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


_TEXT, _TEXTS, _TOKENS, _LISTS = map(TAG.format, ("text", "texts", "tokens", "lists of tokens"))


def _kind_of_prompt(value: Any) -> str:
    if isinstance(value, str):
        return _TEXT
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, str):
        return _TEXTS
    return _LISTS if isinstance(first, list) else _TOKENS


Prompt = Annotated[
    Annotated[str, Field(min_length=1), Tag(_TEXT)]
    | Annotated[
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
        ],
        Tag(_TEXTS),
    ]
    | Annotated[Tokens, Tag(_TOKENS)]
    | Annotated[
        Annotated[list[Tokens], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)],
        Tag(_LISTS),
    ],
    Discriminator(_kind_of_prompt),
]


class TextBody(Sampling):
    """Asks for the continuation of texts."""

    prompt: Prompt
    """A text, its tokens, or several of one kind; each is continued."""
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = DEFAULT_MAX_TOKENS
    """Most tokens of a completion."""
    logprobs: Annotated[Any, Only((None, 0))] = None
    """0: send the log-prob of each token."""
    echo: Annotated[Any, Only((None, False))] = None
    """Not supported."""
    suffix: Annotated[Any, Only((None, ""))] = None
    """Not supported."""
    best_of: Annotated[Any, Only((None, 1))] = None
    """Not supported."""

    def requests(self) -> list[CompletionRequest]:
        """Return what is asked of the policy, a request for each prompt."""
        return [
            CompletionRequest(
                prompt=prompt,
                max_tokens=self.max_tokens or DEFAULT_MAX_TOKENS,
                stop=self.stops,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=self.seed,
                count=self.n or 1,
            )
            for prompt in self._prompts()
        ]

    def _prompts(self) -> list[tuple[int, ...] | str]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        parts = self.prompt
        if tokens := tuple(part for part in parts if isinstance(part, int)):
            return [tokens]
        return [part if isinstance(part, str) else tuple(part) for part in parts]  # type: ignore
