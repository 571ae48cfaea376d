"""Define what compares answers with the references of rows."""

from __future__ import annotations

from grpo_env_dataset.rows import Row

MAX_CHARS = 20_000
"""The most characters of an answer that a library reads."""


class AnswerGrader:
    """Compares answers with the references of rows."""

    raises: bool = False
    """It is code of a library that raises at some answers, or does not end."""
    asks: str = ""
    """What the default system message asks for, besides the tag."""

    def is_right(self, answer: str, reference: str, row: Row) -> bool:
        """Return whether an answer agrees with a reference of the row."""
        raise NotImplementedError

    def check(self, text: str, row: Row, field: str) -> None:
        """Check that answers can be compared with a reference.

        Args:
            text: the reference as it stands in the row.
            row: the row.
            field: the name of its field, for messages.

        Raises:
            BadAnswerError: they cannot.
        """

    def as_answer(self, text: str, row: Row) -> str:
        """Return a reference in the form in which a completion would give it."""
        return text

    def why_unread(self, answer: str, row: Row) -> str:
        """Return why an answer can agree with no reference at all; "" if it can."""
        return ""
