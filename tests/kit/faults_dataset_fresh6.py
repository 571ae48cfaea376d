"""Planted faults of the sixth fresh part: rows and the user's functions for them."""

from __future__ import annotations

from bases_words_fresh6 import settings6
from catalogue import fault

from grpo_env_dataset.env import Dataset


@fault(
    "the user's reward function counts shared words",
    "floor.suffix",
    "floor.superset",
    "floor.near",
    "floor.other",
    "floor.echo",
    "floor.listed",
    build=lambda: WordsOfThePassive(
        settings6("words_found", system="Reply with the new sentence only.")
    ),
)
class WordsOfThePassive(Dataset):
    """Words of the right sentence are counted in the reply, in any order and among others."""

    timeout_seconds = 2.0
