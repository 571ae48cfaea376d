"""Log metrics to experiment trackers: accelerate's trackers as listeners.

A tracker that fails is reported once and left out.
"""

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
from grpo_core.protocol.events import EvaluationEnded, Event, RunEnded, RunStarted, StepEnded
from grpo_core.runs.folder import is_inner_folder


class Tracked:
    """Pass what a listener hears of metrics on to a tracker.

    Args:
        make: creates the tracker for a run folder that exists.
    """

    def __init__(self, make: Callable[[Path], tracking.GeneralTracker]) -> None:
        self._make = make

    def on(self, event: Event) -> None:
        """Begin, log or finish."""
        match event:
            case RunStarted():
                self._tracker = self._make(event.run_dir)
                self._tracker.start()
                self._tracker.store_init_configuration(dict(_flatten(event.config)))
            case StepEnded() | EvaluationEnded():
                metrics = event.metrics.items()
                self._tracker.log(
                    {name: value for name, value in metrics if math.isfinite(value)},
                    step=event.step,
                )
            case RunEnded():
                self._tracker.finish()


def trackers(config: LogConfig, host: PluginHost) -> dict[str, Callable[[], Tracked]]:
    """Return functions that make the trackers that the config names.

    Args:
        host: offers functions of the run folder that make a tracker with the methods of
            accelerate's.

    Raises:
        MissingExtraError: the package of a tracker is not installed.
    """
    tracked: dict[str, Callable[[], Tracked]] = {}
    for name in config.trackers:
        if name.startswith(PLUGIN):
            tracked[name] = partial(Tracked, host.load("tracker", name.removeprefix(PLUGIN)))
        elif importlib.util.find_spec(name) is None:
            raise MissingExtraError(f"log.trackers={name}", "trackers", package=name)
        else:
            tracked[name] = partial(Tracked, partial(_MAKERS[name], config.project))
    return tracked


def _tensorboard(project: str, folder: Path) -> tracking.GeneralTracker:
    is_inner_folder(folder / "tensorboard")  # a link is refused
    return tracking.TensorBoardTracker("tensorboard", folder)


def _wandb(project: str, folder: Path) -> tracking.GeneralTracker:
    """Make the W&B tracker; a run folder is one W&B run, also when it is resumed."""
    is_inner_folder(folder / "wandb")  # a link is refused
    run_id = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    return tracking.WandBTracker(
        project, name=folder.name, id=run_id, resume="allow", dir=str(folder)
    )


def _mlflow(project: str, folder: Path) -> tracking.GeneralTracker:
    """Make the MLflow tracker; it writes into the run folder where no other place is configured."""
    import mlflow

    if mlflow.is_tracking_uri_set():  # by MLFLOW_TRACKING_URI, or by the program
        return tracking.MLflowTracker(experiment_name=project, run_name=folder.name)
    is_inner_folder(folder / "mlflow")  # a link is refused
    (folder / "mlflow").mkdir(exist_ok=True)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    return _OwnMlflow(
        experiment_name=project,
        logging_dir=str(folder / "mlflow" / "artifacts"),
        run_name=folder.name,
    )


class _OwnMlflow(tracking.MLflowTracker):  # type: ignore[misc]
    """Forgets the place at the end: the next run of this process has a folder of its own."""

    def finish(self) -> None:
        import mlflow

        super().finish()
        mlflow.set_tracking_uri(None)


_MAKERS: Mapping[str, Callable[[str, Path], tracking.GeneralTracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": lambda project, folder: tracking.TrackioTracker(project, name=folder.name),
}


def _flatten(
    config: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str | int | float | bool]]:
    """Yield the settings in dotted form, as trackers take them.

    Lists become JSON; settings without a value are left out.
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float | bool):
            yield prefix + name, value
        elif isinstance(value, Sequence):
            yield prefix + name, json.dumps(list(value))
