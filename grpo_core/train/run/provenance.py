"""Build what config.json holds besides the user's settings.

That is: what was chosen for the user, and with which versions.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Any

from grpo_core.train.models.adapter import continued_settings
from grpo_core.train.run.method import Method

PACKAGES = ("grpo-core", "torch", "transformers", "peft")
"""Packages whose versions are recorded."""


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
        "environments": method.fingerprints(),
        "device": policy.device.type,
    }
    return record
