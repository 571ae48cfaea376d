"""Say which strings are texts."""

from __future__ import annotations


def is_text(value: str) -> bool:
    """Return whether the string can be encoded as UTF-8.

    Half of a surrogate pair ("\\ud800", from JSON or a terminal) cannot be encoded, and tokenizers
    raise an exception for it.
    """
    return value.encode(errors="ignore").decode() == value
