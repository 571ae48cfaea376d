"""The settings of the judge `llm`, and their checks before any call is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from grpo_core import ConfigError, Harmless
from grpo_core.calls.api_settings import (
    NO_KEY,
    check_address,
    is_variable_name,
    key_in,
    place_of,
)
from grpo_judge.prompts import RUBRIC

SUBJECT = "the judge 'llm'"
"""What messages call the judge."""


@dataclass(frozen=True, slots=True)
class LLMConfig:
    """Settings of the judge `llm`."""

    model: Annotated[str, Harmless] = ""
    """The model's name at the endpoint."""
    base_url: str = ""
    """The endpoint; empty for OpenAI's. It may not contain a user name or password."""
    key: str = "OPENAI_API_KEY"
    """The name of the environment variable that holds the API key."""
    rubric: Annotated[str, Harmless] = RUBRIC
    """Rubric of requests that have none."""
    votes: int = 1
    """Number of answers for each text; their median counts."""
    temperature: float = 0.0
    """Sampling temperature of the answers; set it above 0 with several votes."""
    retries: int = 4
    """How often a call is repeated that fails while the endpoint answers for a neutral text, before
    calls of the text are compared with calls of its own words in another order."""
    timeout_seconds: float = 60.0
    """How long one call may take, from the first byte sent to the last received."""
    patience_seconds: float = 120.0
    """How long verdicts wait for an endpoint that is unavailable, or limits its rate and grades
    nothing; after that they are errors."""
    at_once: int = 64
    """Largest number of calls in flight."""
    per_minute: float = 0.0
    """Largest number of calls in a minute, with retries and probes, evenly spaced; 0 for no limit.
    It is lowered as far as the endpoint asks for it."""
    max_chars: int = 100_000
    """Longer texts get the lowest score without a call."""
    max_tokens: int = 200
    """Largest number of tokens of an answer, thoughts included. It is raised for later calls if an
    answer is cut before its grade."""
    most_tokens: int = 8192
    """Bound up to which `max_tokens` is raised; an answer that is still cut is an error."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request, such as `request.reasoning_effort=low`; null removes a field
    that is sent otherwise, such as temperature or seed."""
    cache: str = ""
    """File in which judgements are cached; empty for none."""
    price_in: float = 0.0
    """Price of a million prompt tokens, for the cost in the judgement's detail."""
    price_out: float = 0.0
    """Price of a million answer tokens."""
    schema: bool = True
    """Whether to ask for JSON by its schema, which some endpoints do not support."""


def check(config: LLMConfig) -> None:
    """Check the settings.

    Raises:
        ConfigError: A setting cannot be used. No message repeats a password.
    """
    counts_are_valid = config.votes >= 1 and config.retries >= 0 and config.at_once >= 1
    for is_valid, needed in (
        (config.model, "a model; set judges.NAME.settings.model and base_url for your endpoint"),
        (counts_are_valid, "votes and at_once of at least 1, and retries of at least 0"),
        (0 <= config.per_minute < math.inf, "finite per_minute of at least 0"),
        (1 <= config.max_tokens <= config.most_tokens, "max_tokens from 1 to most_tokens"),
        (0 < config.timeout_seconds < math.inf, "finite timeout_seconds above 0"),
        (0 <= config.patience_seconds < math.inf, "finite patience_seconds of at least 0"),
    ):
        if not is_valid:
            raise ConfigError(f"{SUBJECT} needs {needed}")
    if own := sorted({"model", "messages", "stream", "n", "response_format"} & set(config.request)):
        raise ConfigError(
            f"{SUBJECT} sets the field {own[0]!r} of its requests itself; remove it from `request`"
        )
    if config.base_url:
        check_address(
            config.base_url,
            subject=SUBJECT,
            option="base_url",
            key_option="judges.NAME.settings.key",
        )


def request_fields(config: LLMConfig) -> dict[str, Any]:
    """Return the further fields of a request; the text "null", as TOML has to write it, is None."""
    return {name: None if value == "null" else value for name, value in config.request.items()}


def api_key(config: LLMConfig) -> str:
    """Return the API key from the environment.

    Raises:
        ConfigError: It is needed and missing, or cannot be sent. The message does not repeat it,
            nor the value of `key` if that may be a key instead of a variable's name.
    """
    is_name = is_variable_name(config.key)
    value = key_in(config.key, subject=SUBJECT)
    if value or (config.base_url and (is_name or not config.key)):
        return value or NO_KEY
    hint = "" if is_name else "; `key` is the name of a variable, never the key itself"
    remedy = "leave `key` empty" if config.base_url else "name a base_url"
    raise ConfigError(
        f"{SUBJECT} finds no key in {place_of(config.key)}; set it, or {remedy}{hint}"
    )
