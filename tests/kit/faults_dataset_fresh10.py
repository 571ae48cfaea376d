"""Rows of ferries, with prompts that say too much or too little."""

from pathlib import Path

from catalogue import fault

from grpo_env_dataset.config import DatasetConfig
from grpo_env_dataset.env import Dataset

ROWS = str(Path(__file__).with_name("rows_fresh10.jsonl"))
REWARD = f"{Path(__file__).with_name('rewards_fresh10.py')}:minutes_under_way"
LOGGED = DatasetConfig(
    path=ROWS, prompt="{current} {question}\nFrom the log: {log}", reward="number"
)
ALONE = DatasetConfig(path=ROWS, prompt="{question}", reward=REWARD)


@fault("the user's prompt holds the answer", "task.secret", build=lambda env: env(LOGGED))
class FerryWithItsLog(Dataset):
    """Adds the log of the passage as background, which was written after the arrival."""


@fault(
    "the user's prompt is too narrow for its rows", "task.ambiguous", build=lambda env: env(ALONE)
)
class FerryQuestionAlone(Dataset):
    """Asks the question of a row; what it says of the current is a field of its own."""
