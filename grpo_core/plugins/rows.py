"""Find the environment that makes tasks of a file of rows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, did_you_mean

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
"""The ends of the names of files of rows."""


def names_rows(name: str) -> bool:
    """Return whether a name is that of a file of rows, or of a folder, and not an environment's."""
    if name.lower().endswith(SUFFIXES):
        return True
    # Path.expanduser would raise for "~" and an unknown user.
    return os.sep in name and os.path.isdir(os.path.expanduser(name))


def take_rows(settings: dict[str, Any]) -> None:
    """Put the environment that makes tasks of rows where a file of rows is named, in place.

    Args:
        settings: those of a run, by section and name. If `environment` is a file of rows, it
            becomes the environment that `env.reward` asks for, and the file its `env.path`.

    Raises:
        ConfigError: no installed environment pays by these rewards, or rows are in a mixture.
    """
    mixture = settings.get("mixture")
    for name in mixture if isinstance(mixture, Mapping) else ():
        if names_rows(str(name)):
            raise ConfigError(
                f"{name} holds rows, and they cannot be part of a mixture yet; name them alone"
            )
    file, env = settings.get("environment"), settings.get("env") or {}
    if not isinstance(file, str) or not names_rows(file) or not isinstance(env, Mapping):
        return
    given = env.get("reward", ())
    rewards = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
    rewards = [_absolute(name) if ".py:" in name else name for name in filter(None, rewards)]
    settings["environment"] = rows_environment(rewards)
    settings["env"] = {
        **env,
        "path": _absolute(file),
        **({"reward": rewards} if rewards else {}),
    }


def name_in_commands(name: str, env: Mapping[str, Any], host: PluginHost | None = None) -> str:
    """Return the words by which commands name an environment, for messages.

    Args:
        name: its name in the config of a run.
        env: its settings; where it makes tasks of rows, their file is named with its rewards.
        host: the installed plugins.
    """
    if "path" not in env:
        return shlex.quote(name)
    offers = [offer.spec for offer in (host or PluginHost()).specs("environment")]
    if not any(spec.name == name and spec.row_rewards for spec in offers):
        return shlex.quote(name)
    rewards = env.get("reward", ())
    named = [rewards] if isinstance(rewards, str) else rewards
    words = [str(env["path"]), *(word for reward in named for word in ("--reward", reward))]
    return shlex.join(words)


def _absolute(path: str) -> str:
    """Return an absolute path.

    Raises:
        ConfigError: it begins with "~" and the name of an unknown user.
    """
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:
        raise ConfigError(f"{path!r} is not a path: {error}") from None


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
