"""Build a validated RunConfig from recipes, command-line options and `--set`.

Layers of settings are merged from left to right. Errors name the nearest known key.
"""

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
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from grpo_core.config.chat_templates import absolute_template, read_template
from grpo_core.config.config import RunConfig
from grpo_core.config.meant import did_you_mean_setting
from grpo_core.config.modelcache import ALIASES
from grpo_core.config.settings import K_ESTIMATORS, PLUGIN, Section
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.rows import take_rows
from grpo_core.protocol.errors import ConfigError, UserError
from grpo_core.protocol.spec import names_file

_KEY_PARTS = re.compile(r'"[^"]+"|[^."]+')


def build_config(layers: Sequence[Mapping[str, Any]]) -> RunConfig:
    """Merge nested mappings and validate the result.

    Args:
        layers: settings by section and name; a later layer wins key by key.

    Raises:
        ConfigError: a key is not known or a value is not allowed. The message names the key, and
            for an unknown key the nearest known one.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        if "provenance" in layer:
            # This is the config.json of a run. Its digest is not a setting, since a recipe may be
            # edited.
            layer = {key: value for key, value in layer.items() if key != "digest"}
        if "epochs" in layer or "steps" in layer:
            # They exclude each other, so a layer that sets one of them resets the other.
            merged = {key: value for key, value in merged.items() if key not in ("epochs", "steps")}
        earlier_advantage = merged.get("advantage")
        if isinstance(earlier_advantage, dict) and _sets_estimator_without_k(
            layer.get("advantage")
        ):
            # The k belonged to the estimator of an earlier layer.
            earlier_advantage.pop("k", None)
        merge(merged, normalized(layer))
    _make_judge_paths_absolute(merged)
    take_rows(merged)
    read_template(merged)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(details) for details in error.errors())) from None


def normalized(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a layer in which files have absolute paths and tables are read.

    Raises:
        ConfigError: a table that is given as text is not a JSON object.
    """
    return _with_absolute_paths(_with_tables(layer))


