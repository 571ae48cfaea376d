"""Metrics for those who watch many runs: accelerate's trackers as event plugins, so that one that fails is said once and left out."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import tracking

from grpo_core.errors import MissingExtraError
from grpo_core.hookspecs import hookimpl
from grpo_core.plugins import PluginHost
from grpo_core.settings import PLUGIN, LogConfig

Make = Callable[[Path], tracking.GeneralTracker]


class Tracked:
    """Hears of a run's events and passes them on. make: the tracker, for a run folder that exists."""

    def __init__(self, make: Make) -> None:
        self._make = make

    @hookimpl
    def grpo_run_start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._tracker = self._make(run_dir)
        self._tracker.start()
        self._tracker.store_init_configuration(dict(_flat(config)))

    @hookimpl
    def grpo_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, metrics)

    @hookimpl
    def grpo_eval_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, metrics)

    @hookimpl
    def grpo_run_end(self) -> None:
        self._tracker.finish()

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tracker.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step=step)


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
            found[name] = Tracked(_MAKERS[name](config.project))
    return found


def _tensorboard(project: str) -> Make:
    return lambda folder: tracking.TensorBoardTracker("tensorboard", folder)


def _wandb(project: str) -> Make:
    """One run there for one folder here, also when it is resumed."""

    def make(folder: Path) -> tracking.GeneralTracker:
        run = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
        return tracking.WandBTracker(project, name=folder.name, id=run, resume="allow", dir=str(folder))

    return make


def _mlflow(project: str) -> Make:
    return lambda folder: tracking.MLflowTracker(experiment_name=project, run_name=folder.name)


def _trackio(project: str) -> Make:
    return lambda folder: tracking.TrackioTracker(project, name=folder.name)


_MAKERS: Mapping[str, Callable[[str], Make]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    """Settings in dotted form, as trackers take them: lists as JSON, and nothing that is unset."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float | bool):
            yield prefix + name, value
        elif isinstance(value, Sequence):
            yield prefix + name, json.dumps(list(value))
