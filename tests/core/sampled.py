"""Which planted faults the default test run tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from grpo_core import Environment


def one_of_each_check(faults: Mapping[type[Environment[Any]], str]) -> Iterator[Any]:
    """Yield the parameters of a test: a faulty environment and its check.

    All but the first of each check are marked heavy: the catalogue in tests/kit has hundreds more.
    """
    seen = set[str]()
    for environment, check in faults.items():
        marks = [pytest.mark.heavy] if check in seen else []
        seen.add(check)
        yield pytest.param(environment, check, id=f"{environment.__name__}-{check}", marks=marks)
