"""Decide which run folders may run code.

A run folder may come from anyone. Its config.json can name a Python file as environment, enable
code that comes with a model, or send texts and a key to an address. Such settings need the user's
consent, unless the command itself names them or this user has run them on this machine before.
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
    """Return the settings through which a config runs code or sends data.

    Args:
        config: the content of config.json.

    Returns:
        The value of each such setting by its dotted name. For a switch such as
        `model.trust_remote_code` the value names what it switches on.
    """
    model, sandbox = _section(config, "model"), _section(config, "sandbox")
    executor = _section(_section(config, "verify"), "executor")
    components = {
        "environment": config.get("environment"),
        "eval.also": _section(config, "eval").get("also"),
        "sandbox.name": sandbox.get("name"),
        "sampler.name": _section(config, "sampler").get("name"),
        "endpoint.name": _section(config, "endpoint").get("name"),
        "verify.executor.name": executor.get("name"),
        **{f"mixture.{name}": str(name) for name in _section(config, "mixture")},
    }
    risky = {name: text for name, text in _iter_strings(components, "") if names_file(text)}
    component_settings = {name: config.get(name) for name in ("mixture", "env", "judges")}
    for name, text in _iter_strings(component_settings, ""):
        if _PYTHON_FILE.fullmatch(text) or _URL.match(text):
            risky[name] = text
    for section in ("sandbox", "sampler"):
        settings = _section(config, section).get("settings")
        for name, text in _iter_strings(settings, f"{section}.settings"):
            if "/" in text:  # the path of a program or an image, or an address
                risky[name] = text
    settings = _section(config, "endpoint").get("settings")
    for name, text in _iter_strings(settings, "endpoint.settings"):
        if re.search("[/.:]", text):  # an address at which it listens, or the path of a socket
            risky[name] = text
    for name, text in _iter_strings(executor.get("settings"), "verify.executor.settings"):
        if "/" in text or ":" in text:  # an address to which tasks are sent, also as HOST:PORT
            risky[name] = text
    if model.get("trust_remote_code"):
        risky["model.trust_remote_code"] = f"true, for {model.get('name')}"
    return risky


def require_trust(
    path: Path,
    config: Mapping[str, Any],
    *,
    used: Mapping[str, Any] | None = None,
    named: Collection[str] = (),
    trust: bool = False,
) -> None:
    """Refuse to use a run folder that could run code of somebody else.

    Consent that the user gives with --trust is remembered.

    Args:
        path: the run folder or its config.json, for the message.
        config: the content of config.json.
        used: the part of it that the command uses; all of it by default.
        named: names of settings and of files that the command line itself gives.
        trust: whether the command line has --trust.

    Raises:
        ConfigError: the config names code or an address to which the user has not consented.
    """
    settings = risky_settings(config if used is None else used)
    unapproved = {
        name: value for name, value in settings.items() if name not in named and value not in named
    }
    if not unapproved or _is_remembered(risky_settings(config)):
        return
    if trust:
        remember(path, config)
        return
    listed = "; ".join(f"{name} = {value}" for name, value in unapproved.items())
    raise ConfigError(
        f"{path} names code or an address that you have not used on this machine ({listed}). "
        "Look at what it names; if you trust it, add --trust"
    )


def remember(path: Path, config: Mapping[str, Any]) -> None:
    """Record that this user has run the code that `config` names.

    Later commands on this run then need no --trust. If the state folder cannot be written, a
    warning is logged and nothing is raised.
    """
    settings = risky_settings(config)
    if not settings or _is_remembered(settings):
        return
    record = {"run": str(path.absolute()), "settings": settings, "time": int(time.time())}
    try:
        file = _record_path(settings)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(file, json.dumps(record, indent=2) + "\n")
    except OSError as error:
        logging.getLogger(__name__).warning(
            "%s cannot be written (%s), so commands on this run will ask for --trust",
            trusted_folder(),
            error.strerror or error,
        )


def trusted_folder() -> Path:
    """Return the folder of consent records.

    It is $XDG_STATE_HOME/grpo/trusted, or ~/.local/state/grpo/trusted if that variable is not set.
    """
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "grpo" / "trusted"


def _is_remembered(settings: Mapping[str, str]) -> bool:
    # Where the home folder cannot be read, isfile() finds no record; Path.is_file() would raise.
    return os.path.isfile(_record_path(settings))


def _record_path(settings: Mapping[str, str]) -> Path:
    """Return the file that records consent to exactly this set of settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return trusted_folder() / f"{digest}.json"


def _iter_strings(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield each string in a nested value with its dotted name, which begins with `name`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iter_strings(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _iter_strings(item, f"{name}.{index}")
    elif isinstance(value, str):
        yield name, value


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of the config, or an empty one if it is absent or is not a mapping."""
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
