"""Which run folders may run code: those of this user on this machine, and those that the user trusts.

A run folder may come from anyone. Its config.json can name a Python file as environment, switch on
code that comes with a model, or send texts and a key to an address. Such settings need the user's
word, unless the command itself names them or this user has run them on this machine before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.spec import names_file
from grpo_core.runs.atomic import write_whole

_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PYTHON_FILE = re.compile(r"\s*\S.*\.py(:[\w.]*)?\s*")


def risky_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings by which a config runs code or sends data, with their values.

    Args:
        config: what config.json holds.

    Returns:
        Values by dotted names. A setting that only says yes, such as `model.trust_remote_code`,
        has what it says yes to as its value.
    """
    return dict(_risky(config))


def require_trust(
    path: Path,
    config: Mapping[str, Any],
    *,
    used: Mapping[str, Any] | None = None,
    named: Collection[str] = (),
    trust: bool = False,
) -> None:
    """Refuse to use a run folder that could run code of somebody else.

    What the user trusts once is remembered.

    Args:
        path: the run folder or its config.json, for the message.
        config: what config.json holds.
        used: the part of it that the command uses; all of it by default.
        named: names of settings and of files that the command itself gives.
        trust: whether the command says that the folder is trusted.

    Raises:
        ConfigError: the config names code or an address, and nobody has said that this is wanted.
    """
    settings = risky_settings(config if used is None else used)
    unasked = {
        name: value for name, value in settings.items() if name not in named and value not in named
    }
    if not unasked or _is_remembered(risky_settings(config)):
        return
    if trust:
        remember(path, config)
        return
    listed = "; ".join(f"{name} = {value}" for name, value in unasked.items())
    raise ConfigError(
        f"{path} names code or an address that you have not used on this machine ({listed}). "
        "Look at what it names; if you trust it, add --trust"
    )


def remember(path: Path, config: Mapping[str, Any]) -> None:
    """Note that this user has run the code that `config` names, so that it needs no --trust later.

    A state folder that cannot be written costs the note, which is logged, and nothing else.
    """
    settings = risky_settings(config)
    if not settings or _is_remembered(settings):
        return
    note = {"run": str(path.absolute()), "settings": settings, "time": int(time.time())}
    try:
        file = _note(settings)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(file, json.dumps(note, indent=2) + "\n")
    except OSError as error:
        logging.getLogger(__name__).warning(
            "%s cannot be written (%s), so commands on this run will ask for --trust",
            trusted_folder(),
            error.strerror or error,
        )


def trusted_folder() -> Path:
    """Return the folder of notes: $XDG_STATE_HOME/grpo/trusted, else ~/.local/state/grpo/trusted."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "grpo" / "trusted"


def _is_remembered(settings: Mapping[str, str]) -> bool:
    try:
        return _note(settings).is_file()
    except OSError:  # a home folder that may not be looked into holds no note
        return False


def _note(settings: Mapping[str, str]) -> Path:
    """Return the file that notes these settings, all of them together."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return trusted_folder() / f"{digest}.json"


def _risky(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = {
        "environment": config.get("environment"),
        "eval.also": _section(config, "eval").get("also"),
        "sandbox.name": _section(config, "sandbox").get("name"),
    }
    for name, value in _strings(names, ""):
        if names_file(value):
            yield name, value
    for name, member in _section(config, "mixture").items():
        if names_file(str(name)):
            yield f"mixture.{name}", str(name)
        yield from _open_settings(member, f"mixture.{name}")
    yield from _open_settings(config.get("env"), "env")
    for name, judge in _section(config, "judges").items():
        yield from _open_settings(judge, f"judges.{name}")
    for name, value in _strings(_section(config, "sandbox").get("settings"), "sandbox.settings"):
        if "/" in value:  # programs and images by their paths
            yield name, value
    model = _section(config, "model")
    if model.get("trust_remote_code"):
        yield "model.trust_remote_code", f"true, for {model.get('name')}"


def _open_settings(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a component that name Python files or addresses."""
    for key, text in _strings(value, name):
        if _PYTHON_FILE.fullmatch(text) or _URL.match(text):
            yield key, text


def _strings(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield each string in `value` with its dotted name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _strings(item, f"{name}.{place}")
    elif isinstance(value, str):
        yield name, value


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
