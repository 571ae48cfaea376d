"""Evaluation on held-out tasks during a run, and one group as text for the log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from grpo_core.protocol.types import Group, Verdict
from grpo_core.report.gains import Scores, score
from grpo_core.train.rollout.tasks import counted, eval_keys
from grpo_core.train.run.attempts import attempted
from grpo_core.train.run.metrics import group_metrics
from grpo_core.train.run.steps import Steps

CHUNK = 64
"""Tasks between two moves of the progress bar."""


async def held_out(
    trainer: Steps, *, step: int
) -> tuple[Scores, dict[str, float], list[Verdict]] | None:
    """One attempt at each held-out task of every environment, drawn with the same numbers at every step, so that evaluations are paired.

    Returns the scores by task, the metrics as eval/... and the verdicts; the attempts go to rollouts.jsonl. None, and nothing
    written, if a stop was requested half-way: a part of the tasks is no evaluation.
    """
    started = time.perf_counter()
    config, sources = trainer.config, trainer.sources
    temperature = (
        config.sampling.temperature if config.eval.temperature is None else config.eval.temperature
    )
    sampling = config.sampling.model_copy(update={"temperature": temperature})
    keys = [key for source in sources for key in eval_keys(source, config.eval.tasks)]
    (groups,) = await attempted(
        trainer,
        [keys],
        samples=1,
        sampling=sampling,
        chunk=CHUNK,
        progress=trainer.observer.evaluating,
    )
    if len(groups) < len(keys):
        return None
    for group in groups:
        trainer.folder.rollouts(step, group)
    scores = {
        group.task.key: score(group.verdicts[0]) for group in groups if group.verdicts[0].scored
    }
    parts = {source.name: source.env.parts for source in counted(sources)}
    values = group_metrics([g for g in groups if g.task.key.env in parts], parts)
    for source in sources:
        if source.name not in parts:
            seen = [g for g in groups if g.task.key.env == source.name]
            values |= {
                f"{source.name}/{name}": value
                for name, value in group_metrics(seen, {source.name: source.env.parts}).items()
            }
    metrics = {f"eval/{name}": value for name, value in values.items() if "groups/" not in name}
    metrics |= {
        "eval/tasks": float(sum(key.env in parts for key in scores)),
        "eval/seconds": time.perf_counter() - started,
    }
    return scores, metrics, [group.verdicts[0] for group in groups]


def as_text(step: int, group: Group[Any], advantage_G: Sequence[float]) -> str:
    """A group for a person to read: the question, and each attempt with reward, advantage and the verifier's words."""
    prompt = (
        group.task.prompt if isinstance(group.task.prompt, str) else group.task.prompt[-1].content
    )
    lines = [f"step {step}, task {group.task.key.index}: {prompt!r}"]
    for rollout, verdict, advantage in zip(
        group.rollouts, group.verdicts, advantage_G, strict=True
    ):
        judged = (
            f"error: {verdict.error}"
            if verdict.error
            else f"reward {verdict.total:.2f}, advantage {advantage:+.2f}"
        )
        notes = "; ".join(
            f"{name}: {part.note}" for name, part in verdict.rewards.items() if part.note
        )
        lines.append(
            f"  {judged:<32} {rollout.finish:<6} {rollout.text!r}{'  (' + notes + ')' if notes else ''}"
        )
    return "\n".join(lines)
