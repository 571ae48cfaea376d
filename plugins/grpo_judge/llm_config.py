"""The settings of the judge `llm`, and what is refused before any call is made."""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from grpo_core import ConfigError
from grpo_judge.prompts import RUBRIC

NO_KEY = "none"
"""For endpoints that want none; the client insists on one."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_SECRET_NAME = re.compile(r"key|token|secret|sig|pass|pwd|auth", re.IGNORECASE)
_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class LLMConfig:
    """Settings of the judge `llm`."""

    model: str = ""
    """The model, as the endpoint calls it."""
    base_url: str = ""
    """The endpoint; empty for OpenAI's. It may hold no user name or password."""
    key: str = "OPENAI_API_KEY"
    """The name of the environment variable that holds the API key."""
    rubric: str = RUBRIC
    """For requests that bring none."""
    votes: int = 1
    """Answers to each text, whose median counts."""
    temperature: float = 0.0
    """Of the answers; set it above 0 with several votes."""
    retries: int = 4
    """How often a call is repeated that fails while the endpoint answers a neutral text. One
    that fails each time gets the lowest score."""
    timeout_seconds: float = 60.0
    """How long one call may take, from the first byte sent to the last received."""
    patience_seconds: float = 120.0
    """How long verdicts wait for an endpoint that is unavailable; then they are errors."""
    at_once: int = 64
    """Calls in flight."""
    per_minute: float = 0.0
    """Most calls in a minute, retries and probes among them, at even distances; 0: no limit."""
    max_chars: int = 100_000
    """Longer texts get the lowest score without a call."""
    max_tokens: int = 200
    """Of an answer."""
    cache: str = ""
    """A file where judgements are kept; empty for none."""
    price_in: float = 0.0
    """Of a million tokens of a prompt, for the cost in the judgement's detail."""
    price_out: float = 0.0
    """Of a million tokens of an answer."""
    schema: bool = True
    """Ask for JSON by its schema, which some endpoints do not know."""


def check(config: LLMConfig) -> None:
    """Raise ConfigError for settings that cannot be used. No message repeats a password."""
    calls = config.votes >= 1 and config.retries >= 0 and config.at_once >= 1
    for usable, needed in (
        (config.model, "a model; set judges.NAME.settings.model and base_url for your endpoint"),
        (calls, "votes and at_once of at least 1, and retries of at least 0"),
        (0 <= config.per_minute < math.inf, "finite per_minute of at least 0"),
        (0 < config.timeout_seconds < math.inf, "finite timeout_seconds above 0"),
        (0 <= config.patience_seconds < math.inf, "finite patience_seconds of at least 0"),
    ):
        if not usable:
            raise ConfigError(f"the judge 'llm' needs {needed}")
    if config.base_url:
        _check_url(config.base_url)


def api_key(config: LLMConfig) -> str:
    """Return the API key from the environment.

    Raises:
        ConfigError: it is needed and missing, or cannot be sent. The message does not repeat it,
            nor what stands in `key` if that may be a key instead of a variable's name.
    """
    named = _VARIABLE.fullmatch(config.key) is not None
    where = f"the environment variable {config.key}" if named else "the variable named by `key`"
    value = os.environ.get(config.key, "") if "\0" not in config.key else ""
    if value and _KEY.fullmatch(value) is None:
        problem = "it holds a space, a line break or a character that is not ASCII; remove it"
        raise ConfigError(f"the judge 'llm' cannot send the key in {where}: {problem}")
    if value or (config.base_url and (named or not config.key)):
        return value or NO_KEY
    hint = "" if named else "; `key` is the name of a variable, never the key itself"
    remedy = "leave `key` empty" if config.base_url else "name a base_url"
    raise ConfigError(f"the judge 'llm' finds no key in {where}; set it, or {remedy}{hint}")


def _check_url(base_url: str) -> None:
    if "@" in base_url.partition("?")[0]:
        raise ConfigError(
            "the judge 'llm' takes no user name or password in base_url, since settings are "
            "written into run folders; remove it and put the key into the environment variable "
            "that judges.NAME.settings.key names"
        )
    with contextlib.suppress(ValueError):
        url = urlsplit(base_url)
        named = [name for name, _ in parse_qsl(url.query, keep_blank_values=True)]
        if any(_SECRET_NAME.search(name) for name in named):
            raise ConfigError(
                "the judge 'llm' takes no key in the query of base_url, since settings are written "
                "into run folders; put it into the environment variable that "
                "judges.NAME.settings.key names"
            )
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return
    needed = "a base_url that begins with http:// or https:// and names a host"
    raise ConfigError(f"the judge 'llm' needs {needed}")
