"""What may not have changed under a run that goes on: its settings and its environments, unless the change is named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, flat
from grpo_core.protocol.errors import ConfigError


def settings_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json holds without what a replay ignores."""
    return {key: value for key, value in stored.items() if key != "provenance"}


def changed_settings(config: RunConfig, saved: Mapping[str, Any]) -> dict[str, str]:
    """What each setting that differs was and is, as text. config: with which the run is to go on; saved: those of before."""
    before, now = flat(build_config([saved])), flat(config)
    return {
        key: f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in dict.fromkeys([*before, *now])
        if not key.startswith("provenance") and now.get(key) != before.get(key)
    }


def refuse_changed_settings(
    config: RunConfig, saved: Mapping[str, Any], *, allowed: Collection[str]
) -> None:
    """Raises ConfigError with every difference that is not allowed; the settings are as for `changed_settings`."""
    changed = [
        text for key, text in changed_settings(config, saved).items() if not _named(key, allowed)
    ]
    if changed:
        raise ConfigError(
            f"the settings are not those of the checkpoint: {'; '.join(changed)}. Put them back, or name what may differ: --allow KEY"
        )


def refuse_changed_environments(
    recorded: Mapping[str, str], found: Mapping[str, str], *, allowed: Collection[str]
) -> None:
    """Fingerprints by name, recorded in config.json and found now. Raises ConfigError for an environment that is another one now."""
    for name, now in found.items():
        before = recorded.get(name)
        if before is not None and before != now and name not in allowed:
            raise ConfigError(
                f"environment {name!r} has changed since the run began (its code, data or settings, its judges or its sandbox; "
                f"fingerprint {before}, now {now}), so its rewards may mean something else. Put it back, or go on all the same: "
                f"--allow {name}"
            )


def _named(key: str, allowed: Collection[str]) -> bool:
    """A setting is named by itself, by its section, or by a part of it."""
    return any(
        key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in allowed
    )
