"""Check that settings and environments of a resumed run have not changed.

A change is allowed if the user names it.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, flat
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder

if TYPE_CHECKING:  # it imports torch
    from grpo_core.train.run.rewind import Restart


def changed_settings(config: RunConfig, saved: Mapping[str, Any]) -> dict[str, str]:
    """Return for each setting that differs its old and new value, as text.

    Args:
        config: the settings with which the run is to continue.
        saved: the settings with which it began.
    """
    old_values, new_values = flat(build_config([saved])), flat(config)
    return {
        key: f"{key} was {old_values.get(key)!r}, is {new_values.get(key)!r}"
        for key in dict.fromkeys([*old_values, *new_values])
        if not key.startswith("provenance") and new_values.get(key) != old_values.get(key)
    }


def refuse_changed_settings(
    config: RunConfig, saved: Mapping[str, Any], *, allowed: Collection[str]
) -> None:
    """Raise ConfigError with every difference that is not allowed.

    Args:
        config: the settings with which the run is to continue.
        saved: the settings with which it began.
        allowed: names of settings or sections that may differ.
    """
    differences = [
        text
        for key, text in changed_settings(config, saved).items()
        if not _is_allowed(key, allowed)
    ]
    if differences:
        raise ConfigError(
            f"the settings are not those of the checkpoint: {'; '.join(differences)}. Restore "
            "them, or name what may differ: --allow KEY"
        )


def refuse_finished(folder: RunFolder, changes: Mapping[str, Any]) -> bool:
    """Return whether a run is finished, and refuse to go on with one that gets no more steps.

    Args:
        folder: the run.
        changes: the settings that are to differ, by their dotted names.

    Raises:
        ConfigError: it is finished, and they do not change its number of steps.
    """
    if folder.finished and not changes.keys() & {"steps", "epochs"}:
        run = shlex.quote(str(folder.shown))
        raise ConfigError(
            f"the run {folder.shown} is finished; to go on with it, give it more steps: --resume "
            f"{run} --steps N. To train its model in another way, start a run with --recipe "
            f"{shlex.quote(str(folder.path / 'config.json'))} --model {run} --out NEW"
        )
    return folder.finished


def refuse_fewer_steps(
    restart: Restart, folder: RunFolder, total: int | None, *, is_finished: bool
) -> None:
    """Refuse a number of steps that leaves nothing to do.

    Args:
        restart: where the run goes on.
        folder: the run.
        total: its number of steps from here on; None if that is not known yet.
        is_finished: whether it has done all its steps, and wants more.

    Raises:
        ConfigError: it has done more steps, or has no state to go on from.
    """
    if is_finished and restart.checkpoint is None:
        raise ConfigError(
            f"the run {folder.shown} is finished and has no checkpoint to go on from; start "
            f"another one with --model {folder.shown}"
        )
    if total is None or total > restart.step or (total == restart.step and not is_finished):
        return
    raise ConfigError(
        f"steps={total}, but the run {folder.shown} has done {restart.step}; give a larger number, "
        "or an older checkpoint by --from"
    )


def refuse_changed_environments(
    recorded: Mapping[str, str], found: Mapping[str, str], *, allowed: Collection[str]
) -> None:
    """Raise ConfigError for an environment whose fingerprint has changed.

    Args:
        recorded: fingerprints in config.json, by name.
        found: fingerprints now, by name.
        allowed: names of environments that may differ.
    """
    for name, now in found.items():
        before = recorded.get(name)
        if before is not None and before != now and name not in allowed:
            raise ConfigError(
                f"environment {name!r} has changed since the run began (its code, data or "
                f"settings, its judges or its sandbox; fingerprint {before}, now {now}), so its "
                f"rewards may mean something else. Restore it, or continue anyway: --allow {name}"
            )


def changed_processes(recorded: int, now: int, *, config: RunConfig) -> str:
    """Return what it means that the run continues in another number of processes; "" if it is not.

    Args:
        recorded: the number with which the run began.
        now: the number with which it continues.
        config: the settings with which it continues.
    """
    if recorded == now:
        return ""
    text = (
        f"the run began with {recorded} {'process' if recorded == 1 else 'processes'} and "
        f"continues with {now}: sums are rounded differently, so from here on the weights are no "
        f"longer bitwise those of --processes {recorded}"
    )
    if config.trainer.shard and now == 1:
        text += "; trainer.shard has no effect, so this process holds all weights"
    return text


def _is_allowed(key: str, allowed: Collection[str]) -> bool:
    """Return whether a setting is named by itself, by its section, or by a part of it."""
    return any(
        key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in allowed
    )
