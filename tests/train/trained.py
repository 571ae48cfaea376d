"""Trainers of the letters environment, and an observer that keeps what a run says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_core.config.overrides import build_config
from grpo_core.runs.observer import Observer
from grpo_core.train.trainer import Trainer

from .letters import Letters


class Heard(Observer):
    """Keep what a run says, and what it warns of."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warnings: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def make(
    folder: Path | None, *settings: Mapping[str, Any], env: Any = None, **more: Any
) -> Trainer:
    """Return a trainer; of settings that are given twice, the later ones count."""
    return Trainer(build_config(list(settings)), env or Letters(), folder=folder, **more)


def trained(folder: Path, *settings: Mapping[str, Any], env: Any = None) -> tuple[Trainer, Heard]:
    """Return a trainer after its run, and what the run said."""
    heard = Heard()
    trainer = make(folder, *settings, env=env, observer=heard)
    trainer.run()
    return trainer, heard
