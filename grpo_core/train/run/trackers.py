"""Metrics for those who watch many runs: accelerate's trackers as event plugins, so that one that fails is said once and left out."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import tracking

from grpo_core.config.settings import PLUGIN, LogConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import MissingExtraError
from grpo_core.protocol.hookspecs import hookimpl


class Tracked:
    """Hears of a run's events and passes them on. make: the tracker, for a run folder that exists."""

    def __init__(self, make: Callable[[Path], tracking.GeneralTracker]) -> None:
        self._make = make

    @hookimpl
    def grpo_run_start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._tracker = self._make(run_dir)
        self._tracker.start()
        self._tracker.store_init_configuration(dict(_flat(config)))

    @hookimpl
    def grpo_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tracker.log(
            {name: value for name, value in metrics.items() if math.isfinite(value)}, step=step
        )

    grpo_eval_end = grpo_step_end

    @hookimpl
    def grpo_run_end(self) -> None:
        self._tracker.finish()


def trackers(config: LogConfig, host: Callable[[], PluginHost]) -> dict[str, Tracked]:
    """Those that the config names. host: asked for what plugins offer: a function of the run folder that makes a tracker with the methods
    of accelerate's. Raises MissingExtraError for one whose package is not installed."""
    found = {}
    for name in config.trackers:
        if name.startswith(PLUGIN):
            found[name] = Tracked(host().load("tracker", name.removeprefix(PLUGIN)))
        elif importlib.util.find_spec(name) is None:
            raise MissingExtraError(f"log.trackers={name}", "trackers", package=name)
        else:
            found[name] = Tracked(partial(_MAKERS[name], config.project))
    return found


def _wandb(project: str, folder: Path) -> tracking.GeneralTracker:
    """One run there for one folder here, also when it is resumed."""
    run = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    return tracking.WandBTracker(project, name=folder.name, id=run, resume="allow", dir=str(folder))


_MAKERS: Mapping[str, Callable[[str, Path], tracking.GeneralTracker]] = {
    "tensorboard": lambda project, folder: tracking.TensorBoardTracker("tensorboard", folder),
    "wandb": _wandb,
    "mlflow": lambda project, folder: tracking.MLflowTracker(
        experiment_name=project, run_name=folder.name
    ),
    "trackio": lambda project, folder: tracking.TrackioTracker(project, name=folder.name),
}


def _flat(
    config: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str | int | float | bool]]:
    """Settings in dotted form, as trackers take them: lists as JSON, and nothing that is unset."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float | bool):
            yield prefix + name, value
        elif isinstance(value, Sequence):
            yield prefix + name, json.dumps(list(value))
