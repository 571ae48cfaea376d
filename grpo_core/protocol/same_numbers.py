"""Compare numbers, of which the answer of a policy may be one, within a tolerance.

Infinity is within any share of infinity, and a power of ten with a huge exponent takes hours to
write down; so whoever compares numbers compares them here.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

MAX_BITS = 16_384
"""The size up to which numbers are compared, about 4,900 digits; beyond it the time would count."""
_MAX_EXPONENT = 4_900
"""The same for the exponent and the digits of a Decimal, which is not written out to measure it."""


def same_number(
    value: object, expected: object, *, relative: float = 0.0, absolute: float = 0.0
) -> bool:
    """Return whether `value` is the number `expected`, up to the larger of two tolerances.

    What is not a finite number equals nothing: infinity, NaN, a complex number, a truth value, a
    text, and a number of more than `MAX_BITS`. Without a tolerance the two are compared exactly.

    Args:
        value: the number to judge: int, float, Decimal, Fraction, or a scalar of NumPy or PyTorch.
        expected: the right one.
        relative: the tolerance as a share of `expected`, and not of a value that a policy chooses.
        absolute: the tolerance as a distance.

    Raises:
        ValueError: a tolerance is negative or not finite, or `relative` is 1 or more.
    """
    if not (0 <= relative < 1 and 0 <= absolute < math.inf):
        raise ValueError(
            f"the tolerances are relative={relative} and absolute={absolute}; `relative` must be "
            "from 0 to below 1, and `absolute` at least 0 and finite"
        )
    if type(value) is float and type(expected) is float:  # as for rewards: fast, and without digits
        is_finite = math.isfinite(value) and math.isfinite(expected)
        return is_finite and abs(value - expected) <= max(absolute, relative * abs(expected))
    number, right = finite_number(value), finite_number(expected)
    if number is None or right is None:
        return False
    if number == right or not (relative or absolute):
        return number == right
    return abs(number - right) <= max(Fraction(absolute), Fraction(relative) * abs(right))


def finite_number(value: Any) -> Fraction | None:
    """Return a number exactly; None for what `same_number` does not call a finite number."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = None if getattr(value, "mask", False) else value.item()
    if isinstance(value, bool):
        return None
    if isinstance(value, Rational):
        over, under = int(value.numerator), int(value.denominator)
        is_short = max(over.bit_length(), under.bit_length()) <= MAX_BITS
        return Fraction(over, under) if is_short else None
    if isinstance(value, Decimal):
        return _exact_decimal(value)
    if not isinstance(value, Real):
        return None
    value = float(value)
    return Fraction(value) if math.isfinite(value) else None


def _exact_decimal(value: Decimal) -> Fraction | None:
    if not value.is_finite():
        return None
    if not value:
        return Fraction(0)
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    is_short = len(digits) <= _MAX_EXPONENT and exponent >= -_MAX_EXPONENT
    return Fraction(value) if is_short and value.adjusted() <= _MAX_EXPONENT else None
