"""Decide which settings of a run folder or a recipe are used without asking.

Such a file may come from anyone. Its settings can name a Python file as environment, enable code
that comes with a model, read a file, or send texts and a key to an address. They need the user's
consent, unless the command itself gives them or this user has used them on this machine before.
`grpo_core.plugins.consent` says which settings these are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.calls.printable import printable
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, normalized
from grpo_core.plugins.consent import Risk, risks
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.atomic import write_whole

_LISTED, _LENGTH = 8, 160
"""How many settings a message lists, and the most characters of each."""
_CHECKSUM = "digest"
"""The key of config.json that is not a setting."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Hold settings from one place, to be merged with those of others."""

    settings: Mapping[str, Any]
    """The settings, by section and name."""
    file: Path | None = None
    """The run folder or recipe that they come from; None: the command line, an installed recipe or
    the program itself, which are trusted."""
    content: Mapping[str, Any] | None = None
    """All settings of that file, by which a run of this user is known; None: `settings`."""


def risky_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings through which a file could run code, read files or send data.

    Args:
        settings: the settings by section and name, such as the content of config.json.

    Returns:
        The value of each such setting by its dotted name. For a switch such as
        `model.trust_remote_code` the value says what it is switched on for.
    """
    return {risk.name: risk.value for risk in _risks(settings)}


def checked_config(
    layers: Sequence[Layer],
    *,
    trust: bool = False,
    used: Collection[str] | None = None,
    given: Collection[str] = (),
) -> RunConfig:
    """Return the config that the layers give together, if the user consents to all of it.

    What is checked is the merged and validated config, as it will be used. Consent that the user
    gives with --trust is remembered; it holds for the settings that the command uses.

    Args:
        layers: the settings; a later layer wins.
        trust: whether the command line has --trust.
        used: the sections and settings at the top level that the command uses; None: all.
        given: names of environments that the caller has made, so that these are not loaded.

    Raises:
        ConfigError: a setting is not valid, or a file has settings to which the user has not
            consented.
    """
    try:
        config = build_config([layer.settings for layer in layers])
        merged = config.model_dump()
        if used is not None:
            merged = {name: value for name, value in merged.items() if name in used}
        _check_consent(layers, _without(merged, given), trust=trust)
    except RecursionError:
        raise ConfigError("the settings are nested too deeply; use fewer levels") from None
    return config


def is_consented(layers: Sequence[Layer], config: RunConfig) -> bool:
    """Return whether the user consents to every setting of a config that the layers give."""
    try:
        _check_consent(layers, config.model_dump(), trust=False)
    except ConfigError:
        return False
    return True


def _check_consent(layers: Sequence[Layer], merged: Mapping[str, Any], *, trust: bool) -> None:
    """Refuse settings of files to which the user has not consented.

    Args:
        layers: the settings by the places that they come from.
        merged: the settings that are used.
        trust: whether the user consents now.

    Raises:
        ConfigError: a file has settings to which the user has not consented.
    """
    files = [layer for layer in layers if layer.file is not None]
    plain_layers = [(layer, normalized(layer.settings)) for layer in layers]
    merged = _as_named(merged, [plain for _, plain in plain_layers])
    by_giver: dict[int, list[Risk]] = {}
    for risk in _risks(merged) if files else ():
        givers = [layer for layer, plain in plain_layers if _gives(plain, risk)]
        for giver in givers[-1:] or files:
            by_giver.setdefault(id(giver), []).append(risk)
    for layer in files:
        refused = by_giver.get(id(layer), ())
        own = _risks(layer.settings if layer.content is None else layer.content)
        # With another component of the command line, a setting may mean more than in the file.
        is_of_file = {risk.path for risk in refused} <= {risk.path for risk in own}
        if _is_recorded(refused) or (is_of_file and _is_recorded(own)):
            continue
        assert layer.file is not None
        if not trust:
            raise ConfigError(_message(layer.file, refused))
        _record(layer.file, refused)


def remember(path: Path, settings: Mapping[str, Any]) -> None:
    """Record that this user has used the settings of a file that need consent.

    Later commands on this file then need no --trust.
    """
    _record(path, _risks(settings))


def _record(path: Path, consented: Sequence[Risk]) -> None:
    """Record consent to these settings of a file.

    A second record holds where the files that they name from the present folder do not exist: then
    there is nothing that could be used, and nothing to ask about. If the state folder cannot be
    written, a warning is logged and nothing is raised.
    """
    written = {risk.name: risk.value for risk in consented}
    located = {name: _located(value) for name, value in written.items()}
    try:
        for settings in (located, *([written] if written != located else [])):
            file = _record_path(settings)
            if not settings or os.path.isfile(file):
                continue
            record = {"run": str(path.absolute()), "settings": settings, "time": int(time.time())}
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(file, json.dumps(record, indent=2) + "\n")
    except OSError as error:
        logging.getLogger(__name__).warning(
            "%s cannot be written (%s), so commands on this run will ask for --trust",
            trusted_folder(),
            error.strerror or error,
        )


def _is_recorded(asked: Sequence[Risk]) -> bool:
    """Return whether this user has used exactly these settings, or there are none."""
    located = {risk.name: _located(risk.value) for risk in asked}
    # Where the home folder cannot be read, isfile() finds no record; Path.is_file() would raise.
    return not located or os.path.isfile(_record_path(located))


def trusted_folder() -> Path:
    """Return the folder of consent records.

    It is $XDG_STATE_HOME/grpo/trusted, or ~/.local/state/grpo/trusted if that variable is not set.
    """
    return state_folder() / "trusted"


def state_folder() -> Path:
    """Return $XDG_STATE_HOME/grpo, or ~/.local/state/grpo if that variable is not set."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "grpo"


