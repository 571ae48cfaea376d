"""What tests of whole runs share: the settings of one that learns, observers, and what its log holds."""

from pathlib import Path
from typing import Any

from grpo_core.config.overrides import build_config
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.trainer import Trainer

from .tiny import save_tiny

TIMED = ("time/", "verify/seconds/", "memory/", "seconds")
"""Parts of the names of metrics about the machine, which differ between equal runs."""


class Heard(Observer):
    """Keeps what a run says and warns of."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.said: list[str] = []
        self.warnings: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.texts.append(text)
        self.warnings.append(text)

    def about(self, words: str) -> list[str]:
        """Return the texts in which these words stand."""
        return [text for text in self.texts if words in text]


def small_settings(model: Path) -> dict[str, Any]:
    """Return those of a run in which the tiny model learns within a few steps."""
    return {
        "environment": "letters",
        "model": {"name": str(model), "dtype": "float32"},
        "prompts_per_step": 4,
        "group_size": 6,
        "optimizer": {"lr": 0.01},
        "advantage": {"name": "grpo"},
    }


def finished_arithmetic(root: Path, **more: Any) -> Path:
    """Train a tiny model for a step of an installed environment, and return the folder of the run."""
    settings = {
        "environment": "arithmetic",
        "prompts_per_step": 2,
        "group_size": 2,
        "steps": 1,
        "eval": {"tasks": 2},
        "sampling": {"max_new_tokens": 3},
    }
    config = build_config([small_settings(save_tiny(root / "tiny")), settings, more])
    Trainer(config, folder=root / "run").run()
    return root / "run"


def logged(folder: Path, name: str) -> list[Any]:
    """Return the values of a metric, in the order of the lines that have it."""
    return [line[name] for line in read_lines(folder / "metrics.jsonl") if name in line]


def untimed(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without what was measured about the machine."""
    return [
        {name: value for name, value in line.items() if not any(part in name for part in TIMED)}
        for line in read_lines(folder / "metrics.jsonl")
    ]
