"""What config.json holds beside what the user set: what was chosen for it, and with which versions."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Any

from grpo_core.train.models.adapter import continued
from grpo_core.train.run.steps import Steps

PACKAGES = ("grpo-core", "torch", "transformers", "peft")


def recorded_config(trainer: Steps) -> dict[str, Any]:
    """The config with every default that depends on environment or hardware resolved, so that a replay elsewhere asks the same."""
    config, policy = trainer.config, trainer.policy
    record = config.model_dump(mode="json")
    turns = {budget.turn for budget in trainer.budgets.values()}
    if len(turns) == 1:  # else each environment has its own
        record["sampling"]["max_new_tokens"] = turns.pop()
    record["model"]["dtype"] = str(policy.compute_dtype).removeprefix("torch.")
    if config.epochs is None:
        record["steps"] = trainer.total
    for name, source in zip(config.members(), trainer.sources, strict=True):
        if dataclasses.is_dataclass(source.env.config) and not isinstance(source.env.config, type):
            place = record["mixture"].get(name, {}) if config.environment != name else record
            place["env"] = dataclasses.asdict(source.env.config)
    record["lora"] |= continued(policy.model)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    record["provenance"] = {
        "versions": versions,
        "environments": trainer.fingerprints(),
        "device": policy.device.type,
    }
    return record
