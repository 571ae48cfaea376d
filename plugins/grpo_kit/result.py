"""Results of checks.

A check that was not carried out, or that the environment waives, never counts as passed.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


class BrokenPromiseError(Exception):
    """The environment breaks a promise of the protocol: the check failed."""


class NotCheckedError(Exception):
    """The check could not be carried out: nothing to examine, or no way to examine it."""


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """Return every check by name, with its `severity` and the question that it `asks`."""
    checks = resources.files("grpo_kit") / "checks.toml"
    return tomllib.loads(checks.read_text(encoding="utf-8"))
