"""Check what an environment declares about itself."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping
from typing import Any

from grpo_core import AgentEnvironment, Environment
from grpo_core.api.protocol import did_you_mean
from grpo_kit.check import check, registered
from grpo_kit.result import BrokenPromiseError
from grpo_kit.subject import Subject

UNWAIVABLE = ("declared.contract", "task.made")
"""The checks without which no other check is possible."""

_SIMILAR = 0.8
"""How similar a name is that was meant to be another one, from 0 to 1."""
_SYNCHRONOUS = (
    *("task", "size", "verify", "tools", "reference", "cheats", "mutants", "canaries", "audit"),
)


def waivers(env: Environment[Any]) -> dict[str, str]:
    """Return the waived checks of `env` with their reasons; `check_contract` finds other ones."""
    if not isinstance(env.waived, Mapping):
        return {}
    return {
        name: reason
        for name, reason in env.waived.items()
        if name in registered()
        and name not in UNWAIVABLE
        and isinstance(reason, str)
        and reason.strip()
    }


_FOR_ASYNC = {
    "verify": "name it averify, or remove `async`",
    "audit": "remove `async`, and ask services in averify, with their scores in the metrics",
}
"""The advice for a method that is async and is not awaited."""


@check(
    "declared.contract",
    "fault",
    asks="Are parts, reward range and floor declared, and do they fit together?",
)
async def check_contract(subject: Subject) -> str:
    """Check that parts, reward range, floor and declarations fit together."""
    env = subject.env
    low, high = env.reward_range
    if not env.parts or not all(math.isfinite(weight) for weight in env.parts.values()):
        raise BrokenPromiseError(
            f"parts must name reward parts with finite weights; found {dict(env.parts)}"
        )
    if not low <= env.floor <= high or low >= high:
        raise BrokenPromiseError(
            f"floor {env.floor:g} must lie in reward_range {low:g}..{high:g}, which must not be "
            "empty"
        )
    _check_synchronous(env)
    _check_tolerance(env.tolerance)
    if env.answer_at not in (None, "start", "end"):
        raise BrokenPromiseError(
            f'answer_at is {env.answer_at!r}; it must be "start", "end" or None'
        )
    _check_waived(env.waived)
    waived = f", {len(env.waived)} checks are waived" if env.waived else ""
    return (
        f"the parts are {', '.join(env.parts)}, totals are {low:g}..{high:g}, the floor is "
        f"{env.floor:g}{waived}"
    )


@check(
    "declared.names",
    "warning",
    asks="Are the names of what the class declares spelt as the protocol has them?",
)
async def check_names(subject: Subject) -> str:
    """Check that no attribute or method of the class looks like a misspelt one of the protocol.

    One that has another name is never read, so its default holds without a word. A class that
    defines the right name as well means something else by the similar one.
    """
    env_class = type(subject.env)
    base = AgentEnvironment if issubclass(env_class, AgentEnvironment) else Environment
    of_core = [cls for cls in env_class.__mro__ if _is_of_core(cls)]
    misspelt, count = [], 0
    for cls in env_class.__mro__:
        own = {} if cls in of_core else {n: v for n, v in vars(cls).items() if n[0] != "_"}
        count += len(own)
        for name, value in own.items():
            if any(hasattr(known, name) for known in of_core):
                continue
            alike = [
                known
                for known in dir(base)
                if known[0] != "_"
                and known not in own
                and _is_method(getattr(base, known)) == _is_method(value)
            ]
            if similar := difflib.get_close_matches(name, alike, n=1, cutoff=_SIMILAR):
                misspelt.append(f"{name} (did you mean {similar[0]}?)")
    if misspelt:
        raise BrokenPromiseError(
            f"nothing reads {', '.join(misspelt)}; rename what is misspelt, or begin a name of "
            "your own with an underscore"
        )
    return f"{count} public names of the class, none of which is nearly one of the protocol"


def _is_of_core(cls: type) -> bool:
    return cls in Environment.__mro__ or cls.__module__.partition(".")[0] == "grpo_core"


def _is_method(value: object) -> bool:
    return callable(value) or isinstance(value, classmethod | staticmethod)


def _check_synchronous(env: Environment[Any]) -> None:
    """Raise BrokenPromiseError if a method is async whose result nobody awaits."""
    for name in _SYNCHRONOUS:
        if inspect.iscoroutinefunction(getattr(env, name)):
            advice = _FOR_ASYNC.get(name, "remove `async`")
            raise BrokenPromiseError(
                f"{name}() is async, so that it returns a coroutine and no result; {advice}"
            )


def _check_tolerance(tolerance: object) -> None:
    """Raise BrokenPromiseError if `tolerance` is not a share."""
    if (
        isinstance(tolerance, bool)
        or not isinstance(tolerance, int | float)
        or not 0 <= tolerance < 1
    ):
        raise BrokenPromiseError(
            f"tolerance is {tolerance!r}; it must be a share of the right number, at least 0 and "
            "below 1"
        )


def _check_waived(waived: object) -> None:
    """Raise BrokenPromiseError if a waiver names no check that can be waived, or has no reason."""
    if not isinstance(waived, Mapping):
        raise BrokenPromiseError(
            f"waived is {waived!r}; it must map names of checks to reasons, as in "
            '{"floor.suffix": "any ending is as good"}'
        )
    for name, reason in waived.items():
        if name not in registered():
            raise BrokenPromiseError(
                f"waived names {name!r}, which is not a check"
                f"{did_you_mean(str(name), list(registered()))} `grpo env check` lists them"
            )
        if name in UNWAIVABLE:
            raise BrokenPromiseError(
                f"waived names {name}, which cannot be waived: all other checks rest on it"
            )
        if not isinstance(reason, str) or not reason.strip():
            raise BrokenPromiseError(
                f"waived gives no reason for {name}; write a sentence that says why it does not "
                "apply"
            )
