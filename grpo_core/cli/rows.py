"""Read --data and --reward: a file of rows takes the place of an environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpo_core.config.overrides import full_name
from grpo_core.plugins.rows import SUFFIXES, names_rows
from grpo_core.protocol.errors import ConfigError


def with_rewards(rewards: Sequence[str] | None, settings: Sequence[str] | None) -> list[str]:
    """Return the values of --set that also say what --reward does; those of --set win."""
    named = [f"env.reward={','.join(map(full_name, rewards))}"] if rewards else []
    return [*named, *(settings or [])]


def with_rows(
    envs: Sequence[str], data: str | None, rewards: Sequence[str], settings: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the values of --env and --set that also say what --data and --reward do.

    Args:
        envs: the values of --env.
        data: the value of --data.
        rewards: the values of --reward.
        settings: the values of --set.

    Raises:
        ConfigError: the options exclude each other, or the file cannot hold rows.
    """
    settings = with_rewards(rewards, settings)
    if data is None:
        return list(envs), settings
    if envs:
        raise ConfigError(
            f"--data {data} makes the tasks, and --env {envs[0]} does, too; give one of them"
        )
    if Path(data).expanduser().is_dir():
        data = str(Path(data).expanduser().absolute())
    if not names_rows(data):
        hub = f"; for a data set of the hub: --env dataset --set env.name={data}"
        raise ConfigError(
            f"--data {data} is no file of rows; name one that ends with {', '.join(SUFFIXES)}, or "
            f"a folder{hub if data.count('/') == 1 else ''}"
        )
    return [data], settings
