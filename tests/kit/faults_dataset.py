"""Planted faults of reward functions and rows with which the bundled `dataset` is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from catalogue import fault

from grpo_core import Services
from grpo_env_dataset.env import Config, Dataset

ROWS = Path(__file__).parent / "rows.jsonl"
"""Eighty questions with the fields `question`, `answer` and `city`."""


def substring(text: str, row: dict[str, Any]) -> float:
    """Pay for the answer anywhere in the text."""
    return float(str(row["answer"]) in text)


def last_number(text: str, row: dict[str, Any]) -> float:
    """Pay for the last number of the text."""
    numbers = re.findall(r"\d{1,12}", text[-300:])
    return float(bool(numbers) and numbers[-1] == str(row["answer"]))


def shared_words(text: str, row: dict[str, Any]) -> float:
    """Pay for the share of the answer's words that are in the text."""
    wanted = set(str(row["answer"]).split())
    return len(wanted & set(text[:5000].split())) / len(wanted)


def anything_in_tags(text: str, row: dict[str, Any]) -> float:
    """Pay for tags, whatever is between them."""
    return float(re.search(r"<answer>.+?</answer>", text[:5000]) is not None)


def int_of_text(text: str, row: dict[str, Any]) -> float:
    """Raise for whatever is no number."""
    return float(int(text.partition("<answer>")[2].partition("</answer>")[0]) == int(row["answer"]))


def in_percent(text: str, row: dict[str, Any]) -> float:
    """Pay 100 and not 1."""
    return 100.0 * (f"<answer>{row['answer']}</answer>" == text.strip())


class _Rows(Dataset):
    """The bundled environment with rows and settings of the catalogue."""

    settings: Any = Config(path=str(ROWS))

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(self.settings if config is None else config, services)


@fault("the user's reward function finds the answer anywhere", "floor.listed")
class RowsBySubstring(_Rows):
    settings = Config(path=str(ROWS), reward=f"{__file__}:substring")


@fault("the user's reward function takes the last number", "floor.listed")
class RowsByLastNumber(_Rows):
    settings = Config(path=str(ROWS), reward=f"{__file__}:last_number")


@fault("the user's reward function counts shared words", "floor.listed", "floor.suffix")
class RowsBySharedWords(_Rows):
    settings = Config(path=str(ROWS), reward=f"{__file__}:shared_words")


@fault("the user's reward function pays for the form", "floor.other", "floor.junk")
class RowsByTags(_Rows):
    settings = Config(path=str(ROWS), reward=f"{__file__}:anything_in_tags")


@fault("the user's reward function raises", "floor.junk", "verdict.form", "floor.empty")
class RowsByInt(_Rows):
    settings = Config(path=str(ROWS), reward=f"{__file__}:int_of_text")


@fault("the user's reward function pays out of range", "verdict.form", "verdict.reference")
class RowsInPercent(_Rows):
    settings = Config(path=str(ROWS), reward=f"{__file__}:in_percent")


@fault("the user's prompt holds the answer", "task.secret")
class RowsThatTell(_Rows):
    settings = Config(path=str(ROWS), prompt="{question} ({answer})")


@fault("the user's prompt is too narrow for its rows", "task.ambiguous")
class RowsWithoutNumbers(_Rows):
    """The prompt names the city, and several rows are about the same one."""

    settings = Config(path=str(ROWS), prompt="How many lamps are there in {city}?")
