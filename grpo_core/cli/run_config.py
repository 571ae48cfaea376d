"""Read the config of a run from recipes and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import (
    build_config,
    full_name,
    nested,
    parse_setting,
    read_recipe,
    split_setting,
)
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.trust import require_trust


def read_config(
    envs: Sequence[str],
    recipes: Sequence[str],
    options: Mapping[str, Any],
    settings: Sequence[str],
    *,
    trust: bool = False,
) -> RunConfig:
    """Return the config of a run. Later sources override earlier ones.

    The order is: recipes from left to right, then --env and other options, then --set.

    Args:
        envs: the values of --env. If there are any, the environments of the recipes that are not
            among them are removed.
        recipes: the values of --recipe.
        options: the other options, by the dotted name of the setting that each stands for.
        settings: the values of --set, KEY=VALUE.
        trust: whether the command line has --trust.

    Raises:
        ConfigError: a setting is wrong, or a recipe is the config.json of an untrusted run.
    """
    layers = [_read_recipe(name) for name in recipes]
    if envs:
        requested = {full_name(name) for name in envs}
        for layer in layers:
            if isinstance(mixture := layer.get("mixture"), Mapping):
                kept = {
                    name: member for name, member in mixture.items() if full_name(name) in requested
                }
                layer["mixture"] = kept if len(envs) > 1 else {}
                # A recipe's settings of a mixture member also hold if it is the only environment.
                if len(envs) == 1:
                    layer.update(
                        {
                            key: value
                            for member in kept.values()
                            for key, value in member.items()
                            if key != "share"
                        }
                    )
    for name, layer in zip(recipes, layers, strict=True):
        if layer.get("provenance"):  # a run wrote this file, possibly a run of somebody else
            _require_trust_in_record(Path(name), layer, envs, settings, trust=trust)
    return build_config(
        [*layers, environments(envs), nested(options), *map(parse_setting, settings)]
    )


def _require_trust_in_record(
    path: Path,
    record: Mapping[str, Any],
    envs: Sequence[str],
    settings: Sequence[str],
    *,
    trust: bool,
) -> None:
    """Refuse the config.json of a run if it names code that the command line does not name.

    Raises:
        ConfigError: the user has not consented to that code (see `require_trust`).
    """
    used = {**record, "environment": None} if envs else record
    named = [*map(full_name, envs), *(split_setting(text)[0] for text in settings)]
    require_trust(path, record, used=used, named=named, trust=trust)


def environments(names: Sequence[str]) -> dict[str, Any]:
    """Return the settings for the values of --env: one environment, or a mixture of equal shares.

    Raises:
        ConfigError: an environment is named twice.
    """
    full_names = list(map(full_name, names))
    if repeated := [
        name for index, name in enumerate(names) if full_names[index] in full_names[:index]
    ]:
        raise ConfigError(
            f"--env {repeated[0]} is given twice; name each environment once "
            "(mixture.NAME.share sets its share)"
        )
    if len(names) > 1:
        return {"environment": None, "mixture": {name: {} for name in names}}
    return {"environment": names[0]} if names else {}


def _read_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a recipe: a .toml or .json file, or a plugin's recipe by its name."""
    path = Path(name)
    if path.suffix in {".toml", ".json"} or path.is_file():
        return read_recipe(path)
    return dict(PluginHost().load("recipe", name))
