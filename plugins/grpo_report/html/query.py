"""Read the parameters of an address, and from them the filter of a list of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import get_args
from urllib.parse import parse_qsl

from grpo_core import ConfigError
from grpo_core.extract import is_text
from grpo_report.indexes.index import Filter, Order, Range

PAGE_SIZE = 50
"""Groups of one page of the list; `filter.js` has the same number."""


_LARGEST = 2**53
"""Whole numbers up to this one are exact in JavaScript, in floats, and in SQLite."""


@dataclass(frozen=True, slots=True)
class Query:
    """Ask for one page of the groups that match."""

    where: Filter
    order: Order
    descending: bool
    page: int


def read_parameters(query: str) -> dict[str, str]:
    """Return the parameters of the query of an address.

    Raises:
        ConfigError: a text holds what no search can find: NUL, bytes that are not UTF-8, or half
            of a surrogate pair; or there are too many parameters.
    """
    try:
        parameters = dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except ValueError as error:
        raise ConfigError(f"the parameters of the address cannot be read: {error}") from None
    for name, value in parameters.items():
        if "\0" in value or not is_text(value):
            raise ConfigError(f"{name!r} is {value!r}, and must hold neither NUL nor surrogates")
    return parameters


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
    where = Filter(
        steps=_range(parameters, "steps"),
        split=parameters.get("split") or None,
        environment=parameters.get("environment") or None,
        task=whole_number(parameters, "task"),
        reward=_range(parameters, "reward"),
        parts={part: part_range} if part and part_range != Range() else {},
        tokens=_range(parameters, "tokens"),
        passed=_flag(parameters, "passed"),
        truncated=_flag(parameters, "truncated"),
        duplicate=_flag(parameters, "duplicate"),
        error=_flag(parameters, "error"),
        text=parameters.get("text", ""),
    )
    page = whole_number(parameters, "page") or 0
    chosen: Order = order  # type: ignore[assignment]  # it is one of them
    return Query(where, chosen, parameters.get("descending") != "no", max(0, page))


def _range(parameters: Mapping[str, str], name: str) -> Range:
    return Range(_number(parameters, f"{name}_from"), _number(parameters, f"{name}_to"))


def whole_number(parameters: Mapping[str, str], name: str) -> int | None:
    """Return a parameter that counts something, or None if it is missing.

    Raises:
        ConfigError: it is not a whole number, or too large to be exact.
    """
    number = _number(parameters, name)
    if number is not None and not (number.is_integer() and abs(number) < _LARGEST / PAGE_SIZE):
        raise ConfigError(f"{name} is {parameters[name]!r}, and must be a smaller whole number")
    return None if number is None else int(number)


def _number(parameters: Mapping[str, str], name: str) -> float | None:
    text = parameters.get(name, "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise ConfigError(f"{name} is {text!r}, and must be a finite number")
    return number


def _flag(parameters: Mapping[str, str], name: str) -> bool | None:
    text = parameters.get(name, "")
    if text not in ("", "yes", "no"):
        raise ConfigError(f"{name} is {text!r}; choose yes or no, or leave it out")
    return text == "yes" if text else None
