"""Planted faults, fresh half: rows of data sets, and the reward functions of those who have some."""

from __future__ import annotations

import random
from typing import ClassVar

from bases_answers_fresh import SPACE
from catalogue import FOLDER, fault

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_env_dataset.env import Dataset


def rewarded(environment: type[Dataset], reward: str) -> Dataset:
    """Return the data set with a reward function of `rewards_fresh.py`."""
    return environment(
        Dataset.Config(
            path=str(FOLDER / "rows.jsonl"),
            prompt="{question}",
            reward=f"{FOLDER / 'rewards_fresh.py'}:{reward}",
        )
    )


# Reward functions


@fault(
    "the answer is looked for by `in`",
    "floor.listed",
    "floor.suffix",
    build=lambda: rewarded(RowsInTheBlock, "answer_in_block"),
)
class RowsInTheBlock(Dataset):
    pass


@fault(
    "the answer contains the reply",
    "floor.near",
    build=lambda: rewarded(RowsThatHoldTheBlock, "block_in_answer"),
)
class RowsThatHoldTheBlock(Dataset):
    pass


@fault(
    "the answer is looked for by `in`",
    "floor.listed",
    "floor.suffix",
    build=lambda: rewarded(RowsOfAnyCase, "any_case"),
)
class RowsOfAnyCase(Dataset):
    pass


@fault(
    "the first match counts",
    "floor.listed",
    "floor.suffix",
    build=lambda: rewarded(RowsByFirstNumber, "first_number"),
)
class RowsByFirstNumber(Dataset):
    pass


@fault(
    "tolerance without a declaration",
    "floor.near",
    build=lambda: rewarded(RowsWithinTenPercent, "within_ten_percent"),
)
class RowsWithinTenPercent(Dataset):
    pass


@fault(
    "the order of the digits is dropped",
    "floor.near",
    "floor.spelling",
    build=lambda: rewarded(RowsBySameDigits, "same_digits"),
)
class RowsBySameDigits(Dataset):
    pass


@fault(
    "zip compares as far as the shorter one goes",
    "floor.near",
    "floor.empty",
    "floor.suffix",
    build=lambda: rewarded(RowsThatStartAlike, "starts_alike"),
)
class RowsThatStartAlike(Dataset):
    pass


@fault(
    "float() raises for what is no number",
    "floor.junk",
    "floor.empty",
    "verdict.form",
    build=lambda: rewarded(RowsByFloat, "float_of_block"),
)
class RowsByFloat(Dataset):
    pass


@fault(
    "a word of the prompt is paid",
    "floor.echo",
    build=lambda: rewarded(RowsByKeyword, "by_keyword"),
)
class RowsByKeyword(Dataset):
    pass


@fault(
    "points instead of a share",
    "verdict.form",
    "declared.contract",
    build=lambda: rewarded(RowsInPoints, "points"),
)
class RowsInPoints(Dataset):
    pass


@fault(
    "no number for a wrong answer",
    "verdict.form",
    "floor.junk",
    build=lambda: rewarded(RowsWithoutAReward, "nothing_for_wrong"),
)
class RowsWithoutAReward(Dataset):
    pass


@fault(
    "a penalty that the range does not have",
    "verdict.form",
    "declared.contract",
    build=lambda: rewarded(RowsBelowZero, "wrong_is_minus_one"),
)
class RowsBelowZero(Dataset):
    pass


@fault(
    "every exception is a wrong answer",
    "verdict.swallow",
    "verdict.reference",
    build=lambda: rewarded(RowsOfAnotherColumn, "any_failure_is_zero"),
)
class RowsOfAnotherColumn(Dataset):
    pass


# Rows

GOOD = ("lovely", "splendid", "bright", "gentle", "superb", "charming", "fresh", "brilliant")
BAD = ("dreadful", "dull", "stale", "shabby", "awful", "gloomy", "rude", "broken")
THINGS = ("hotel", "film", "soup", "book", "garden", "train", "song", "chair", "museum", "phone")
Row = tuple[str, str]


def review_rows() -> list[Row]:
    """Return reviews with one of four labels each, as many of each, in a fixed order."""
    pools = {"good": (GOOD, GOOD), "bad": (BAD, BAD), "rising": (BAD, GOOD), "falling": (GOOD, BAD)}
    rows = [
        (f"The {thing} was {first} at first and {second} in the end.", label)
        for label, (one, two) in pools.items()
        for thing in THINGS
        for first in one
        for second in two
        if first != second and THINGS.index(thing) % 2 == len(first + second) % 2
    ]
    random.Random("reviews").shuffle(rows)
    return rows


