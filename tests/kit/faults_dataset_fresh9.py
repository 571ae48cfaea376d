"""Faults of settings, rows and reward functions for the bundled dataset, of the kinds E."""

from __future__ import annotations

from pathlib import Path

from catalogue import fault

from grpo_env_dataset.env import Config, Dataset

ROWS = str(Path(__file__).with_name("rows_fresh9.jsonl"))
REWARDS = Path(__file__).with_name("rewards_fresh9.py")


@fault(
    "the user's prompt holds the answer",
    "task.secret",
    build=lambda: NurseryWithItsWorking(
        Config(path=ROWS, prompt="{question}\nNote: {working}", reward="number")
    ),
)
class NurseryWithItsWorking(Dataset):
    """Should give the gardener's note as a help; the note ends with the number."""


@fault(
    "the user's reward function counts shared words",
    "floor.listed",
    "floor.suffix",
    build=lambda: NurseryInNumberWords(
        Config(
            path=ROWS,
            prompt="{question} Write the number in words, such as nine hundred ninety.",
            answer="words",
            reward=f"{REWARDS}:recalled_words",
        )
    ),
)
class NurseryInNumberWords(Dataset):
    """Should pay in part for a part of the number; a reply with all number words is full."""


@fault(
    "the user's reward function pays for the form",
    "floor.other",
    "floor.junk",
    build=lambda: NurseryThoughtAndAnswer(
        Config(
            path=ROWS,
            system="Reason in <think>...</think>, then give the number in <answer>...</answer>.",
            reward=f"{REWARDS}:form_and_number",
        )
    ),
)
class NurseryThoughtAndAnswer(Dataset):
    """Should pay for the form besides the number; the form alone reaches the highest pay."""
