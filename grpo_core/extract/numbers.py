"""Parse numbers that a text consists of."""

from __future__ import annotations

import re
from decimal import Decimal

from grpo_core.extract.blocks import WHITE_SPACE

MAX_DIGITS = 30
"""The default limit; a caller may set up to 4300, beyond which Python itself refuses to convert."""
_DIGITS = frozenset("0123456789")
_GROUPED_NUMBER = re.compile(r"-?\d{1,3}(,\d{3})++(\.\d+)?", re.ASCII)


def parse_integer(text: str, *, max_digits: int = MAX_DIGITS) -> int | None:
    """Return the integer that `text` consists of, or None.

    It is an optional "-" and at most `max_digits` ASCII digits, leading zeros among them: "007" is
    7. Spaces, tabs and line ends around it are allowed.
    """
    text = text.strip(WHITE_SPACE)
    return int(text) if _all_digits(text.removeprefix("-"), max_digits) else None


def parse_decimal(text: str, *, max_digits: int = MAX_DIGITS) -> Decimal | None:
    """Return the plain decimal number that `text` consists of, or None.

    It has the form that `parse_integer` accepts, with an optional "." between digits; ".5", "5.",
    an exponent, NaN and infinity are refused. `max_digits` limits the digits before and after the
    "." together. "1.500" equals "1.5"; compare texts where the number of digits counts.
    """
    text = text.strip(WHITE_SPACE)
    whole, point, fraction = text.removeprefix("-").partition(".")
    if not _all_digits(whole, max_digits) or (
        point and not _all_digits(fraction, max_digits - len(whole))
    ):
        return None
    return Decimal(text)


def ungrouped(text: str) -> str:
    """Remove the commas between thousands from a number, for the parsers above: "1,080" to "1080".

    A text with commas anywhere else is returned unchanged, so that no parser reads a list such as
    "1,8" as a number.
    """
    return text.replace(",", "") if _GROUPED_NUMBER.fullmatch(text) else text


def _all_digits(text: str, max_digits: int) -> bool:
    """Return whether `text` consists of 1 to `max_digits` ASCII digits."""
    return 0 < len(text) <= max_digits and _DIGITS.issuperset(text)