def _with_tables(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy in which tables that are given as JSON text, as after --set, are read.

    Raises:
        ConfigError: such a text is not a JSON object.
    """
    result: dict[str, Any] = _deep_copy(layer)
    for key, info in _iterate_fields(RunConfig):
        if get_origin(info.annotation) is not dict:
            continue
        *parents, last = key.split(".")
        section: Any = result
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(text := section.get(last), str):
            try:
                section[last] = json.loads(text)
            except ValueError as error:
                raise ConfigError(
                    f"setting {key!r} is not JSON, as in --set '{key}={{\"NAME\": 1}}' "
                    f"({error}); found {text!r}"
                ) from None
    return result


def _sets_estimator_without_k(advantage: object) -> bool:
    """Return whether the section `advantage` of a layer names an estimator that has no k."""
    return (
        isinstance(advantage, Mapping)
        and "k" not in advantage
        and not str(advantage.get("name", PLUGIN)).startswith((PLUGIN, *K_ESTIMATORS))
    )


def _with_absolute_paths(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy in which files are given by absolute paths.

    This covers environments, sandboxes, models, chat templates and examples. With absolute paths a
    run can be continued from any folder.
    """
    result: dict[str, Any] = _deep_copy(layer)
    for values, setting, make_absolute in (
        (result.get("model"), "name", _absolute_if_exists),
        (result.get("model"), "chat_template", absolute_template),
        (result.get("sft"), "data", _absolute_if_exists),
        (result.get("sandbox"), "name", full_name),
        (result, "environment", full_name),
    ):
        if isinstance(values, dict) and isinstance(values.get(setting), str):
            values[setting] = make_absolute(values[setting])
    if isinstance(result.get("mixture"), Mapping):
        result["mixture"] = {full_name(name): member for name, member in result["mixture"].items()}
    if isinstance(result.get("eval"), Mapping) and (also := result["eval"].get("also")):
        names = also.split(",") if isinstance(also, str) else also
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            result["eval"] = {**result["eval"], "also": [full_name(name.strip()) for name in names]}
    return result


def _make_judge_paths_absolute(merged: dict[str, Any]) -> None:
    """Make the paths of judges and of their models absolute, in place.

    Models of judges that ask a service elsewhere are left as they are: such a name may by chance
    be that of a local file or folder.
    """
    for judge in merged["judges"].values() if isinstance(merged.get("judges"), dict) else ():
        if not isinstance(judge, dict):
            continue
        if isinstance(name := judge.get("name"), str):
            judge["name"] = full_name(name)
        if isinstance(settings := judge.get("settings"), dict) and isinstance(
            model := settings.get("model"), str
        ):
            path = _absolute_if_exists(model)
            if path != model and not _is_remote(judge.get("name")):
                settings["model"] = path


def _is_remote(judge_name: object) -> bool:
    """Return whether a judge declares that it asks a service elsewhere."""
    try:
        return PluginHost().get("judge", str(judge_name)).remote
    except UserError:  # reported when the judge is opened
        return False


def _deep_copy(value: Any) -> Any:
    return (
        {key: _deep_copy(item) for key, item in value.items()}
        if isinstance(value, Mapping)
        else copy.deepcopy(value)
    )


def full_name(name: str) -> str:
    """Return FILE.py:CLASS with an absolute path, and any other name unchanged."""
    return str(_absolute(name)) if names_file(name) else name


def _absolute_if_exists(name: str) -> str:
    """Return an existing file or folder as an absolute path, and any other name unchanged.

    Other names are, for example, hub ids.
    """
    return (
        name
        if not name or name in ALIASES or not os.path.exists(path := _absolute(name))
        else str(path)
    )


def _absolute(name: str) -> Path:
    try:
        return Path(name).expanduser().absolute()
    except RuntimeError as error:  # "~user" of an unknown user
        raise ConfigError(f"{name!r} is not a path: {error}") from None


def merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Write the values of `layer` into `into`; merge a mapping with a mapping."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def _explain(error: Any) -> str:
    """Return the message for one of the errors that pydantic found."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = [*known_keys(), *(name for name, _ in _iterate_members(error["loc"]))]
        return f"setting {key!r} is not known{did_you_mean_setting(key, known)}"
    if error["type"] == "missing":
        return f"setting {key!r} is missing; set it with --set {key}=..."
    message = error["msg"].removeprefix("Value error, ")
    return (
        message
        if not key
        else f"setting {key!r}: {message[0].lower()}{message[1:]}; found {error['input']!r}"
    )


def known_keys() -> Iterator[str]:
    """Return every setting's key in dotted form, such as "kl.beta"."""
    return (name for name, _ in _iterate_fields(RunConfig))


def find_setting(key: str) -> list[tuple[str, FieldInfo]]:
    """Return the setting called `key`, or all settings of the section called `key`.

    A table of sections, such as `mixture`, comes with the settings of its members, which bear the
    name in `key` or else NAME, as in mixture.NAME.share. What is in a table whose entries are free,
    such as `sandbox.settings`, is explained by the table.

    Returns:
        (key in dotted form, its pydantic FieldInfo) of each setting.

    Raises:
        ConfigError: there is no such setting or section.
    """
    settings = [*_iterate_fields(RunConfig), *_iterate_members(_split_key(key))]
    matching_settings = [
        (name, info)
        for name, info in settings
        if name == key
        or name.startswith(f"{key}.")
        or (key.startswith(f"{name}.") and _is_free_table(info))
    ]
    if not matching_settings:
        known = [name for name, _ in settings]
        raise ConfigError(
            f"setting {key!r} is not known{did_you_mean_setting(key, known)} "
            "`grpo config show` lists all of them"
        )
    return matching_settings


def _is_free_table(info: FieldInfo) -> bool:
    """Return whether a setting is a table whose entries have no settings of their own."""
    if get_origin(info.annotation) is not dict:
        return False
    entries = get_args(info.annotation)[1]
    return not (isinstance(entries, type) and issubclass(entries, Section))


def _iterate_members(parts: Sequence[object]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the settings of a member of the table of sections that the first part of a key names.

    Args:
        parts: the parts of a key; the second one is the name of the member, NAME if it is missing.
    """
    table, name = [*map(str, parts), "NAME"][:2]
    info = RunConfig.model_fields.get(table)
    for argument in get_args(info.annotation) if info else ():
        if isinstance(argument, type) and issubclass(argument, Section):
            yield from _iterate_fields(argument, f"{table}.{name}.")


def _iterate_fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, info in section.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            yield from _iterate_fields(annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, info


def flat(config: RunConfig) -> dict[str, Any]:
    """Return the value of every setting by its key in dotted form."""
    values = config.model_dump()
    return {key: reduce(getitem, key.split("."), values) for key in known_keys()}


def parse_setting(text: str) -> dict[str, Any]:
    """Return "a.b=c" as {"a": {"b": c}}."""
    return nested(dict([split_setting(text)]))


def split_setting(text: str) -> tuple[str, Any]:
    """Return "a.b=c" as ("a.b", c).

    c is read as a TOML value (a number, true, a list) if it is one, else as plain text.
    """
    key, separator, value = map(str.strip, text.partition("="))
    if not separator or not key or ".".join(_split_key(key)) != key.replace('"', ""):
        raise ConfigError(
            f"--set needs key=value, for example --set optimizer.lr=1e-5; found {text!r}"
        )
    return key, plain_value(value)


def plain_value(text: str) -> Any:
    """Return the TOML value that a text is (a number, true, a list), or else the text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"a.b": c} as {"a": {"b": c}}; later keys win.

    A part of a key that contains dots is written in double quotes.
    """
    result: dict[str, Any] = {}
    for key, value in dotted.items():
        *parents, last = _split_key(key)
        section = result
        for parent in parents:
            if not isinstance(section.get(parent), dict):
                section[parent] = {}
            section = section[parent]
        section[last] = value
    return result


def _split_key(key: str) -> list[str]:
    return [part.strip('"') for part in _KEY_PARTS.findall(key)]
