"""Compute the metrics of a rollout batch, under the names that metrics.jsonl uses."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.ties import all_same
from grpo_core.protocol.types import Group, Rollout, Verdict
from grpo_core.words.unasked import Unasked

RESERVED_PARTS = ("mean", "std", "constant_share")
"""Names that a run itself logs as reward/..., besides the parts."""
BY_ENVIRONMENT = (
    "reward/",
    "pass_rate",
    "verify/",
    "env/",
    "completion_length/",
    "segments/",
    "groups/",
)
"""Prefixes of the metrics that a mixture also logs for each environment."""

RUN_PREFIXES = (
    *("advantage", "completion_length", "curriculum", "env", "eval", "examples"),
    *("groups", "kl", "logprob", "memory", "pass_rate", "prompts", "reward", "sampling"),
    *("segments", "staleness", "steps", "time", "tokens", "verify"),
    *("load", "rollout", "sampler_wait", "step", "sync", "trainer_wait", "update"),
)
"""First words of the metrics that a run itself logs, and the phases of its time/..."""


def refuse_taken_names(parts: Mapping[str, Collection[str]]) -> None:
    """Raise ConfigError for a reward part whose metric would replace one of the run's own metrics.

    Args:
        parts: reward parts of each environment.
    """
    for name, environment_parts in parts.items():
        for part in environment_parts:
            if part in RESERVED_PARTS:
                raise ConfigError(
                    f"environment {name!r} has a reward part {part!r}, but reward/{part} is the "
                    "name of a metric of the run; rename the part"
                )


def refuse_taken_prefix(name: str, *, environments: Collection[str]) -> None:
    """Raise ConfigError if the metrics NAME/... of a listener would be among those of the run.

    Args:
        name: name of the listener.
        environments: names of the run's environments.
    """
    if name in RUN_PREFIXES or name in environments:
        raise ConfigError(
            f"a plugin offers a listener {name!r}, but the run itself logs {name}/...; rename the "
            "listener"
        )


def group_metrics(
    groups: Sequence[Group[Any]],
    parts: Mapping[str, Collection[str]],
    *,
    with_agents: Collection[str] = (),
) -> dict[str, float]:
    """Return the metrics of a batch.

    Args:
        parts: reward parts of each environment. With several environments, each has metrics of its
            own as NAME/..., and the others are means over all rollouts.
        with_agents: names of the environments whose attempts are made by agents.
    """
    values = _batch_metrics(groups, next(iter(parts.values())) if len(parts) == 1 else ())
    if agents_here := [name for name in parts if name in with_agents]:
        values |= segment_metrics(_rollouts_of(groups, agents_here))
    if len(parts) == 1:
        return values
    for name, environment_parts in parts.items():
        environment_values = group_metrics(
            [group for group in groups if group.task.key.env == name],
            {name: environment_parts},
            with_agents=with_agents,
        )
        values |= {
            f"{name}/{key}": value
            for key, value in environment_values.items()
            if key.startswith(BY_ENVIRONMENT)
        }
    return values


def unasked_metrics(
    groups: Sequence[Group[Any]], unasked: Sequence[Unasked], *, counted: Sequence[str]
) -> dict[str, float]:
    """Return how many held-out tasks cannot be asked, and the pass rate with these as not passed.

    There are none where all tasks can be asked. Where several environments count, each has its own
    metrics, too, as NAME/...; one that does not count has only these.

    Args:
        groups: the groups of the tasks that were asked.
        unasked: the tasks that cannot be asked.
        counted: names of the environments whose tasks count together.
    """
    values: dict[str, float] = {}
    of_counted = [task for task in unasked if task.key.env in counted]
    if of_counted:
        values |= _with_unasked([g for g in groups if g.task.key.env in counted], len(of_counted))
    for name in dict.fromkeys(task.key.env for task in unasked):
        if len(counted) > 1 or name not in counted:
            own_groups = [group for group in groups if group.task.key.env == name]
            number = sum(task.key.env == name for task in unasked)
            values |= {f"{name}/{k}": v for k, v in _with_unasked(own_groups, number).items()}
    return values


def _with_unasked(groups: Sequence[Group[Any]], unasked: int) -> dict[str, float]:
    verdicts = [verdict for group in groups for verdict in group.verdicts if verdict.scored]
    passed = sum(verdict.passed for verdict in verdicts)
    return {"pass_rate/all": passed / (len(verdicts) + unasked), "unasked": float(unasked)}


def _batch_metrics(groups: Sequence[Group[Any]], parts: Collection[str]) -> dict[str, float]:
    """Return rewards, reward parts, verifier metrics and lengths.

    Rollouts that could not be scored are in no mean, only in verify/error_rate; a mean over nothing
    is NaN (null in the log), never 0.
    """
    verdicts = [verdict for group in groups for verdict in group.verdicts]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored_by_group = [
        [verdict for verdict in group.verdicts if verdict.scored] for group in groups
    ]
    scored = [verdict for group in scored_by_group for verdict in group]
    totals = [verdict.total for verdict in scored]
    lengths = [rollout.sampled_tokens for rollout in rollouts]
    values = {
        "reward/mean": _mean(totals),
        "reward/std": _spread(totals),
        "pass_rate": _mean([float(verdict.passed) for verdict in scored]),
    }
    for part in parts:
        values[f"reward/{part}"] = _mean([verdict.rewards[part].value for verdict in scored])
        values[f"verify/seconds/{part}"] = sum(verdict.rewards[part].seconds for verdict in scored)
    if len(parts) > 1:
        values["reward/constant_share"] = _constant_share(scored_by_group, parts)
    values |= {
        f"env/{name}": _mean(
            [verdict.metrics[name] for verdict in scored if name in verdict.metrics]
        )
        for name in sorted({name for verdict in scored for name in verdict.metrics})
    }
    return values | {
        "completion_length/mean": _mean(lengths),
        "completion_length/clipped": _mean(
            [float(rollout.finish == "length") for rollout in rollouts]
        ),
        "groups/mixed": _mean(
            [
                float(not all_same([verdict.total for verdict in group]))
                for group in scored_by_group
                if len(group) > 1
            ]
        ),
        "groups/best": _mean(
            [max(verdict.total for verdict in group) for group in scored_by_group if group]
        ),
        "groups/distinct": _mean(
            # Rollouts from which no answer could be extracted add no answer.
            [
                len({verdict.answer for verdict in group} - {None}) / len(group)
                for group in scored_by_group
                if group
            ]
        ),
        "verify/error_rate": _mean([float(not verdict.scored) for verdict in verdicts]),
        "verify/raised": float(sum(bool(verdict.raised) for verdict in verdicts)),
        "tokens/generated": float(sum(lengths)),
    }


def _rollouts_of(groups: Sequence[Group[Any]], names: Collection[str]) -> list[Rollout]:
    """Return the rollouts of some environments."""
    return [
        rollout for group in groups if group.task.key.env in names for rollout in group.rollouts
    ]


def segment_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return how agents went on from what the policy had written.

    Args:
        rollouts: attempts by agents; those without a turn of the policy do not count.
    """
    rollouts = [rollout for rollout in rollouts if rollout.turns]
    sampled = sum(rollout.sampled_tokens for rollout in rollouts)
    kept = sum(map(_kept_tokens, rollouts))
    longer = [rollout for rollout in rollouts if rollout.turns > 1]
    prefixes = sum(rollout.turns - 1 for rollout in longer)
    continued = sum(rollout.turns - len(rollout.segments) for rollout in longer)
    return {
        "segments/mean": _mean([len(rollout.segments) for rollout in rollouts]),
        "segments/discarded": 1 - kept / sampled if sampled else math.nan,
        "segments/continued": continued / prefixes if prefixes else math.nan,
    }


