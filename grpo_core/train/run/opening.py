"""Check what a run needs before anything is written: its first prompts, memory and disk space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_core.report.observer import Observer
from grpo_core.train.policy.memory import Estimate
from grpo_core.train.run.method import Method
from grpo_core.train.run.space import DiskEstimate, estimate_disk


@dataclass(frozen=True, slots=True)
class Needs:
    """Hold what a run is estimated to need."""

    memory: Estimate
    disk: DiskEstimate


async def encode_first_prompts(method: Method, observer: Observer) -> list[tuple[int, ...]]:
    """Return the tokens of the first step's prompts, and of one prompt of each environment.

    Problems then show before anything is written.

    Raises:
        UserError: a task cannot be created, or its prompt does not fit.
    """
    actor, prompts = method.actor, []
    await method.prepare()
    if not len(actor.sources):
        return []
    for task in await actor.sources.tasks(method.first_keys()):
        budget = actor.budgets[task.key.env]
        prompt_ids = actor.policy.encode_checked(
            task.prompt, max_new_tokens=budget.turn, tools=budget.tools
        )
        prompts.append(prompt_ids)
        if budget.tools and prompt_ids == actor.policy.encode(task.prompt):
            observer.warn(
                "the model's chat template has no place for tools, so the policy does not "
                f"see those of {task.key.env!r}; set model.chat_template, or describe them in "
                "the prompt"
            )
    return prompts


def estimate_needs(
    method: Method,
    prompts: Sequence[tuple[int, ...]],
    *,
    path: Path,
    steps: int,
    observer: Observer,
) -> Needs:
    """Estimate memory and disk space, and warn if they may not suffice.

    Args:
        prompts: those of the first step.
        path: the run folder.
        steps: number of steps that are left.

    Raises:
        ConfigError: the run cannot fit into the memory.
    """
    actor = method.actor
    workload = method.workload(prompts)
    memory = actor.footprint.estimate(
        actor.policy,
        actor.config,
        workload,
        processes=actor.ranks.size if actor.policy.sharded else 1,
    )
    memory.check(actor.config, observer.warn)
    disk = estimate_disk(path, actor.footprint, actor.config, steps=steps, new_tokens=workload.new)
    disk.check(observer.warn)
    return Needs(memory, disk)
