"""Planted faults of reward functions and rows with which the bundled `dataset` is used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from catalogue import fault, variant

from grpo_core import Services
from grpo_env_dataset.config import DatasetConfig
from grpo_env_dataset.env import Dataset

ROWS = Path(__file__).parent / "rows.jsonl"
"""Eighty questions with the fields `question`, `answer` and `city`."""
REWARDS = Path(__file__).parent / "rewards.py"


class Rows(Dataset):
    """The bundled environment with rows and settings of the catalogue."""

    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        own = DatasetConfig(**{"path": str(ROWS), **self.settings})
        super().__init__(own if config is None else config, services)


for name, reward, kind, *checks in (
    ("RowsBySubstring", "substring", "finds the answer anywhere", "floor.listed"),
    ("RowsByLastNumber", "last_number", "takes the last number", "floor.listed"),
    ("RowsBySharedWords", "shared_words", "counts shared words", "floor.listed", "floor.suffix"),
    ("RowsByTags", "anything_in_tags", "pays for the form", "floor.other", "floor.junk"),
    ("RowsByInt", "int_of_text", "raises", "floor.junk", "verdict.form", "floor.empty"),
    ("RowsInPercent", "in_percent", "pays out of range", "verdict.form", "verdict.reference"),
):
    made = variant(__name__, name, Rows, settings={"reward": f"{REWARDS}:{reward}"})
    fault(f"the user's reward function {kind}", *checks)(made)


@fault("the user's prompt holds the answer", "task.secret")
class RowsThatTell(Rows):
    settings: ClassVar[Mapping[str, str]] = {"prompt": "{question} ({answer})"}


@fault("the user's prompt is too narrow for its rows", "task.ambiguous")
class RowsWithoutNumbers(Rows):
    """The prompt names the city, and several rows are about the same one."""

    settings: ClassVar[Mapping[str, str]] = {"prompt": "How many lamps are there in {city}?"}
