"""Removes keys and passwords from every text that leaves the judge `llm`, and bounds its length."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

REDACTED = "[redacted]"
LEAST_SECRET_CHARS = 4
"""Shorter values are no secrets, and to replace them would shred every message."""
MAX_SCANNED_CHARS = 100_000
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
    (re.compile(r"\bsk-[\w*.-]{6,}"), REDACTED),
)
"""What is a secret by its form, and what is shown instead."""


class Redactor:
    """Make a text from outside safe to show: without secrets, bounded, and possible to encode.

    Args:
        secrets: values that must never be shown. Patterns find others: passwords in URLs,
            `Bearer ...`, `api_key=...` and what begins with `sk-`.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        shown = {form for value in secrets for form in _forms(value)}
        secret = [form for form in shown if len(form) >= LEAST_SECRET_CHARS]
        self._secrets = sorted(secret, key=len, reverse=True)

    def __call__(self, text: object, *, max_chars: int = 500) -> str:
        """Return `text` without secrets; what is over `max_chars` is cut after they are gone."""
        whole = str(text)
        shown = whole[:MAX_SCANNED_CHARS].encode("utf-8", "replace").decode()
        for value in self._secrets:
            shown = shown.replace(value, REDACTED)
        if len(whole) > MAX_SCANNED_CHARS and self._secrets:
            shown = shown[: -len(self._secrets[0])]  # where a secret may have been cut in two
        for pattern, replacement in _PATTERNS:
            shown = pattern.sub(replacement, shown)
        return shown if len(shown) <= max_chars else f"{shown[: max_chars - 3]}..."


def _forms(secret: str) -> set[str]:
    """Return how a secret may be written: as it is, in a URL, in JSON, in Python, in base64."""
    if not secret:
        return set()
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1], encoded}
