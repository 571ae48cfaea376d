"""Measure what a policy can do; train nothing.

A run evaluates on held-out tasks, `grpo eval` measures several rollouts of some tasks at one or
more levels, and `grpo env probe` samples training tasks for `grpo_kit.probing.probe` to judge.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.figures.gains import Scores, score
from grpo_core.figures.summary import Sampled, Summary, summarize
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import SamplingParams
from grpo_core.protocol.types import Group, TaskKey
from grpo_core.runs.observer import Observer
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.tasks import counted_sources, train_keys
from grpo_core.train.run.metrics import group_metrics, unasked_metrics
from grpo_core.train.run.references import check_references
from grpo_core.train.run.sampling_check import warn_of_unseen_tools
from grpo_core.verify.held_out import eval_keys, eval_sets
from grpo_core.verify.judge.checks import size_of
from grpo_core.words import last_text
from grpo_core.words.unasked import Unasked, name_unasked

HELD_OUT_CHUNK = 64
"""Held-out tasks between two updates of a run's progress bar (see `_chunk`)."""
CHUNK = 256
"""Rollouts of `measure` between two checks for a requested stop (see `_chunk`)."""
PROBE_CHUNK = 64
"""Rollouts of `probe` between two checks for a requested stop (see `_chunk`)."""
TIMED = 64
"""Verdicts timed at each level, one after the other, so that none waits for another."""
TIMING_SECONDS = 20.0
"""Most seconds that verdicts are timed at each level; a slow verifier gets fewer."""
_logger = logging.getLogger(__name__)


def decoded_together(actor: Actor) -> list[tuple[int, int]]:
    """Return the prompts and rollouts per prompt that an evaluation decodes together, if any."""
    tasks = actor.config.eval.tasks * len(actor.sources)
    return [(min(_chunk(actor, HELD_OUT_CHUNK), tasks), 1)] if tasks else []


def _chunk(actor: Actor, rollouts: int) -> int:
    """Return how many rollouts are sampled at a time.

    On a GPU, where a step of decoding takes about as long for few completions as for many, these
    are at least as many as all processes decode together.
    """
    tuning = actor.policy.tuning
    if not tuning.wide_evaluations:
        return rollouts
    max_rows = actor.config.sampling.max_rows or tuning.max_rows
    return max(rollouts, max_rows * actor.ranks.size)


async def evaluate_held_out(
    actor: Actor, *, progress: Callable[[int, int], None]
) -> tuple[list[Group[Any]], Scores, dict[str, float]] | None:
    """Sample one rollout for each held-out task of every environment.

    The same random numbers are drawn at every step, so that evaluations are paired.

    Returns:
        The groups, the scores by task and the metrics as eval/.... None if a stop was requested
        half-way: a part of the tasks is no evaluation.
    """
    started = time.perf_counter()
    config, sources = actor.config, actor.sources
    held_out = [key for source in sources for key in eval_keys(source, config.eval.tasks)]
    keys, unasked = await actor.askable.split(sources, held_out)
    (groups,) = await actor.evaluate(
        [keys],
        samples=1,
        params=config.sampling.params(config.eval.temperature),
        chunk=_chunk(actor, HELD_OUT_CHUNK),
        progress=progress,
    )
    if len(groups) < len(keys):
        return None
    scores = {
        group.task.key: score(group.verdicts[0]) for group in groups if group.verdicts[0].scored
    }
    parts = {source.name: source.env.parts for source in counted_sources(sources)}
    values = group_metrics(
        [group for group in groups if group.task.key.env in parts],
        parts,
        with_agents=sources.with_agents,
    )
    for source in sources:
        if source.name not in parts:
            own_groups = [group for group in groups if group.task.key.env == source.name]
            values |= {
                f"{source.name}/{name}": value
                for name, value in group_metrics(
                    own_groups,
                    {source.name: source.env.parts},
                    with_agents=sources.with_agents,
                ).items()
            }
    values |= unasked_metrics(groups, unasked, counted=list(parts))
    metrics = {f"eval/{name}": value for name, value in values.items() if "groups/" not in name}
    metrics |= {
        "eval/tasks": float(sum(key.env in parts for key in scores)),
        "eval/seconds": time.perf_counter() - started,
    }
    return groups, scores, metrics


def format_group(step: int, group: Group[Any]) -> str:
    """Return a group with its advantages as text for a person to read.

    The text holds the prompt, and each rollout with reward, advantage (of each turn, if there is
    one for each) and the verifier's notes.
    """
    lines = [f"step {step}, task {group.task.key.index}: {last_text(group.task)!r}"]
    attempts = zip(group.rollouts, group.verdicts, group.advantages or (), strict=True)
    for rollout, verdict, advantage in attempts:
        by_turn = [advantage] if isinstance(advantage, float) else advantage
        outcome = (
            f"error: {verdict.error}"
            if verdict.error
            else f"reward {verdict.total:.2f}, advantage {' '.join(map('{:+.2f}'.format, by_turn))}"
        )
        notes = "; ".join(
            f"{name}: {part.note}" for name, part in verdict.rewards.items() if part.note
        )
        lines.append(
            f"  {outcome:<32} {rollout.finish:<6} "
            f"{rollout.raw!r}{'  (' + notes + ')' if notes else ''}"
        )
    return "\n".join(lines)


