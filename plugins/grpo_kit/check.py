"""Register the checks of `grpo env check`: each is a function with the decorator `check`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from grpo_core.api.verify import Severity

CheckFunction = TypeVar("CheckFunction", bound=Callable[..., Coroutine[Any, Any, str]])
"""Takes the second process, if it asks for it, and the subject; returns the message of a pass.

Raises BrokenPromiseError if the environment fails the check, and NotCheckedError if there was
nothing to examine.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """Hold one check."""

    name: str
    """Group and name, such as "floor.empty"."""
    severity: Severity
    """"fault": do not train on such an environment; "warning": look at the cause, since some
    environments have a good reason."""
    asks: str
    """The question that it asks."""
    function: Callable[..., Coroutine[Any, Any, str]]
    second_process: bool
    """Whether the function also takes the `SecondProcess`, where its part was done."""


_CHECKS: dict[str, Check] = {}


def check(
    name: str, severity: Severity, *, asks: str, second_process: bool = False
) -> Callable[[CheckFunction], CheckFunction]:
    """Return a decorator that makes a function a check; the arguments are the fields of `Check`."""

    def register(function: CheckFunction) -> CheckFunction:
        _CHECKS[name] = Check(name, severity, asks, function, second_process)
        return function

    return register


def registered() -> Mapping[str, Check]:
    """Return the checks of all modules that were imported, by name."""
    return MappingProxyType(_CHECKS)
