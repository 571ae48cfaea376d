"""Trainers of the letters environment, by their folder and any number of settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_core.config.overrides import build_config
from grpo_core.runs.folder import RunFolder
from grpo_core.train.trainer import Trainer

from .letters import Letters
from .runs import Heard as Heard


def make(
    folder: Path | RunFolder | None, *settings: Mapping[str, Any], env: Any = None, **more: Any
) -> Trainer:
    """Return a trainer; of settings that are given twice, the later ones count."""
    return Trainer(build_config(list(settings)), env or Letters(), folder=folder, **more)


def trained(folder: Path, *settings: Mapping[str, Any], env: Any = None) -> tuple[Trainer, Heard]:
    """Return a trainer after its run, and what the run said."""
    heard = Heard()
    trainer = make(folder, *settings, env=env, observer=heard)
    trainer.run()
    return trainer, heard
