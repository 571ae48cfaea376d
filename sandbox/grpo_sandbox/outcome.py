"""Turns the reply of a supervisor into an Outcome.

A program's claim is only parsed here; the verifier judges it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from grpo_core import Limits, Outcome
from grpo_sandbox.inside.values import MAX_ERROR, NotPlainError, decode

MAX_INTEGER_DIGITS = 20
"""Largest number of digits of a bare JSON number; longer numbers are claimed as text."""


def outcome(reply: Mapping[str, Any], limits: Limits) -> Outcome:
    """Return the outcome of one call."""
    status, value, error = (
        _read_claim(reply["result"])
        if reply["status"] == "claimed"
        else (reply["status"], None, reason(reply, limits))
    )
    return Outcome(
        status=status,
        value=value,
        error=error,
        stdout=reply["stdout"],
        stderr=reply["stderr"],
        cpu_seconds=reply["cpu_seconds"],
        wall_seconds=reply["wall_seconds"],
    )


def _read_claim(text: str) -> tuple[Any, Any, str]:
    """Return status, value and error of a claim."""
    try:
        claim = json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_integer)
        ((kind, content),) = claim.items()
        if kind == "ok":
            return "ok", decode(content), ""
        if kind in ("error", "oom", "bad"):
            return (
                {"error": "exception", "oom": "oom", "bad": "bad_result"}[kind],
                None,
                _clean_text(content),
            )
        raise ValueError(f"unknown claim {kind!r}")
    except (NotPlainError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return "bad_result", None, f"the program's claim cannot be read: {error}"[:500]


def _clean_text(content: Any) -> str:
    """Return a text of the program shortened, and such that it can be encoded."""
    return str(content)[:MAX_ERROR].encode("utf-8", "replace").decode()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parse_integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError("a number is too long")
    return int(text)


def reason(reply: Mapping[str, Any], limits: Limits) -> str:
    """Return why a call ended without a claim."""
    match reply["status"]:
        case "timeout_cpu":
            return f"it used more than {limits.cpu_seconds:g} s of CPU time"
        case "timeout_wall":
            return f"timeout: it took longer than its {limits.wall_seconds:g} s"
        case "output_limit":
            return f"it wrote more than {limits.output_bytes:,} bytes"
        case "bad_result":
            return f"it claimed more than {limits.result_bytes:,} bytes"
        case "signal":
            return f"it was ended by signal {reply['exit'] & 0x7F}"
        case "oom":
            return f"it used more than {limits.memory_mb} MB"
    return "it ended without returning a value"
