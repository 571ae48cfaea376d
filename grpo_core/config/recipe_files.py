"""Read recipes from files: TOML, YAML, or the config.json of a run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from grpo_core.config.overrides import merge, nested, plain_value
from grpo_core.config.user_files import user_text
from grpo_core.protocol.errors import ConfigError

YAML_SUFFIXES = (".yaml", ".yml")
SUFFIXES = (".toml", ".json", *YAML_SUFFIXES)
"""How the names of recipes end that are files, whether they exist or not."""


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the settings of a recipe file: TOML, YAML, or the config.json of a run.

    Raises:
        ConfigError: the file cannot be read, is not valid, or does not hold settings by name; or
            it is YAML, and PyYAML is not installed.
    """
    text = user_text(path, holds="a recipe (TOML, YAML, or the config.json of a run)")
    suffix = path.suffix.lower()
    file_format = "JSON" if suffix == ".json" else "YAML" if suffix in YAML_SUFFIXES else "TOML"
    try:
        if file_format == "YAML":
            settings = _yaml(text, path)
        else:
            settings = json.loads(text) if file_format == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"recipe {str(path)!r} is not valid {file_format}: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(settings, dict):
        raise ConfigError(
            f"recipe {str(path)!r} must hold settings by name; found a {type(settings).__name__}"
        )
    return settings


def _yaml(text: str, path: Path) -> Any:
    """Return the value of a YAML text; a key with dots at its top stands for a section.

    Raises:
        ConfigError: PyYAML is not installed.
        ValueError: the text is not YAML, or has aliases or keys that are there twice.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            f"recipe {str(path)!r} is YAML, for which PyYAML is missing: pip install pyyaml "
            "(it comes with the extra train), or write the recipe as TOML"
        ) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    value = None if node is None else _value(node, set())
    if value is None:  # an empty file, as an empty one of TOML
        return {}
    if not isinstance(value, dict):
        return value
    settings: dict[str, Any] = {}
    for key, item in value.items():
        merge(settings, nested({key: item}) if "." in key else {key: item})
    return settings


def _value(node: Any, seen: set[int]) -> Any:
    """Return the value of a node of PyYAML.

    A scalar without quotes is what it is after --set: a number, true or false, or a text. By the
    rules of YAML 1.1, 1e-4 would be a text, and off would be false. null and ~ unset a setting.

    Args:
        node: the node.
        seen: the ids of the nodes above and before it, as an alias leads to one of them.

    Raises:
        ValueError: it is an alias, or a key is no text or there twice.
    """
    line = f"line {node.start_mark.line + 1}"
    if id(node) in seen:
        raise ValueError(f"{line} is used twice by an alias (*NAME); write it out")
    seen.add(id(node))
    if node.id == "sequence":
        return [_value(item, seen) for item in node.value]
    if node.id == "scalar":
        if node.style is not None:
            return node.value
        return None if node.value in ("", "~", "null") else plain_value(node.value)
    values: dict[str, Any] = {}
    for key, item in node.value:
        if key.id != "scalar":
            raise ValueError(f"{line}: a key has to be the name of a setting")
        if key.value in values:
            raise ValueError(f"the key {key.value!r} is there twice; remove one of them")
        values[key.value] = _value(item, seen)
    return values
