"""Say what was read from a text, or why nothing was."""

from __future__ import annotations

from dataclasses import dataclass

WHITE_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Block:
    """Holds a marked part of a text; `text[start:end]` is that part with its marks."""

    content: str
    """The text between the marks with its white space.

    The lines of a fenced block have neither the indent of the fence nor one that all of them share,
    and end with "\\n".
    """
    start: int
    """The index of the first character of the opening mark."""
    end: int
    """The index after the last character of the closing mark."""
    language: str = ""
    """The label of an opening code fence, in lower case."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Explain why no answer was read; a verdict's note can repeat the reason."""

    reason: str
    """What was looked for, and what was there."""
