"""Compare mathematical answers by the package `math-verify`."""

from __future__ import annotations

import logging
import re
from typing import Any

from grpo_core import MissingExtraError
from grpo_env_dataset.answers import BadAnswerError
from grpo_env_dataset.grader import AnswerGrader
from grpo_env_dataset.rows import Row

_MAX_CHARS = 500
"""The most characters of a formula: a longer one is no answer, and could take minutes to read."""
_LARGE = re.compile(r"(?:\^|\*\*)\s*\{?\(?\s*\d{4,}|\d{40,}|\d{4,}\s*!", re.ASCII)
"""Powers, factorials and numbers that would fill the memory."""


_WORDS = re.compile(r"(?=.*[A-Za-z]{4})[A-Za-z ,.?!'-]+")
"""Plain words, which would be read as products of their letters."""


class MathAnswer(AnswerGrader):
    r"""Takes the same value in LaTeX or plain form, as the package `math-verify` compares.

    The package takes any of several formulas for the answer, so only a single one is given to it:
    the content of the only \boxed{...} or $...$, or a text without them.
    """

    raises = True

    def __init__(self) -> None:
        try:
            import math_verify
        except ModuleNotFoundError:
            raise MissingExtraError("env.reward='math'", "graders", package="math-verify") from None
        # It would say at each answer that its own deadline is off; see `_parsed`.
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self._library = math_verify

    def is_right(self, answer: str, reference: str, row: Row) -> bool:
        right, given = self._parsed(reference), self._parsed(answer)
        return bool(self._library.verify(right, given, timeout_seconds=None))

    def check(self, text: str, row: Row, field: str) -> None:
        if not self._parsed(text) or _WORDS.fullmatch(text.strip()):
            raise BadAnswerError(
                f"the field {field!r} holds no single formula that math-verify reads; "
                "env.answer_pattern can cut it out",
                f"{text!r:.60}",
            )

    def why_unread(self, answer: str, row: Row) -> str:
        if self._parsed(answer):
            return ""
        return f"the answer is no single formula that math-verify reads: {answer!r:.60}"

    def _parsed(self, text: str) -> list[Any]:
        """Return what a formula says, read as LaTeX and, if that fails, as a plain expression."""
        formula = single_formula(text)
        if formula is None:
            return []
        for form in (f"${formula}$", formula):
            # Its own deadline is an alarm signal, which only the main thread may set; the verdict
            # has a deadline anyway.
            parsed: list[Any] = self._library.parse(
                form, fallback_mode="no_fallback", parsing_timeout=0
            )
            if parsed:
                return parsed
        return []


def single_formula(text: str) -> str | None:
    r"""Return the only formula of a text, without its marks; None if there is none, or several.

    The marks are \boxed{...}, $...$, $$...$$, \(...\) and \[...\]. Around a box there may be other
    text, since a box is meant as the answer.
    """
    text = text.strip()
    if "\\boxed" in text:
        boxes = re.findall(r"\\boxed\s*\{", text)
        start = text.find("{", text.find("\\boxed"))
        content = _in_braces(text, start) if len(boxes) == 1 == text.count("\\boxed") else None
        if content is None:
            return None
        text = content.strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) > 2 * len(opening):
            text = text[len(opening) : -len(closing)].strip()
            break
    is_several = any(mark in text for mark in ("$", "\\(", "\\[", "\n"))
    if not 0 < len(text) <= _MAX_CHARS or is_several or _LARGE.search(text):
        return None
    return text


def _in_braces(text: str, start: int) -> str | None:
    """Return what is between the brace at `start` and the one that closes it."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + 1 : index]
    return None
