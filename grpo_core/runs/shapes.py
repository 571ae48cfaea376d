"""Tell whether lines of a log have the shape that each version has written.

Their author may be a stranger: what passes here is used by name and type without further questions.
"""

from __future__ import annotations

from typing import Any

from grpo_core.protocol.types import Message, TaskKey, Verdict
from grpo_core.runs.lines import JsonObject

_ERRORS = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_NUMBER = (int, float)
_LARGEST = 1e300
_OPTIONAL_NUMBER = (int, float, type(None))
_OPTIONAL_TEXT = (str, type(None))


def is_task(line: JsonObject) -> bool:
    """Return whether a line names a step and a task."""
    try:
        key = TaskKey(**line["key"])
    except _ERRORS:
        return False
    whole = (line.get("step"), line.get("group", 0), line.get("draw"), key.index, key.seed)
    return (
        all(type(value) is int for value in whole)
        and type(key.level) in _NUMBER
        and _is_text(key.env)
        and key.split in ("train", "eval")
    )


def is_attempt(line: JsonObject) -> bool:
    """Return whether a line is that of a rollout."""
    try:
        return is_task(line) and _is_attempt(line)
    except _ERRORS:
        return False


def _is_attempt(line: JsonObject) -> bool:
    messages = [Message.from_json(message) for message in line.get("messages") or ()]
    advantage = line.get("advantage")
    by_turn = advantage if isinstance(advantage, list) else [advantage]
    return (
        type(line["attempt"]) is int
        and type(line["tokens"]) is int
        and _is_text(line["finish"])
        and all(
            _is_text(text) for one in messages for text in (one.role, one.content, one.thoughts)
        )
        and all(isinstance(value, _OPTIONAL_NUMBER) for value in by_turn)
        and (line["verdict"] is None or _is_verdict(line["verdict"]))
        and all(_are_tokens(segment) for segment in line.get("policy_tokens") or ())
    )


def _is_verdict(data: JsonObject) -> bool:
    verdict = Verdict.from_json(data)
    parts = [(part["value"], part["weight"]) for part in data["rewards"].values()]
    notes = [part["note"] for part in data["rewards"].values()]
    return (
        isinstance(data["total"], _OPTIONAL_NUMBER)
        and (data["total"] is not None or data["error"] is not None)
        and all(isinstance(value, _NUMBER) for pair in parts for value in pair)
        and all(isinstance(text, str) for text in notes)
        and all(isinstance(text, _OPTIONAL_TEXT) for text in (verdict.answer, verdict.error))
        and _is_text(verdict.output)
        and all(isinstance(value, _OPTIONAL_NUMBER) for value in verdict.metrics.values())
        and isinstance(data.get("detail", {}), dict)
    )


def _are_tokens(segment: Any) -> bool:
    if segment is None:
        return True
    ids, logprobs, turns = segment["ids"], segment["logprobs"], segment["turns"]
    return (
        all(type(value) is int for value in (*ids, *turns))
        and all(isinstance(value, _OPTIONAL_NUMBER) for value in logprobs)
        and len(ids) == len(logprobs)
    )


def not_a_number(line: JsonObject) -> str | None:
    """Return the name of a metric in a line of metrics.jsonl with which nothing can be computed.

    Metrics are numbers or None, and never so large that a sum of them is infinite.
    """
    values = ((name, value) for name, value in line.items() if name != "kind")
    return next((name for name, value in values if not _is_metric(value)), None)


def _is_metric(value: Any) -> bool:
    return value is None or (isinstance(value, _NUMBER) and abs(value) <= _LARGEST)


def is_alarm(line: JsonObject) -> bool:
    """Return whether a line is that of an alarm."""
    group = line.get("group")
    texts = [line.get(name) for name in ("name", "environment", "subject", "message")]
    return (
        all(isinstance(text, _OPTIONAL_TEXT) for text in texts)
        and type(line.get("step")) is int
        and (group is None or (isinstance(group, dict) and is_task(group)))
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