def _record_path(settings: Mapping[str, str]) -> Path:
    """Return the file that records consent to exactly this set of settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return trusted_folder() / f"{digest}.json"


def _located(value: str) -> str:
    """Return a setting that names a file from the present folder with the file's absolute path.

    Otherwise consent to a file would hold for another one of that name in another folder.
    """
    for name in (value, value.rpartition(":")[0]):
        if name and not os.path.isabs(name) and os.path.exists(name):
            return os.path.abspath(name) + value.removeprefix(name)
    return value


def _risks(settings: Mapping[str, Any]) -> list[Risk]:
    plain = {key: value for key, value in normalized(settings).items() if key != _CHECKSUM}
    return risks(RunConfig, plain)


def _without(merged: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Return settings without the environments that the caller has made."""
    result = dict(merged)
    if result.get("environment") in given:
        result |= {"environment": None, "env": {}}
    if given and "mixture" in result:
        members = result["mixture"].items()
        result["mixture"] = {name: member for name, member in members if name not in given}
    if given and "eval" in result:
        also = [name for name in result["eval"]["also"] if name not in given]
        result["eval"] = {**result["eval"], "also": also}
    return result


def _as_named(merged: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return settings with the file of a chat template in place of the text read from it."""
    named = [
        layer["model"]["chat_template"]
        for layer in layers
        if isinstance(layer.get("model"), Mapping) and "chat_template" in layer["model"]
    ]
    if not named or "model" not in merged:
        return merged
    return {**merged, "model": {**merged["model"], "chat_template": named[-1]}}


def _gives(layer: Mapping[str, Any], risk: Risk) -> bool:
    """Return whether a layer of settings gives this one, and not only something beside it."""
    value: Any = layer
    for key in risk.path:
        if not isinstance(value, Mapping):
            return True  # the whole list that it is in
        if key not in value:
            return False
        value = value[key]
    return risk.is_key or not isinstance(value, Mapping)


def _message(file: Path, refused: Sequence[Risk]) -> str:
    listed = "; ".join(
        printable(f"{risk.name} = {risk.value}", lines=False, limit=_LENGTH)
        for risk in refused[:_LISTED]
    )
    more = f"; and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
    return (
        f"{file} has settings that could run code, read files or send data, and that you have not "
        f"used on this machine ({listed}{more}). Look at them; if you trust them, add --trust"
    )
