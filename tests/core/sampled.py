"""Which planted faults the default test run tries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from grpo_core import Environment


def one_of_each_check(faults: Mapping[type[Environment[Any]], str]) -> list[Any]:
    """Return the parameters of a test: a faulty environment and its check.

    All but the first of each check are marked heavy: the catalogue in tests/kit has hundreds more.
    """
    seen, parameters = set[str](), []
    for environment, check in faults.items():
        marks = [pytest.mark.heavy] if check in seen else []
        seen.add(check)
        name = f"{environment.__name__}-{check}"
        parameters.append(pytest.param(environment, check, id=name, marks=marks))
    return parameters