class Reviews(Environment[str]):
    """Label reviews, of which there is a list: 400 to train on and 80 held out."""

    levels = False
    answer_in_prompt = True
    timeout_seconds = 2.0
    rows: ClassVar[list[Row]] = review_rows()[:480]

    def size(self, split: str) -> int:
        return 400 if split == "train" else 80

    def task(self, key: TaskKey) -> Task[str]:
        review, label = self.row(key)
        return Task(key, (Message("user", self.asked(review, label)),), label)

    def row(self, key: TaskKey) -> Row:
        return self.rows[key.index + (400 if key.split == "eval" else 0)]

    def asked(self, review: str, label: str) -> str:
        return f"{review}\nReply with one word: good, bad, rising or falling."

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = rollout.text.strip(SPACE) == task.data
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[str]) -> str:
        return task.data


@fault("held-out rows are among the training rows", "task.split", "task.seed")
class FirstRowsHeldOut(Reviews):
    def row(self, key: TaskKey) -> Row:
        return self.rows[key.index]


@fault("held-out rows are among the training rows", "task.split")
class HeldOutInCapitals(Reviews):
    """The held-out file was exported a second time, with capitals and other spaces."""

    def row(self, key: TaskKey) -> Row:
        review, label = self.rows[key.index * 3 if key.split == "eval" else key.index]
        return (review.upper() + " ", label) if key.split == "eval" else (review, label)


@fault("the same question has two answers", "task.ambiguous")
class TwoLabelsForOne(Reviews):
    """Two people labelled each review, and they disagree now and then."""

    def row(self, key: TaskKey) -> Row:
        review, label = self.rows[key.index // 2 + (400 if key.split == "eval" else 0)]
        second = key.index % 4 == 3
        return review, {"good": "rising", "bad": "falling"}.get(label, "bad") if second else label


@fault("there are fewer rows than size() says", "task.variety")
class RowsAgainAndAgain(Reviews):
    def size(self, split: str) -> int:
        return 4000 if split == "train" else 800

    def row(self, key: TaskKey) -> Row:
        return self.rows[key.index % 40 + (400 if key.split == "eval" else 0)]


@fault("the last row is missing", "task.made", "task.variety")
class OneRowTooFew(Reviews):
    rows: ClassVar[list[Row]] = review_rows()[:479]


@fault("one label is most of the rows", "floor.balance", "floor.constant")
class NearlyAllGood(Reviews):
    rows: ClassVar[list[Row]] = [
        row for number, row in enumerate(review_rows()) if row[1] == "good" or number % 11 == 0
    ]

    def size(self, split: str) -> int:
        return 150 if split == "train" else 50

    def row(self, key: TaskKey) -> Row:
        return self.rows[key.index + (150 if key.split == "eval" else 0)]


@fault("the label's column is in the template", "task.secret")
class LabelInThePrompt(Environment[int]):
    """Asks for a price; the whole row was pasted into the prompt."""

    levels = False
    timeout_seconds = 2.0

    def size(self, split: str) -> int:
        return 300 if split == "train" else 60

    def task(self, key: TaskKey) -> Task[int]:
        rng = random.Random(key.index + (300 if key.split == "eval" else 0))
        many, cents, thing = rng.randrange(11, 99), rng.randrange(101, 999), rng.choice(THINGS)
        row = {"thing": thing, "many": many, "cents": cents, "label": many * cents}
        prompt = f"{row}\nHow many cents do all of them cost? Reply with the number only."
        return Task(key, (Message("user", prompt),), many * cents)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        right = rollout.text.strip(SPACE) == str(task.data)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


@fault("rows are shuffled without a seed", "task.process")
class ShuffledAtTheStart(Reviews):
    shuffled: ClassVar[list[Row]] = random.sample(review_rows()[:400], 400)

    def row(self, key: TaskKey) -> Row:
        return self.shuffled[key.index] if key.split == "train" else super().row(key)


@fault("equal rows are removed by a set", "task.process")
class RowsOfASet(Reviews):
    rows: ClassVar[list[Row]] = [*set(review_rows()[:400]), *review_rows()[400:480]]


@fault("the next row, whichever was asked for", "task.pure")
class RowsInTurn(Reviews):
    turn = 0

    def row(self, key: TaskKey) -> Row:
        if key.split == "eval":
            return super().row(key)
        self.turn = (self.turn + 1) % 400
        return self.rows[self.turn]


@fault("labels are compared by their first letters", "floor.suffix", "floor.near")
class FirstLetterOfTheLabel(Reviews):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = rollout.text.strip().lower()[:1] == task.data[0]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])


@fault("all labels in one reply are paid", "floor.listed", "floor.superset")
class LabelSomewhere(Reviews):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = task.data in rollout.text.lower().split(" ")
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])
