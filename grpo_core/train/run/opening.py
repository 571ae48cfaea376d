"""Prepare the first step of a run: check prompts, memory and disk space, and record settings."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.engine.models.adapter import continued_settings
from grpo_core.engine.policy.memory_estimate import MemoryEstimate
from grpo_core.engine.ranks import Ranks
from grpo_core.plugins.services import fingerprint
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.runs.folder import RunFolder, Unwritten
from grpo_core.runs.observer import Observer
from grpo_core.train.run.disk_estimate import DiskEstimate, estimate_disk
from grpo_core.train.run.method import Method
from grpo_core.train.run.sampling_check import warn_of_unseen_tools
from grpo_core.verify.sources import Sources

PACKAGES = ("grpo-core", "torch", "transformers", "peft")
"""Packages whose versions are recorded."""


async def create_first_tasks(method: Method) -> list[Task[Any]]:
    """Return the tasks of the first step, and one of each environment, that can be asked.

    Problems then show before anything is written.

    Raises:
        UserError: a task cannot be created, or none of an environment can be asked.
    """
    actor = method.actor
    await method.prepare()
    if not len(actor.sources):
        return []
    seed = actor.config.seed
    samples = [
        TaskKey(source.name, "train" if source.share else "eval", 0, seed, source.level)
        for source in actor.sources
    ]
    first_tasks = [*await method.first_tasks(), *await actor.sources.tasks(samples)]
    distinct_tasks = {task.key: task for task in first_tasks}.values()
    return [task for task in distinct_tasks if actor.askable.examine(task) is None]


def encode_first_prompts(
    method: Method, tasks: Sequence[Task[Any]], observer: Observer
) -> list[tuple[int, ...]]:
    """Return the tokens of the first tasks' prompts."""
    actor, prompts = method.actor, []
    for task in tasks:
        budget = actor.budgets[task.key.env]
        prompt_ids = actor.policy.encode_checked(
            task.prompt, max_new_tokens=budget.turn, tools=budget.tools
        )
        prompts.append(prompt_ids)
        warn_of_unseen_tools(actor, task, observer)
    return prompts


def estimate_needs(
    method: Method,
    prompts: Sequence[tuple[int, ...]],
    *,
    path: Path,
    steps: int,
    observer: Observer,
) -> tuple[MemoryEstimate, DiskEstimate]:
    """Estimate memory and disk space, and warn if they may not suffice.

    Args:
        prompts: those of the first step.
        path: the run folder.
        steps: number of steps that are left.

    Raises:
        ConfigError: the run cannot fit into the memory.
    """
    actor = method.actor
    assert actor.footprint is not None  # what is trained was measured
    workload = method.workload(prompts)
    memory = actor.footprint.estimate(
        actor.policy, actor.config, workload, processes=actor.ranks.size
    )
    memory.check(actor.config, observer.warn)
    disk = estimate_disk(path, actor, steps=steps, workload=workload)
    disk.check(observer.warn)
    return memory, disk


def fingerprints(config: RunConfig, sources: Sources) -> dict[str, str]:
    """Return the fingerprint of each source of tasks, and that of the file of examples.

    A resumed run compares them to make sure that tasks and examples are the same.
    """
    by_name = {source.name: fingerprint(source.env) for source in sources}
    if config.method == "sft" and config.sft.data is not None:
        by_name["sft.data"] = hashlib.sha256(Path(config.sft.data).read_bytes()).hexdigest()[:16]
    return by_name


def recorded_config(method: Method) -> dict[str, Any]:
    """Return the config with every default that depends on environment or hardware resolved.

    A replay elsewhere then runs with the same settings.
    """
    actor, config, policy = method.actor, method.actor.config, method.actor.policy
    record = config.model_dump(mode="json")
    turn_tokens = {budget.turn for budget in actor.budgets.values()}
    if len(turn_tokens) == 1:  # else each environment has its own
        record["sampling"]["max_new_tokens"] = turn_tokens.pop()
    record["model"]["dtype"] = str(policy.compute_dtype).removeprefix("torch.")
    if config.epochs is None:
        record["steps"] = method.total
    for name, source in zip(config.members(), actor.sources, strict=True):
        if dataclasses.is_dataclass(source.env.config) and not isinstance(source.env.config, type):
            section = record["mixture"].get(name, {}) if config.environment != name else record
            section["env"] = dataclasses.asdict(source.env.config)
    record["lora"] |= continued_settings(policy.model)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    record["provenance"] = {
        "versions": versions,
        "environments": fingerprints(config, actor.sources),
        "device": policy.device.type,
        "processes": actor.ranks.size,
    }
    return record


def shared_run_folder(
    folder: RunFolder | Path | str | None, ranks: Ranks, *, name: str
) -> RunFolder:
    """Return the run folder, the same one for all processes, of which the first writes.

    Args:
        folder: as the caller gave it; None chooses an unused path in runs/.
        name: part of the name of a new folder.
    """
    if ranks.first and not isinstance(folder, RunFolder):
        folder = RunFolder.unused(folder, name=name)
    path = ranks.gather_values(folder.path if isinstance(folder, RunFolder) else Path())[0]
    return folder if isinstance(folder, RunFolder) and ranks.first else Unwritten(path)
