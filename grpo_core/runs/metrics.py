"""Tell the lines of metrics.jsonl apart: steps and evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Name what a line of metrics.jsonl describes."""

    STEP = "step"
    EVALUATION = "evaluation"


def kind_of(line: Mapping[str, Any]) -> Kind:
    """Return the kind of a line; one of an older version, which names none, is told by its keys."""
    if "kind" in line:
        return Kind(line["kind"])
    return Kind.EVALUATION if "eval/reward/mean" in line else Kind.STEP
