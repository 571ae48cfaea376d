"""Check the shape of the settings that a run recorded, which a stranger may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError

_SECTIONS = (
    *("provenance", "model", "lora", "sampling", "verify", "sandbox", "judges", "eval", "mixture"),
    *("env", "weights", "sampler", "endpoint", "optimizer", "kl", "checkpoint", "log", "sft"),
)


class Settings(dict[str, Any]):
    """Hold settings by name; one that is asked for and missing is an error of the file's author."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._path = path

    def __missing__(self, name: str) -> Any:
        raise ConfigError(
            f"{self._path} lacks the setting {name!r}, which a run records; restore the file, or "
            "name another run"
        )


def recorded_settings(path: Path, values: dict[str, Any]) -> Settings:
    """Return the settings in a config.json.

    Args:
        path: the file, for messages.
        values: its content.

    Raises:
        ConfigError: a section is not an object, or the model has no name.
    """
    for name in _SECTIONS:
        section = values.get(name)
        if not isinstance(section, (dict, type(None))):
            raise ConfigError(
                f"{path} has a {type(section).__name__} as {name!r}, where a run records settings "
                "by name; restore the file, or name another run"
            )
        if section is not None:
            values = {**values, name: Settings(path, section)}
    if not isinstance(values.get("model", {}).get("name", ""), str):
        raise ConfigError(f"{path} names no model by a text; restore the file")
    return Settings(path, values)
