"""What a rollout batch looked like, as numbers under the names that metrics.jsonl uses."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Group, Verdict

OWN = ("mean", "std", "constant_share")
"""What a run itself logs as reward/..., beside the parts."""
BY_ENVIRONMENT = ("reward/", "pass_rate", "verify/", "env/", "completion_length/", "groups/")


def refuse_taken_names(parts: Mapping[str, Collection[str]]) -> None:
    """Raises ConfigError for a reward part that would stand in the log in place of a number of the run. parts: of each environment."""
    for name, own in parts.items():
        for part in own:
            if part in OWN:
                raise ConfigError(
                    f"environment {name!r} has a reward part {part!r}, but reward/{part} is what a run calls a number of its own; rename it"
                )


def group_metrics(
    groups: Sequence[Group[Any]], parts: Mapping[str, Collection[str]]
) -> dict[str, float]:
    """What a batch looked like. parts: reward parts of each environment; with several, each has lines of its own as NAME/...,
    and the others are means over all attempts."""
    if len(parts) == 1:
        return _metrics(groups, next(iter(parts.values())))
    values = _metrics(groups, ())
    for name, own in parts.items():
        found = _metrics([group for group in groups if group.task.key.env == name], own)
        values |= {
            f"{name}/{key}": value for key, value in found.items() if key.startswith(BY_ENVIRONMENT)
        }
    return values


def _metrics(groups: Sequence[Group[Any]], parts: Collection[str]) -> dict[str, float]:
    """Rewards, parts, verifier and lengths. Attempts that could not be judged are in no mean, only in verify/error_rate; a mean over
    nothing is NaN (null in the log), never 0."""
    verdicts = [v for group in groups for v in group.verdicts]
    rollouts = [r for group in groups for r in group.rollouts]
    scored = [v for v in verdicts if v.scored]
    totals = [v.total for v in scored]
    lengths = [sum(r.trainable) for r in rollouts]
    values = {
        "reward/mean": _mean(totals),
        "reward/std": pstdev(totals) if totals else math.nan,
        "pass_rate": _mean([float(v.passed) for v in scored]),
    }
    for part in parts:
        values[f"reward/{part}"] = _mean([v.rewards[part].value for v in scored])
        values[f"verify/seconds/{part}"] = sum(v.rewards[part].seconds for v in scored)
    if len(parts) > 1:
        values["reward/constant_share"] = _constant_share(groups, parts)
    extra = sorted({name for v in scored for name in v.metrics})
    values |= {
        f"env/{name}": _mean([v.metrics[name] for v in scored if name in v.metrics])
        for name in extra
    }
    values |= {
        "completion_length/mean": _mean(lengths),
        "completion_length/clipped": _mean([float(r.finish == "length") for r in rollouts]),
        "groups/mixed": _mean(
            [float(_is_mixed(g.verdicts)) for g in groups if sum(v.scored for v in g.verdicts) > 1]
        ),
        "groups/best": _mean(
            [
                max(v.total for v in g.verdicts if v.scored)
                for g in groups
                if any(v.scored for v in g.verdicts)
            ]
        ),
        "groups/distinct": _mean(
            [_distinct(g.verdicts) for g in groups if any(v.scored for v in g.verdicts)]
        ),
        "verify/error_rate": _mean([float(not v.scored) for v in verdicts]),
        "tokens/generated": float(sum(sum(r.trainable) for r in rollouts)),
    }
    return values


def advantage_metrics(advantage_PG: Tensor, scored_PG: Tensor) -> dict[str, float]:
    scored = advantage_PG[scored_PG]
    if scored.numel() == 0:
        return {"advantage/mean": math.nan, "advantage/std": math.nan}
    return {
        "advantage/mean": scored.mean().item(),
        "advantage/std": scored.std(correction=0).item(),
    }


def peak_memory_mb(device: torch.device) -> float:
    """Highest memory so far: of the accelerator, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = Path("/proc/self/status")
    if status.exists():  # the other count begins with what the process had that started this one
        return (
            next(
                int(line.split()[1])
                for line in status.read_text().splitlines()
                if line.startswith("VmHWM")
            )
            / 2**10
        )
    try:
        import resource
    except ImportError:  # Windows has no such count
        return math.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _constant_share(groups: Sequence[Group[Any]], parts: Collection[str]) -> float:
    """Of what the parts pay, the share from those that all attempts of their group get alike: it cancels in every advantage."""
    constant = whole = 0.0
    for group in groups:
        scored = [v for v in group.verdicts if v.scored]
        for part in parts:
            paid = [v.rewards[part].weight * v.rewards[part].value for v in scored]
            whole += sum(map(abs, paid))
            constant += sum(map(abs, paid)) if len(set(paid)) == 1 else 0.0
    return constant / whole if whole else math.nan


def _is_mixed(group: Sequence[Verdict]) -> bool:
    return len({v.total for v in group if v.scored}) > 1


def _distinct(group: Sequence[Verdict]) -> float:
    """Different answers, of the attempts from which one could be extracted at all, as a share of the scored attempts."""
    scored = [v.answer for v in group if v.scored]
    return len({answer for answer in scored if answer is not None}) / len(scored)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
