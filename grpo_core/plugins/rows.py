"""Find the environment that makes tasks of a file of rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, did_you_mean

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
"""The ends of the names of files of rows."""


def names_rows(name: str) -> bool:
    """Return whether a name is that of a file of rows, or of a folder, and not an environment's."""
    return name.lower().endswith(SUFFIXES) or (os.sep in name and Path(name).expanduser().is_dir())


def rows_environment(rewards: Sequence[str], host: PluginHost | None = None) -> str:
    """Return the name of the environment that pays rows by these rewards.

    Args:
        rewards: the values of --reward; if empty, the environment's own default.
        host: the installed plugins.

    Raises:
        ConfigError: no installed environment does.
    """
    offers = [
        offer.spec
        for offer in (host or PluginHost()).specs("environment")
        if offer.spec.row_rewards
    ]
    known = [name for spec in offers for name in spec.row_rewards if name != "*"]
    for reward in rewards:
        special = [spec for spec in offers if reward in spec.row_rewards]
        if special:
            return special[0].name
        if ":" not in reward:
            raise ConfigError(
                f"the reward {reward!r} is not known{did_you_mean(reward, known)} Rewards by name: "
                f"{', '.join(known)}; or name a function, FILE.py:FUNCTION"
            )
    for spec in offers:
        if "*" in spec.row_rewards:
            return spec.name
    raise ConfigError(
        "no installed environment makes tasks of rows; install one whose Spec has row_rewards"
    )
