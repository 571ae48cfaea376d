"""Evaluate on held-out tasks during a run, and format one group for the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.protocol.types import Group, Verdict
from grpo_core.report.gains import Scores, score
from grpo_core.runs.folder import RunFolder
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.tasks import counted_sources, eval_keys
from grpo_core.train.run.metrics import group_metrics

CHUNK = 64
"""Tasks between two updates of the progress bar."""


def decoded_together(actor: Actor) -> list[tuple[int, int]]:
    """Return the prompts and rollouts per prompt that an evaluation decodes together, if any."""
    tasks = actor.config.eval.tasks * len(actor.sources)
    return [(min(CHUNK, tasks), 1)] if tasks else []


async def evaluate_held_out(
    actor: Actor, folder: RunFolder, *, step: int, progress: Callable[[int, int], None]
) -> tuple[Scores, dict[str, float], list[Verdict]] | None:
    """Sample one rollout for each held-out task of every environment.

    The same random numbers are drawn at every step, so that evaluations are paired. The rollouts go
    to rollouts.jsonl.

    Returns:
        The scores by task, the metrics as eval/... and the verdicts. None, with nothing written, if
        a stop was requested half-way: a part of the tasks is no evaluation.
    """
    started = time.perf_counter()
    config, sources = actor.config, actor.sources
    keys = [key for source in sources for key in eval_keys(source, config.eval.tasks)]
    (groups,) = await actor.evaluate(
        [keys],
        samples=1,
        params=config.sampling.params(config.eval.temperature),
        chunk=CHUNK,
        progress=progress,
    )
    if len(groups) < len(keys):
        return None
    for group in groups:
        folder.rollouts(step, group)
    scores = {
        group.task.key: score(group.verdicts[0]) for group in groups if group.verdicts[0].scored
    }
    parts = {source.name: source.env.parts for source in counted_sources(sources)}
    values = group_metrics([group for group in groups if group.task.key.env in parts], parts)
    for source in sources:
        if source.name not in parts:
            own_groups = [group for group in groups if group.task.key.env == source.name]
            values |= {
                f"{source.name}/{name}": value
                for name, value in group_metrics(
                    own_groups, {source.name: source.env.parts}
                ).items()
            }
    metrics = {f"eval/{name}": value for name, value in values.items() if "groups/" not in name}
    metrics |= {
        "eval/tasks": float(sum(key.env in parts for key in scores)),
        "eval/seconds": time.perf_counter() - started,
    }
    return scores, metrics, [group.verdicts[0] for group in groups]


def format_group(step: int, group: Group[Any], advantage_G: Sequence[float]) -> str:
    """Return a group as text for a person to read.

    The text holds the prompt, and each rollout with reward, advantage and the verifier's notes.
    """
    prompt = (
        group.task.prompt if isinstance(group.task.prompt, str) else group.task.prompt[-1].content
    )
    lines = [f"step {step}, task {group.task.key.index}: {prompt!r}"]
    for rollout, verdict, advantage in zip(
        group.rollouts, group.verdicts, advantage_G, strict=True
    ):
        outcome = (
            f"error: {verdict.error}"
            if verdict.error
            else f"reward {verdict.total:.2f}, advantage {advantage:+.2f}"
        )
        notes = "; ".join(
            f"{name}: {part.note}" for name, part in verdict.rewards.items() if part.note
        )
        lines.append(
            f"  {outcome:<32} {rollout.finish:<6} "
            f"{rollout.text!r}{'  (' + notes + ')' if notes else ''}"
        )
    return "\n".join(lines)
