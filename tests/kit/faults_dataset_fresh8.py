"""Planted faults of people who bring their own rows."""

from __future__ import annotations

from pathlib import Path

from catalogue import fault

from grpo_env_dataset.env import Config, Dataset

ROWS = str(Path(__file__).with_name("rows_fresh8.jsonl"))
REWARDS = Path(__file__).with_name("rewards_fresh8.py")


@fault(
    "the user's prompt is too narrow for its rows",
    "task.ambiguous",
    build=lambda: HarbourQuestionsAlone(
        Config(path=ROWS, prompt="{question}", reward="number", eval_share=0.2)
    ),
)
class HarbourQuestionsAlone(Dataset):
    """Asks the rows' questions without the log of the day, so one has many answers."""


@fault(
    "the user's reward function finds the answer anywhere",
    "floor.listed",
    build=lambda: HarbourMinutesAnywhere(
        Config(
            path=ROWS,
            prompt="{log}\n{question}",
            system="You read harbour logs. Say how you get there.",
            reward=f"{REWARDS}:mentions_minutes",
            eval_share=0.2,
        )
    ),
)
class HarbourMinutesAnywhere(Dataset):
    """Looks for the number anywhere in a free text; whoever names many numbers passes."""
