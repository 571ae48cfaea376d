"""Read the filter of a list of groups from the parameters of an address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.index import Filter, Order, Range

PAGE_SIZE = 50
"""Groups of one page of the list; `filter.js` has the same number."""


@dataclass(frozen=True, slots=True)
class Query:
    """Ask for one page of the groups that match."""

    where: Filter
    order: Order
    descending: bool
    page: int


def read_query(parameters: Mapping[str, str]) -> Query:
    """Return what the parameters ask for; unknown ones are ignored, empty ones choose all.

    Raises:
        ConfigError: a value is not of its kind.
    """
    order = parameters.get("order") or "log"
    orders = get_args(Order)
    if order not in orders:
        raise ConfigError(f"order is {order!r}; choose one of {', '.join(orders)}")
    part = parameters.get("part")
    part_range = _range(parameters, "part")
    task = _number(parameters, "task")
    where = Filter(
        steps=_range(parameters, "steps"),
        split=parameters.get("split") or None,
        environment=parameters.get("environment") or None,
        task=None if task is None else int(task),
        reward=_range(parameters, "reward"),
        parts={part: part_range} if part and part_range != Range() else {},
        tokens=_range(parameters, "tokens"),
        passed=_flag(parameters, "passed"),
        truncated=_flag(parameters, "truncated"),
        duplicate=_flag(parameters, "duplicate"),
        error=_flag(parameters, "error"),
        text=parameters.get("text", ""),
    )
    page = int(_number(parameters, "page") or 0)
    chosen: Order = order  # type: ignore[assignment]  # it is one of them
    return Query(where, chosen, parameters.get("descending") != "no", max(0, page))


def _range(parameters: Mapping[str, str], name: str) -> Range:
    return Range(_number(parameters, f"{name}_from"), _number(parameters, f"{name}_to"))


def _number(parameters: Mapping[str, str], name: str) -> float | None:
    text = parameters.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigError(f"{name} is {text!r}, and must be a number") from None


def _flag(parameters: Mapping[str, str], name: str) -> bool | None:
    text = parameters.get(name, "")
    if text not in ("", "yes", "no"):
        raise ConfigError(f"{name} is {text!r}; choose yes or no, or leave it out")
    return text == "yes" if text else None
