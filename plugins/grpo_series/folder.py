"""Write and read the folder of a series: the list of its runs, and the recipe of each.

`series.json` names the runs, `recipes/NAME.json` holds all settings of the run in the folder NAME.
A run is begun with its recipe, so a series that somebody handed over asks for the consent that a
recipe asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core import ConfigError
from grpo_core.api.runs import (
    DamagedError,
    Layer,
    RunFolder,
    checked_config,
    names_in,
    read_document,
    read_sealed,
    seal,
    sync_folders,
    unreadable,
    write_whole,
    writing,
)
from grpo_core.api.settings import RunConfig

SERIES = "series.json"
"""The file that lists the runs of a series."""
RECIPES = "recipes"
"""The folder with the recipe of each run."""
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,99}")
_OWN_NAMES = (SERIES, RECIPES, ".lock")


@dataclass(frozen=True, slots=True)
class SeriesFolder:
    """Hold the folder of a series, and the names of its runs in their order."""

    path: Path
    names: tuple[str, ...]

    @property
    def runs(self) -> list[Path]:
        """Return the folder of each run, whether it has begun or not."""
        return [self.path / name for name in self.names]

    def recipe(self, name: str) -> Path:
        """Return the file with the settings of a run."""
        return self.path / RECIPES / f"{name}.json"

    @classmethod
    def read(cls, path: Path) -> SeriesFolder:
        """Return the series in a folder.

        Raises:
            ConfigError: it holds none, or the list of its runs is damaged.
        """
        try:
            content = read_sealed(path / SERIES)
        except DamagedError as error:
            raise ConfigError(
                f"{path} cannot be continued: {error}; give the command with --seeds or --sweep "
                f"again with --out {path}, which writes it anew"
            ) from None
        names = content.get("runs")
        if (
            not isinstance(names, list)
            or not names
            or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names)
        ):
            raise ConfigError(
                f"{path / SERIES} does not list the names of runs; remove the file and begin the "
                "series again"
            )
        return cls(path, tuple(names))

    @classmethod
    def write(cls, path: Path, configs: Mapping[str, RunConfig]) -> SeriesFolder:
        """Create a series, or extend the one in a folder; runs that have begun are kept.

        Args:
            path: the folder.
            configs: the settings of each run by its name.

        Raises:
            ConfigError: the folder holds something else, cannot be written, or holds a run that
                was begun with other settings.
        """
        series = cls(path, tuple(configs))
        _refuse_foreign_folder(path)
        for name, config in configs.items():
            _refuse_other_settings(path / name, config)
        with writing(path):
            (path / RECIPES).mkdir(parents=True, exist_ok=True)
            for name, config in configs.items():
                text = json.dumps(config.model_dump(mode="json"), indent=2)
                write_whole(series.recipe(name), text + "\n")
            sync_folders(path / RECIPES)
            listed = seal({"format": _FORMAT, "runs": list(configs)})
            write_whole(path / SERIES, json.dumps(listed, indent=2) + "\n")
            sync_folders(path)
        return series

    def remove(self) -> None:
        """Remove a series of which no run has begun: its list, its recipes and its folder."""
        for file in (self.path / SERIES, *map(self.recipe, self.names), self.path / ".lock"):
            file.unlink(missing_ok=True)
        for folder in (*self.runs, self.path / RECIPES, self.path):
            if folder.is_dir():
                (folder / ".lock").unlink(missing_ok=True)
                if not any(folder.iterdir()):
                    folder.rmdir()


def has_begun(run: Path) -> bool:
    """Return whether a run has written its settings, so that it can be continued."""
    return (run / "config.json").exists()


def _refuse_foreign_folder(path: Path) -> None:
    """Raise ConfigError if a folder holds a run, or something else than a series."""
    if has_begun(path):
        raise ConfigError(
            f"{path} already holds a run; a series needs a folder of its own, so choose another "
            "--out"
        )
    try:
        names = set(names_in(path)) if path.exists() else set()
    except OSError as error:
        raise ConfigError(unreadable(path, error)) from None
    if SERIES not in names and (foreign := sorted(names - set(_OWN_NAMES))):
        raise ConfigError(
            f"the folder {path} is not empty (it holds {', '.join(foreign[:5])}), and a series "
            "needs one of its own; choose another --out"
        )


def _refuse_other_settings(run: Path, config: RunConfig) -> None:
    """Raise ConfigError if a run has begun with other settings than those of the series.

    They are compared with the recipe that it began with: a run records more, and some of its
    settings may have been changed when it was continued.
    """
    recipe = run.parent / RECIPES / f"{run.name}.json"
    if not has_begun(run):
        return
    try:
        saved: Any = read_document(recipe)
        before = checked_config([Layer(saved)]).model_dump(mode="json")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{recipe}, the recipe of a run that has begun, cannot be read: {error}; choose "
            "another --out"
        ) from None
    now = config.model_dump(mode="json")
    if differences := list(_differences(before, now)):
        shown = "; ".join(differences[:5])
        raise ConfigError(
            f"the run {run} was begun with other settings: {shown}. Give the same ones, or choose "
            "another --out"
        )


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Yield a sentence about each setting that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*before, *now]):
            inner = f"{key}.{name}" if key else name
            yield from _differences(before.get(name), now.get(name), inner)
    elif before != now:
        yield f"{key} was {before!r}, is {now!r}"


def finished(run: Path) -> bool:
    """Return whether a run of a series is finished.

    Raises:
        ConfigError: its folder cannot be read.
    """
    return has_begun(run) and RunFolder.open(run).finished
