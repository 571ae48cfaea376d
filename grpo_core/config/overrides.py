"""From recipes, options and `--set` to one validated RunConfig: merged from left to right, errors with the nearest known key."""

from __future__ import annotations

import copy
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from grpo_core.config.config import RunConfig
from grpo_core.config.modelcache import ALIASES
from grpo_core.config.settings import K_ESTIMATORS, PLUGIN, Section
from grpo_core.protocol.errors import ConfigError, did_you_mean
from grpo_core.protocol.spec import names_file

_PARTS = re.compile(r'"[^"]+"|[^."]+')


def build_config(layers: Sequence[Mapping[str, Any]]) -> RunConfig:
    """Merge nested mappings, later ones winning key by key, and validate the result. Errors name the key and the nearest known one."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if (
            "provenance" in layer
        ):  # the record of a run, whose digest is no setting: a recipe may be changed
            layer = {key: value for key, value in layer.items() if key != "digest"}
        if (
            "epochs" in layer or "steps" in layer
        ):  # they exclude each other, so naming one takes the other back
            merged = {key: value for key, value in merged.items() if key not in ("epochs", "steps")}
        before = merged.get("advantage")
        if isinstance(before, dict) and _has_no_k(
            layer.get("advantage")
        ):  # another estimator takes back the k of the one before
            before.pop("k", None)
        _merge(merged, _with_full_names(layer))
    _find_judges(merged)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(e) for e in error.errors())) from None


def _has_no_k(advantage: object) -> bool:
    """Whether an estimator is named that takes none."""
    if not isinstance(advantage, Mapping) or "k" in advantage:
        return False
    return str(advantage.get("name", PLUGIN)) not in K_ESTIMATORS and not str(
        advantage.get("name", PLUGIN)
    ).startswith(PLUGIN)


def _with_full_names(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with environments, sandboxes, models and examples that are files by their whole path, so that a run can be continued from any
    folder."""
    named: dict[str, Any] = _copied(layer)
    for section, setting, full in (
        ("model", "name", _full_path),
        ("sft", "data", _full_path),
        ("sandbox", "name", full_name),
    ):
        if isinstance(values := named.get(section), dict) and isinstance(values.get(setting), str):
            values[setting] = full(values[setting])
    if isinstance(named.get("environment"), str):
        named["environment"] = full_name(named["environment"])
    if isinstance(named.get("mixture"), Mapping):
        named["mixture"] = {full_name(name): member for name, member in named["mixture"].items()}
    if isinstance(named.get("eval"), Mapping) and (also := named["eval"].get("also")):
        names = also.split(",") if isinstance(also, str) else also
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            named["eval"] = {**named["eval"], "also": [full_name(name.strip()) for name in names]}
    return named


def _find_judges(merged: dict[str, Any]) -> None:
    """Judges and their models by their whole path, but for those of an endpoint, which may be called as something that lies here, too."""
    for judge in merged["judges"].values() if isinstance(merged.get("judges"), dict) else ():
        if not isinstance(judge, dict) or judge.get("name") in ("llm", "judge/llm"):
            continue
        if isinstance(name := judge.get("name"), str):
            judge["name"] = full_name(name)
        if isinstance(settings := judge.get("settings"), dict) and isinstance(
            model := settings.get("model"), str
        ):
            settings["model"] = _full_path(model)


def _copied(value: Any) -> Any:
    return (
        {key: _copied(item) for key, item in value.items()}
        if isinstance(value, Mapping)
        else copy.deepcopy(value)
    )


def full_name(name: str) -> str:
    """FILE.py:CLASS with the whole path; any other name as it is."""
    return str(_absolute(name)) if names_file(name) else name


def _full_path(name: str) -> str:
    """What is there as a file or folder by its whole path; any other name, such as a hub id, as it is."""
    return (
        name
        if not name or name in ALIASES or not os.path.exists(path := _absolute(name))
        else str(path)
    )


def _absolute(name: str) -> Path:
    try:
        return Path(name).expanduser().absolute()
    except RuntimeError as error:  # ~ of nobody
        raise ConfigError(f"{name!r} is no path: {error}") from None


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _explain(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"setting {key!r} is not known{did_you_mean(key, known_keys())}"
    if error["type"] == "missing":
        return f"setting {key!r} is missing; set it with --set {key}=..."
    message = error["msg"].removeprefix("Value error, ")
    return (
        message
        if not key
        else f"setting {key!r}: {message[0].lower()}{message[1:]}; found {error['input']!r}"
    )


def known_keys(section: type[Section] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every settable key in dotted form."""
    yield from (name for name, _ in _fields(section, prefix))


def find_setting(key: str) -> list[tuple[str, FieldInfo]]:
    """The setting called `key`, or all settings of that section, with what pydantic knows of them."""
    found = [
        (name, info)
        for name, info in _fields(RunConfig, "")
        if name == key or name.startswith(f"{key}.")
    ]
    if not found:
        raise ConfigError(
            f"setting {key!r} is not known{did_you_mean(key, known_keys())} `grpo config show` lists all of them"
        )
    return found


def _fields(section: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in section.model_fields.items():
        nested = info.annotation
        if isinstance(nested, type) and issubclass(nested, Section):
            yield from _fields(nested, f"{prefix}{name}.")
        else:
            yield prefix + name, info


def flat(config: RunConfig) -> dict[str, Any]:
    """Every setting in dotted form with its value."""
    values = config.model_dump()
    return {key: reduce(getitem, key.split("."), values) for key in known_keys()}


def parse_setting(text: str) -> dict[str, Any]:
    """ "a.b=c" as {"a": {"b": c}}."""
    return nested(dict([split_setting(text)]))


def split_setting(text: str) -> tuple[str, Any]:
    """ "a.b=c" as ("a.b", c); c is a TOML value (numbers, true, lists), else plain text."""
    key, separator, value = map(str.strip, text.partition("="))
    if not separator or not key or ".".join(_parts(key)) != key.replace('"', ""):
        raise ConfigError(
            f"--set wants key=value, for example --set optimizer.lr=1e-5; found {text!r}"
        )
    return key, _toml_value(value)


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": c} as {"a": {"b": c}}; later ones win. A part with dots stands in double quotes."""
    result: dict[str, Any] = {}
    for key, value in dotted.items():
        *parents, last = _parts(key)
        place = result
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        place[last] = value
    return result


def _parts(key: str) -> list[str]:
    return [part.strip('"') for part in _PARTS.findall(key)]


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe file: TOML, or the config.json of a run."""
    try:
        text = path.read_text(encoding="utf-8")
        data: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {str(path)!r} cannot be read: {error}") from None
    except ValueError as error:
        raise ConfigError(
            f"recipe {str(path)!r} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"recipe {str(path)!r} must hold settings by name; found a {type(data).__name__}"
        )
    return data
