"""Which parameters the default test run tries; the rest is heavy."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def some_of(values: Iterable[Any], default: Sequence[Any]) -> list[Any]:
    """Return the parameters of a test that repeats one mechanism: those not in `default` are heavy.

    Args:
        values: All parameters: single values, or tuples whose first item names the case.
        default: The cases that the default run tries. Each must be among `values`.
    """
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    unknown = [case for case in default if case not in [first for first, *_ in cases]]
    if unknown:
        raise ValueError(f"these cases do not exist: {unknown}")
    return [
        pytest.param(
            *case,
            id=getattr(case[0], "__name__", str(case[0])),
            marks=[] if case[0] in default else [pytest.mark.heavy],
        )
        for case in cases
    ]