async def measure(
    actor: Actor,
    *,
    tasks: int,
    samples: int,
    levels: Sequence[float],
    params: SamplingParams,
    progress: Callable[[int, int], None],
    on_group: Callable[[Group[Any]], None],
) -> list[Summary]:
    """Measure every environment of `actor` at every level; train nothing.

    A requested stop ends it early, with the results so far.

    Args:
        tasks: most held-out tasks per environment; the same ones at every call.
        samples: rollouts per task.
        levels: if empty, each environment is measured at its own level.
        progress: is called with the number of tasks done and their total.
        on_group: is called with each group.
    """
    sets = eval_sets(actor.sources, tasks=tasks, levels=levels)
    async with actor.sources:
        splits = [await actor.askable.split(actor.sources, each.keys) for each in sets]
        _refuse_none(splits)
        keys = [key for asked, _ in splits for key in asked]
        await check_references(actor, keys, warn=_logger.warning, refuse=False)
        groups_per_level = await actor.evaluate(
            [asked for asked, _ in splits],
            samples=samples,
            params=params,
            chunk=_chunk(actor, CHUNK),
            progress=progress,
            on_group=on_group,
        )
    return [
        summarize(
            groups,
            environment=each.source.name,
            level=each.level,
            samples=samples,
            parts=each.source.env.parts,
            # After a requested stop, the rate is of the tasks up to the last one that was asked.
            unasked=unasked
            if len(groups) == len(asked)
            else [
                task for task in unasked if groups and task.key.index < groups[-1].task.key.index
            ],
        )
        for each, (asked, unasked), groups in zip(sets, splits, groups_per_level, strict=True)
    ]


def _refuse_none(splits: Sequence[tuple[Sequence[TaskKey], Sequence[Unasked]]]) -> None:
    """Raise ConfigError if there are tasks, and none of them can be asked.

    Args:
        splits: the tasks that can be asked, and those that cannot, of each list.
    """
    unasked = [task for _, list_unasked in splits for task in list_unasked]
    if unasked and not any(asked for asked, _ in splits):
        raise ConfigError(
            f"none of {len(unasked)} tasks can be asked, such as {name_unasked(unasked[:1])}"
        )


async def probe(
    actor: Actor,
    *,
    tasks: int,
    samples: int,
    levels: Sequence[float],
    progress: Callable[[int, int], None],
    observer: Observer,
) -> list[Sampled]:
    """Sample the first training tasks of a run of `actor` at each level.

    A requested stop ends it early, with the results so far.

    Args:
        tasks: most tasks per level.
        samples: rollouts per task.
        progress: is called with the number of tasks done and their total.
        observer: is warned of what a run would warn of before its first step.
    """
    (source,) = actor.sources
    size = size_of(source.env, "train")
    count = tasks if size is None else min(tasks, size)
    keys = [
        train_keys(actor.config, actor.sources, 0, count, {source.name: level}) for level in levels
    ]
    async with actor.sources:
        splits = [await actor.askable.split(actor.sources, level_keys) for level_keys in keys]
        asked = [level_asked for level_asked, _ in splits]
        _refuse_none(splits)
        if unasked := [task for _, level_unasked in splits for task in level_unasked]:
            observer.warn(
                f"{len(unasked)} of {len(levels) * count} tasks cannot be asked (left out): "
                f"{name_unasked(unasked)}"
            )
        first_key = next(key for level_asked in asked for key in level_asked)
        for task in await actor.sources.tasks([first_key]):
            warn_of_unseen_tools(actor, task, observer)
        await check_references(actor, asked[0], warn=observer.warn, refuse=False)
        groups_per_level = await actor.evaluate(
            asked,
            samples=samples,
            params=actor.config.sampling.params(),
            chunk=_chunk(actor, PROBE_CHUNK),
            progress=progress,
            audit=False,
        )
        return [
            Sampled(level, groups, await _verdict_seconds(actor, groups))
            for level, groups in zip(levels, groups_per_level, strict=True)
        ]


async def _verdict_seconds(actor: Actor, groups: Sequence[Group[Any]]) -> list[float]:
    """Return the wall-clock seconds of single verdicts as a run gets them.

    They include worker process, sandbox and judge, but not the cache, which the caller has switched
    off.
    """
    attempts = [(group.task, rollout) for group in groups for rollout in group.rollouts]
    seconds: list[float] = []
    started = time.perf_counter()
    for task, rollout in attempts[:: max(1, math.ceil(len(attempts) / TIMED))]:
        before = time.perf_counter()
        if actor.stops() or before - started > TIMING_SECONDS:
            break
        await actor.sources.verify([task], [[rollout]])
        seconds.append(time.perf_counter() - before)
    return seconds
