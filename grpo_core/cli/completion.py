"""Complete the values of options and arguments in a shell: names of environments and of settings.

Where nothing fits, the shell completes names of files, as for FILE.py:CLASS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from grpo_core.config.overrides import find_setting, known_keys
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError


def environment_names(incomplete: str) -> list[str]:
    """Return the installed environments whose names begin so."""
    names = [offer.spec.name for offer in PluginHost().specs("environment")]
    return sorted(name for name in names if name.startswith(incomplete))


def setting_keys(incomplete: str) -> list[str]:
    """Return the settings whose names begin so; of a section that is not complete, all of it."""
    return [key for key in known_keys() if key.startswith(incomplete)]


def set_values(incomplete: str) -> list[str]:
    """Return KEY= for each setting that begins so; behind the sign, the values that it may have."""
    key, sign, value = incomplete.partition("=")
    if not sign:
        return [f"{name}=" for name in setting_keys(incomplete)]
    try:
        settings = find_setting(key)
    except ConfigError:
        return []
    return [
        f"{key}={choice}"
        for name, info in settings
        if name == key
        for choice in _choices(info.annotation)
        if choice.startswith(value)
    ]


def _choices(annotation: Any) -> Iterator[str]:
    """Yield the values of a setting that takes one of a few."""
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for inner in get_args(annotation):
            yield from _choices(inner)
