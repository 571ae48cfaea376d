"""What config.json holds beside what the user set: what was chosen for it, and with which versions."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.environment import Environment
from grpo_core.train.policy import Policy

PACKAGES = ("grpo-core", "torch", "transformers", "peft")


def recorded_config(config: RunConfig, env: Environment[Any], policy: Policy, *, steps: int, max_new_tokens: int) -> dict[str, Any]:
    """The config with every default that depends on environment or hardware resolved, so that a replay elsewhere asks the same."""
    record = config.model_dump(mode="json")
    record["sampling"]["max_new_tokens"] = max_new_tokens
    record["model"]["dtype"] = str(policy.compute_dtype).removeprefix("torch.")
    if config.epochs is None:
        record["steps"] = steps
    if dataclasses.is_dataclass(env.config) and not isinstance(env.config, type):
        record["env"] = dataclasses.asdict(env.config)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    record["provenance"] = {"versions": versions, "environment": env.fingerprint(), "device": policy.device.type}
    return record
