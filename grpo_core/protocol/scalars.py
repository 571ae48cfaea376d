"""Read numbers as libraries have them: a reward may be a NumPy scalar or a tensor without axes."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any


def as_float(value: Any) -> float | None:
    """Return a number as a float, infinite if it is beyond all floats; None for other values.

    Numbers are Python's, True and Decimal among them, and those of NumPy, PyTorch and their kin:
    scalars and arrays without axes, which have an empty shape. An array with one element is none,
    since that it has only one may be chance; neither is a text, even if it reads like a number, nor
    a masked value, which stands for one that is missing.
    """
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        if getattr(value, "mask", False):
            return None
        value = value.item()
    if not isinstance(value, Real | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:  # an int or a fraction beyond any float
        return -math.inf if value < 0 else math.inf
    except ValueError:  # a signalling NaN
        return math.nan
