"""Turn the rollouts of a run into a log of inspect-ai, which `inspect view` opens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_core import ConfigError, MissingExtraError
from grpo_core.api.runs import JsonObject, finite
from grpo_core.plugins.versions import check_versions

_NOT_JUDGED: JsonObject = {"error": "not judged", "rewards": {}, "detail": {}, "metrics": {}}
_REASONS = {"stop": "stop", "length": "max_tokens"}
"""What inspect-ai calls the ends of a rollout; all others are unknown."""


def write_inspect_log(
    path: Path, groups: Iterable[JsonObject], *, config: Mapping[str, Any], created: datetime
) -> int:
    """Write groups as a log of inspect-ai; the name ends with .eval or .json.

    Args:
        path: the file.
        groups: as `RolloutIndex.read` returns them.
        config: the settings of the run.
        created: when the run was made.

    Returns:
        How many rollouts the log has.

    Raises:
        ConfigError: the name ends otherwise.
        MissingExtraError: inspect-ai is not installed.
        VersionError: its version is not supported.
        OSError: the file cannot be written.
    """
    if path.suffix not in (".eval", ".json"):
        raise ConfigError(f"the name of a log of inspect-ai ends with .eval or .json, not {path}")
    check_versions("--to inspect", "inspect")
    try:
        from inspect_ai.log import EvalLog, write_eval_log
    except ModuleNotFoundError as error:
        raise MissingExtraError("--to inspect", "inspect", package=error.name or "") from None
    model = str(config["model"]["name"])
    samples = [_as_text(sample) for group in groups for sample in samples_of(group, model)]
    log = EvalLog.model_validate(
        {
            "status": "success",
            "eval": _header(samples, config, created),
            "results": _results(samples),
            "samples": samples,
        }
    )
    write_eval_log(log, path)
    return len(samples)


def samples_of(group: JsonObject, model: str) -> Iterator[JsonObject]:
    """Yield each rollout of a group as a sample: the group is its id, the attempt its epoch."""
    prompt = group["prompt"]
    asked = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt or ""}]
    for line in group["rollouts"]:
        verdict = line["verdict"] or _NOT_JUDGED
        messages = line["messages"] or []
        said = [m["content"] for m in messages if m["role"] == "assistant"]
        yield {
            "id": f"step {group['step']} {group['split']} {group['number']}",
            "epoch": line["attempt"] + 1,
            "input": [_message(message) for message in asked],
            "target": "",
            "messages": [_message(message) for message in (*asked, *messages)],
            "output": _output(line, model, said[-1] if said else ""),
            "scores": _scores(verdict) if verdict["error"] is None else None,
            "metadata": {
                "step": group["step"],
                "key": group["key"],
                "draw": group["draw"],
                "advantage": line["advantage"],
                "tokens": line["tokens"],
                "finish": line["finish"],
                "detail": verdict["detail"],
                "metrics": verdict["metrics"],
                **({"output": verdict["output"]} if verdict.get("output") else {}),
            },
            "error": None
            if verdict["error"] is None
            else {"message": verdict["error"], "traceback": "", "traceback_ansi": ""},
        }


def _as_text(sample: JsonObject) -> JsonObject:
    """Return a sample without lone surrogates, which the log cannot hold, and without NaN."""
    text = json.dumps(finite(sample), ensure_ascii=False, default=str)
    value: JsonObject = json.loads(text.encode("utf-8", "replace"))
    return value


def _message(message: JsonObject) -> JsonObject:
    calls = [
        {
            "id": call["id"] or f"call-{number}",
            "function": call["name"],
            "arguments": call["arguments"],
            "parse_error": call["error"] or None,
        }
        for number, call in enumerate(message.get("tool_calls") or ())
    ]
    content, thoughts = message["content"], message.get("thoughts")
    if thoughts:
        content = [
            {"type": "reasoning", "reasoning": thoughts},
            {"type": "text", "text": content},
        ]
    return {
        "role": message["role"],
        "content": content,
        **({"tool_calls": calls} if calls else {}),
    }


def _output(line: JsonObject, model: str, text: str) -> JsonObject:
    return {
        "model": model,
        "completion": text,
        "choices": [
            {
                "message": {"role": "assistant", "content": text},
                "stop_reason": _REASONS.get(line["finish"], "unknown"),
            }
        ],
    }


def _scores(verdict: JsonObject) -> JsonObject:
    """Return the total with the answer, whether it passed, and each part with its note."""
    parts = {
        f"part: {name}": {"value": part["value"], "explanation": part["note"] or None}
        for name, part in verdict["rewards"].items()
    }
    return {
        "reward": {"value": verdict["total"], "answer": verdict["answer"]},
        "passed": {"value": "C" if verdict["passed"] else "I", "answer": verdict["answer"]},
        **parts,
    }


def _header(samples: list[JsonObject], config: Mapping[str, Any], created: datetime) -> JsonObject:
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    environments = ", ".join(config["mixture"] or [config["environment"]])
    return {
        "task": environments,
        "created": created.astimezone(UTC).isoformat(),
        "dataset": {"name": environments, "samples": len(ids), "sample_ids": ids},
        "model": str(config["model"]["name"]),
        "config": {"epochs": max((sample["epoch"] for sample in samples), default=1)},
        "metadata": {name: value for name, value in config.items() if name != "provenance"},
    }


def _results(samples: list[JsonObject]) -> JsonObject:
    """Return the means of the rewards and of their parts, and the pass rate."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, score in (sample["scores"] or {}).items():
            value = score["value"]
            number = float(value == "C") if isinstance(value, str) else value
            if number is None or not math.isfinite(number):
                continue
            values.setdefault(name, []).append(number)
    return {
        "total_samples": len(samples),
        "completed_samples": sum(sample["error"] is None for sample in samples),
        "scores": [
            {
                "name": name,
                "scorer": name,
                "scored_samples": len(numbers),
                "metrics": {"mean": {"name": "mean", "value": fmean(numbers)}},
            }
            for name, numbers in values.items()
        ],
    }
