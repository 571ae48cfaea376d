"""Reward functions of users that go wrong in the environment `dataset`."""

from __future__ import annotations

from pathlib import Path

from catalogue import fault

from grpo_env_dataset.env import Config, Dataset

ROWS = str(Path(__file__).with_name("rows_fresh7.jsonl"))
REWARDS = str(Path(__file__).with_name("rewards_fresh7.py"))
BARE = "Think step by step, and then give the answer as a number."


@fault(
    "the user's reward function pays out of range",
    "verdict.form",
    "verdict.reference",
    build=lambda: PaysForTidiness(Config(path=ROWS, reward=f"{REWARDS}:right_and_tidy")),
)
class PaysForTidiness(Dataset):
    """The right answer is paid with 1, and a reply without anything around the tags with 0.2.

    Whoever has both gets 1.2, which is no reward from 0 to 1.
    """


@fault(
    "the user's reward function raises",
    "floor.junk",
    "verdict.form",
    "floor.empty",
    build=lambda: PaysTheNear(Config(path=ROWS, reward=f"{REWARDS}:right_or_near")),
)
class PaysTheNear(Dataset):
    """A wrong number is paid by how near it is, so what stands in the tags is made a number.

    Where it is a word, a sum or nothing, `int` raises and the reply has no reward.
    """


@fault(
    "the user's reward function takes the last number",
    "floor.listed",
    build=lambda: NumbersInARow(
        Config(path=ROWS, reward=f"{REWARDS}:number_at_last", system=BARE, tag="")
    ),
)
class NumbersInARow(Dataset):
    """A reply may reason, so the last number that it names is its answer.

    A reply that tries numbers one after another is right if it stops at the right one.
    """
