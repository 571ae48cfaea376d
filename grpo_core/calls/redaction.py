"""Remove keys and passwords from texts that an endpoint or its client wrote, and bound them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from html import escape

from grpo_core.words import fit

REDACTED = "[redacted]"
LEAST_SECRET_CHARS = 4
"""Shorter values are not secrets, and replacing them would make every message unreadable."""
MAX_SCANNED_CHARS = 100_000
_LEAST_BEGINNING_CHARS = 8
_PATTERNS = (
    (re.compile(r"://[^\s/?#\"'<>]*@"), f"://{REDACTED}@"),
    (re.compile(r"\b(bearer\s+)[^\s\"',;}]{6,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(r"\b((?:basic|token)\s+)(?=\S*[\d=+/])[\w=+/.-]{8,}", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(
            r"((?:api[-_ ]?key(?: provided)?|authorization|[-_]token|secret|password)"
            r"\\?[\"']?\s*[:=]\s*\\?[\"']?(?:(?:bearer|basic|token)\s+)?)"
            r"(?:[^\s\"',;&}\\]|\\(?![\"']))+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(r"([?&](?:key|token|sig|signature|pass|pwd|auth)=)[^\s\"'<>&#]+", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\bsk-[\w*.-]{6,}"), REDACTED),
)
"""Patterns of secrets, and the replacement for each."""


class Redactor:
    """Make a text from outside safe to show: without secrets, bounded, and possible to encode.

    Args:
        secrets: Values that must never be shown. Patterns find others: passwords in URLs,
            `Bearer ...`, `api_key=...` and values that begin with `sk-`.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = {value for value in secrets if len(value) >= LEAST_SECRET_CHARS}
        forms = given | {_in_base64(value) for value in given}
        self._secrets = sorted(forms, key=len, reverse=True)
        self._patterns = [re.compile("".join(map(_spellings, form))) for form in self._secrets]

    def __call__(self, text: object, *, max_chars: int = 500) -> str:
        """Return `text` without secrets, cut afterwards to at most `max_chars` characters."""
        whole = str(text)
        shown = whole[:MAX_SCANNED_CHARS].encode("utf-8", "replace").decode()
        for secret in self._patterns:
            shown = secret.sub(REDACTED, shown)
        if len(whole) > MAX_SCANNED_CHARS and self._secrets:
            shown = shown[: -len(self._secrets[0])]  # a secret may have been cut in two here
        for value in self._secrets:
            shown = _without_beginning(shown, value)  # the text may have been cut before
        for pattern, replacement in _PATTERNS:
            shown = pattern.sub(replacement, shown)
        return fit(shown, max_chars)


def _in_base64(secret: str) -> str:
    return base64.b64encode(secret.encode("utf-8", "replace")).decode().rstrip("=")


def _spellings(char: str) -> str:
    r"""Return a pattern of the ways to write a character: in a URL, in JSON, in Python, in HTML.

    Each repetition is bounded, so that no text takes long to search: a `\` in JSON in JSON in
    JSON is written as eight of them.
    """
    if char.isascii() and char.isalnum():
        return char
    number, octets = ord(char), char.encode("utf-8", "replace")
    code = "".join(f"%{octet:02x}" for octet in octets)
    units = char.encode("utf-16-be", "surrogatepass").hex()
    escaped = "".join(rf"\\{{1,8}}u{units[i : i + 4]}" for i in range(0, len(units), 4))
    plain = r"\\{1,8}" if char == "\\" else rf"\\{{0,8}}{re.escape(char)}"
    html = rf"&#(?:0{{0,4}}{number}|x0{{0,4}}{number:x});|{re.escape(escape(char))}"
    return rf"(?:{plain}|(?i:{code}|{escaped}|\\{{1,8}}x{number:02x}|{html}))"


def _without_beginning(text: str, secret: str) -> str:
    """Return `text` without the beginning of a secret at its end, where it was cut in two."""
    for size in range(len(secret) - 1, _LEAST_BEGINNING_CHARS - 1, -1):
        if text.endswith(secret[:size]):
            return f"{text[:-size]}{REDACTED}"
    return text
