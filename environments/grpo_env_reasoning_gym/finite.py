"""Refuse answers that a verifier of the library would read as infinity, NaN or a huge power of ten.

complex_arithmetic pays NaN, since it is no distance from any number, and coin_flip computes
10**9999999 for 1e9999999.
"""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"[0-9][0-9_]*(?:\.[0-9_]*)?(?:e(?P<exponent>[-+]?[0-9]+))?", re.IGNORECASE)
_MAX_EXPONENT_DIGITS = 4
_WORDS = re.compile(r"[^\W\d_]+")
_OF_NUMBERS = frozenset({"e", "i", "j", "x"})
"""Letters of numbers: exponents, imaginary units, and a sign of multiplication."""
_NOT_FINITE = re.compile(r"[-+]?(?:nan|inf|infinity)[ij]?", re.IGNORECASE)


def names_no_finite_number(answer: str, reference: object) -> bool:
    """Return whether an answer holds a number that is not finite, where numbers are asked for.

    Args:
        answer: the answer of a policy.
        reference: the answer of the dataset; where it holds other words, `inf` may be one.
    """
    if not isinstance(reference, str) or not _is_numeric(reference):
        return False
    words = _WORDS.findall(answer)
    return any(map(_NOT_FINITE.fullmatch, words)) or any(map(_overflows, _NUMBER.finditer(answer)))


def _is_numeric(text: str) -> bool:
    has_digit = any(map(str.isdigit, text))
    return has_digit and {word.lower() for word in _WORDS.findall(text)} <= _OF_NUMBERS


def _overflows(match: re.Match[str]) -> bool:
    exponent = (match["exponent"] or "").lstrip("+-0")
    if len(exponent) > _MAX_EXPONENT_DIGITS:
        return True
    return math.isinf(float(match.group().replace("_", "")))
