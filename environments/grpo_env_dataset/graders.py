"""Grade answers by the rewards that need no function of the user's own.

Each compares the completion's answer with a reference answer of the row. `code` and `judge` are
environments of their own, since they need a sandbox and a judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_core import MissingExtraError
from grpo_core.extract import parse_decimal, parse_json, ungrouped
from grpo_env_dataset.answers import (
    BadAnswerError,
    NoNumberError,
    is_blank,
    is_same_number,
    is_same_text,
    read_number,
)
from grpo_env_dataset.grader import MAX_CHARS, AnswerGrader
from grpo_env_dataset.math_answers import MathAnswer
from grpo_env_dataset.options import letter_of, options_of, read_choice
from grpo_env_dataset.rows import Row


class ExactAnswer(AnswerGrader):
    """Takes the same text, white space, case and composition of letters aside."""

    def is_right(self, answer: str, reference: str, row: Row) -> bool:
        return is_same_text(answer, reference)


class NumberAnswer(AnswerGrader):
    """Takes the same number, as `parse_answer_number` reads it."""

    def is_right(self, answer: str, reference: str, row: Row) -> bool:
        return is_same_number(answer, reference)

    def check(self, text: str, row: Row, field: str) -> None:
        if parse_decimal(ungrouped(text)) is None:
            raise NoNumberError(
                f"the field {field!r} is not a number of at most 30 digits", f"{text!r:.60}"
            )

    def why_unread(self, answer: str, row: Row) -> str:
        is_read = any(read_number(answer, right) is not None for right in ("1", "0.5"))
        return "" if is_read else f"the answer is not one number: {answer!r:.60}"


class ChoiceAnswer(AnswerGrader):
    """Takes the letter, or the text, of the right one among the options of the row."""

    asks = "the letter of the right option"

    def is_right(self, answer: str, reference: str, row: Row) -> bool:
        options = options_of(row)
        return read_choice(answer, options) == letter_of(reference, options)

    def check(self, text: str, row: Row, field: str) -> None:
        options = options_of(row)
        if not options:
            raise BadAnswerError(
                "there are no options: neither a list in choices, options or endings, nor columns "
                "A, B, ...",
                f"the row has {', '.join(row)}",
            )
        if letter_of(text, options) is None:
            raise BadAnswerError(
                f"the field {field!r} names none of the options", f"{text!r:.60} of {options!r:.80}"
            )

    def as_answer(self, text: str, row: Row) -> str:
        return letter_of(text, options_of(row)) or text

    def why_unread(self, answer: str, row: Row) -> str:
        options = options_of(row)
        if read_choice(answer, options) is not None:
            return ""
        return f"the answer names no option of {', '.join(options)}: {answer!r:.60}"


class ContainsAnswer(AnswerGrader):
    """Takes an answer that has the reference in it, as whole words.

    It pays whoever lists many answers; use it where there is one thing to mention.
    """

    def is_right(self, answer: str, reference: str, row: Row) -> bool:
        words, wanted = _words(answer[:MAX_CHARS]), _words(reference)
        return f" {wanted} " in f" {words} "

    def check(self, text: str, row: Row, field: str) -> None:
        if is_blank(_words(text)):
            raise BadAnswerError(f"the field {field!r} has no words to look for", f"{text!r:.60}")


def _words(text: str) -> str:
    """Return the words of a text in small letters, with one space between two."""
    letters = (character if character.isalnum() else " " for character in text.casefold())
    return " ".join("".join(letters).split())


class PatternAnswer(AnswerGrader):
    """Takes an answer that the regular expression in the row matches as a whole.

    It is matched by RE2 in a time that is linear in the answer.
    """

    def __init__(self) -> None:
        try:
            import re2
        except ModuleNotFoundError:
            raise MissingExtraError("env.reward='regex'", "graders", package="google-re2") from None
        self._re2 = re2
        self._options = re2.Options()
        self._options.log_errors = False
        self._patterns: dict[str, Any] = {}

    def is_right(self, answer: str, reference: str, row: Row) -> bool:
        return self._compiled(reference).fullmatch(answer[:MAX_CHARS]) is not None

    def check(self, text: str, row: Row, field: str) -> None:
        try:
            self._compiled(text)
        except self._re2.error as error:
            reason = error.args[0] if error.args else error
            reason = reason.decode() if isinstance(reason, bytes) else str(reason)
            raise BadAnswerError(
                f"the field {field!r} is no regular expression that RE2 takes", f"{reason}"
            ) from None

    def _compiled(self, pattern: str) -> Any:
        if pattern not in self._patterns:
            self._patterns[pattern] = self._re2.compile(pattern, self._options)
        return self._patterns[pattern]


class SchemaAnswer(AnswerGrader):
    """Takes JSON that the JSON schema in the row allows."""

    def __init__(self) -> None:
        try:
            import jsonschema
        except ModuleNotFoundError:
            raise MissingExtraError(
                "env.reward='json_schema'", "graders", package="jsonschema"
            ) from None
        self._library = jsonschema

    def is_right(self, answer: str, reference: str, row: Row) -> bool:
        value = parse_json(answer.strip(), max_chars=MAX_CHARS)
        schema = parse_json(reference)
        if value is None or schema is None:
            return False
        kind = self._library.validators.validator_for(
            schema.value, self._library.Draft202012Validator
        )
        return bool(kind(schema.value).is_valid(value.value))

    def check(self, text: str, row: Row, field: str) -> None:
        schema = parse_json(text)
        if schema is None or not isinstance(schema.value, dict):
            raise BadAnswerError(f"the field {field!r} holds no JSON schema", f"{text!r:.60}")
        kind = self._library.validators.validator_for(
            schema.value, self._library.Draft202012Validator
        )
        try:
            kind.check_schema(schema.value)
        except self._library.SchemaError as error:
            raise BadAnswerError(
                f"the field {field!r} holds no JSON schema", f"{error.message:.80}"
            ) from None

    def why_unread(self, answer: str, row: Row) -> str:
        is_json = parse_json(answer.strip(), max_chars=MAX_CHARS) is not None
        return "" if is_json else f"the answer is not JSON: {answer!r:.60}"


GRADERS: Mapping[str, type[AnswerGrader]] = {
    "exact": ExactAnswer,
    "number": NumberAnswer,
    "choice": ChoiceAnswer,
    "contains": ContainsAnswer,
    "regex": PatternAnswer,
    "json_schema": SchemaAnswer,
    "math": MathAnswer,
}
"""The rewards that need no function of the user's own."""
