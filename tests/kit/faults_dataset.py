"""Planted faults of reward functions and rows with which the bundled `dataset` is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from catalogue import fault

from grpo_core import Services
from grpo_env_dataset.env import Dataset, DatasetConfig

ROWS = Path(__file__).parent / "rows.jsonl"
"""Eighty questions with the fields `question`, `answer` and `city`."""
REWARDS = Path(__file__).parent / "rewards.py"


class _Rows(Dataset):
    """The bundled environment with rows and settings of the catalogue."""

    settings: Any = DatasetConfig(path=str(ROWS))

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(self.settings if config is None else config, services)


@fault("the user's reward function finds the answer anywhere", "floor.listed")
class RowsBySubstring(_Rows):
    settings = DatasetConfig(path=str(ROWS), reward=f"{REWARDS}:substring")


@fault("the user's reward function takes the last number", "floor.listed")
class RowsByLastNumber(_Rows):
    settings = DatasetConfig(path=str(ROWS), reward=f"{REWARDS}:last_number")


@fault("the user's reward function counts shared words", "floor.listed", "floor.suffix")
class RowsBySharedWords(_Rows):
    settings = DatasetConfig(path=str(ROWS), reward=f"{REWARDS}:shared_words")


@fault("the user's reward function pays for the form", "floor.other", "floor.junk")
class RowsByTags(_Rows):
    settings = DatasetConfig(path=str(ROWS), reward=f"{REWARDS}:anything_in_tags")


@fault("the user's reward function raises", "floor.junk", "verdict.form", "floor.empty")
class RowsByInt(_Rows):
    settings = DatasetConfig(path=str(ROWS), reward=f"{REWARDS}:int_of_text")


@fault("the user's reward function pays out of range", "verdict.form", "verdict.reference")
class RowsInPercent(_Rows):
    settings = DatasetConfig(path=str(ROWS), reward=f"{REWARDS}:in_percent")


@fault("the user's prompt holds the answer", "task.secret")
class RowsThatTell(_Rows):
    settings = DatasetConfig(path=str(ROWS), prompt="{question} ({answer})")


@fault("the user's prompt is too narrow for its rows", "task.ambiguous")
class RowsWithoutNumbers(_Rows):
    """The prompt names the city, and several rows are about the same one."""

    settings = DatasetConfig(path=str(ROWS), prompt="How many lamps are there in {city}?")