def _kept_tokens(rollout: Rollout) -> int:
    """Return how many of the policy's tokens the last segment holds.

    A turn of an earlier segment counts if the last one begins with everything up to its end.
    """
    *earlier, last = rollout.segments
    kept = sum(last.trainable)
    for segment, turns in zip(earlier, rollout.turns_by_segment, strict=False):
        shared = max(0, segment.shared_with(last) - len(segment.prompt_ids))
        sampled = sum(segment.trainable[:shared])
        kept += max(length for length in accumulate(turns, initial=0) if length <= sampled)
    return kept


def advantage_metrics(advantage: Tensor, counted: Tensor) -> dict[str, float]:
    """Return mean and standard deviation of the advantages that count; NaN if there are none."""
    values = advantage[counted]
    if values.numel() == 0:
        return {"advantage/mean": math.nan, "advantage/std": math.nan}
    return {
        "advantage/mean": values.mean().item(),
        "advantage/std": values.std(correction=0).item(),
    }


def staleness_metrics(groups: Sequence[Group[Any]], *, version: int) -> dict[str, float]:
    """Return by how many steps the weights that sampled the rollouts are older than `version`."""
    ages = [
        float(version - min(rollout.versions))
        for group in groups
        for rollout in group.rollouts
        if rollout.versions
    ]
    return {"staleness/mean": _mean(ages), "staleness/max": max(ages, default=math.nan)}


def peak_memory_mb(device: torch.device) -> float:
    """Return the highest memory use so far, in MiB.

    It is that of the accelerator, or of the process on a CPU.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = Path("/proc/self/status")
    # getrusage also counts the memory of the parent process before this one was started.
    if status.exists():
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
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _constant_share(groups: Sequence[Sequence[Verdict]], parts: Collection[str]) -> float:
    """Return the share of the reward that comes from parts with equal values in the whole group.

    Such a part cancels in every advantage.

    Args:
        groups: the scored verdicts of each group.
    """
    constant = total = 0.0
    for group in groups:
        for part in parts:
            paid = [verdict.rewards[part].weight * verdict.rewards[part].value for verdict in group]
            total += sum(map(abs, paid))
            constant += sum(map(abs, paid)) if all_same(paid) else 0.0
    return constant / total if total else math.nan


def _spread(totals: Sequence[float]) -> float:
    """Return the standard deviation of rewards; 0 if they are equal, NaN without any."""
    if not totals:
        return math.nan
    return 0.0 if all_same(totals) else pstdev(totals)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
