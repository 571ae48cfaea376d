"""Check the address of an OpenAI-compatible endpoint, and take its key from the environment.

No message repeats a password or a key.
"""

from __future__ import annotations

import contextlib
import os
import re
from urllib.parse import parse_qsl, urlsplit

from grpo_core.protocol.errors import ConfigError

NO_KEY = "none"
"""Key for endpoints that need none, since the client requires one."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_SECRET_NAME = re.compile(r"key|token|secret|sig|pass|pwd|auth", re.IGNORECASE)
_KEY = re.compile(r"[!-~]+")


def is_variable_name(name: str) -> bool:
    """Return whether a text is the name of an environment variable, and no key by mistake."""
    return _VARIABLE.fullmatch(name) is not None


def key_in(variable: str, *, subject: str) -> str:
    """Return the key in an environment variable; "" if it is not set.

    Args:
        variable: its name; a text that may be a key instead is not repeated in messages.
        subject: who needs the key, for the message.

    Raises:
        ConfigError: the key cannot be sent.
    """
    value = os.environ.get(variable, "") if "\0" not in variable else ""
    if value and _KEY.fullmatch(value) is None:
        problem = "it holds a space, a line break or a character that is not ASCII; remove it"
        raise ConfigError(f"{subject} cannot send the key in {place_of(variable)}: {problem}")
    return value


def place_of(variable: str) -> str:
    """Return what a message calls an environment variable."""
    named = is_variable_name(variable)
    return f"the environment variable {variable}" if named else "the variable named by `key`"


def check_address(url: str, *, subject: str, option: str, key_option: str) -> None:
    """Check the address of an endpoint.

    Args:
        url: the address.
        subject: who takes it, for the message.
        option: the name of the setting or option that holds it.
        key_option: the one that names the variable with the key.

    Raises:
        ConfigError: it is no address, or it holds a key or a password.
    """
    advice = f"put the key into the environment variable that {key_option} names"
    why = "since settings are written into run folders"
    if "@" in url.partition("?")[0]:
        raise ConfigError(
            f"{subject} takes no user name or password in {option}, {why}; remove it and {advice}"
        )
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
        if any(_SECRET_NAME.search(name) for name in names):
            raise ConfigError(f"{subject} takes no key in the query of {option}, {why}; {advice}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return
    raise ConfigError(
        f"{subject} needs an address as {option} that begins with http:// or https:// and names a "
        "host"
    )
