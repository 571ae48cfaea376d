"""Faults of what is asked: splits, seeds, levels, leaks, budgets, balance."""

from __future__ import annotations

import base64
import json
import random
import secrets
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

from bases_fresh import (
    FOODS,
    LETTERS,
    Arrival,
    Asks,
    Basket,
    Binary,
    Initials,
    Shifted,
    kept_back,
    scrambled,
)
from catalogue import fault

from grpo_core import Message, Task, TaskKey

# What is held out


class _Mixed(Asks):
    """Content is drawn without a look at the split."""

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return self.content(key, rng)


class _OneStream(Asks):
    """Both splits get the same content."""

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return self.content(key, random.Random(f"{key.seed} {key.index} {key.level}"))


@fault("held-out tasks are training tasks in capitals", "task.split")
class ShoutedHeldOut(_OneStream, Initials):
    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        text = self.question(*content)
        text = text.upper() if key.split == "eval" else text
        return Task(key, (Message("user", text),), self.solution(*content))


@fault("held-out tasks are training tasks with their items turned round", "task.split")
class BasketsTurnedRound(_OneStream, Basket):
    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        return super().made(key, content[::-1] if key.split == "eval" else content)


@fault("held-out tasks are training tasks with other line breaks", "task.split")
class LinesHeldOut(_OneStream, Initials):
    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        text = self.question(*content)
        text = text.replace(": ", ":\n").replace(" ", "  ") if key.split == "eval" else text
        return Task(key, (Message("user", text),), self.solution(*content))


@fault("both splits draw from one small pool", "task.split")
class OnePoolForBoth(_Mixed):
    """Times of day on a 24-hour clock, in minutes after midnight."""

    levels = False

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randrange(2, 24), rng.choice(range(1, 60, 4)))

    def question(self, *content: Any) -> str:
        hour, minute = content
        return f"How many minutes after midnight is {hour:02}:{minute:02}? Reply with the number."

    def solution(self, *content: Any) -> str:
        return str(content[0] * 60 + content[1])


@fault("both splits draw from one small pool", "task.split")
class ShuffledInEachSplit(_Mixed):
    """A word list that is shuffled anew for each split, and cut nowhere."""

    levels = False
    words: ClassVar[Sequence[str]] = [
        first + second
        for first in ("sun", "rain", "snow", "moon", "star", "fire", "sand", "wind", "sea", "hill")
        for second in ("flower", "light", "shine", "fall", "dust", "storm", "berry", "horse")
    ]

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        words = sorted(self.words)
        random.Random(f"{key.split} {key.seed} {key.index // len(words)}").shuffle(words)
        return (words[key.index % len(words)],)

    def question(self, *content: Any) -> str:
        return f"Write {content[0]} without its first and its last letter."

    def solution(self, *content: Any) -> str:
        return str(content[0][1:-1])


@fault("held-out tasks are training tasks further on", "task.seed", "task.split")
class HeldOutAfterFiveThousand(_Mixed, Shifted):
    def generator(self, key: TaskKey) -> random.Random:
        index = key.index + (5000 if key.split == "eval" else 0)
        return random.Random(f"cipher/{key.seed}/{index}")


@fault("the seed of the run is ignored", "task.seed")
class SeedForgotten(Arrival):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{key.split}-{key.index}-{key.level}")


@fault("seed and index run into each other", "task.seed")
class SeedAndIndexGlued(Arrival):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{key.split}{key.seed}{key.index}")


@fault("seed and index run into each other", "task.seed")
class SeedTimesIndex(Shifted):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{key.split} {(key.seed + 1) * (key.index + 1)}")


@fault("several indices give the same task", "task.seed", "task.variety")
class FourOfEach(Basket):
    """Meant as groups: the author asks each task four times, though the trainer already does."""

    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{key.split} {key.seed} {key.index // 4} {key.level}")


@fault("there is one task for each level", "task.seed", "task.variety")
class OneOfEachLevel(Basket):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{key.split} {round(100 * key.level)}")


# What the prompt tells


@fault("the example in the prompt is the task itself", "task.secret")
class ExampleIsTheTask(Basket):
    """The example is drawn from a new generator of the key, which draws the same again."""

    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        example = self.chosen(key, key.rng())
        prompt = (
            Message("user", self.question(*example)),
            Message("assistant", self.solution(*example)),
            Message("user", self.question(*content)),
        )
        return Task(key, prompt, self.solution(*content))


@fault("the whole record is shown", "task.secret")
class ShowsTheRecord(Arrival):
    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        right = self.solution(*content)
        record = {"id": key.index, "question": self.question(*content), "label": right}
        return Task(key, (Message("user", json.dumps(record)),), right)


@fault("an encoded ticket holds the answer", "task.secret")
class TicketHoldsIt(Shifted):
    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        right = self.solution(*content)
        ticket = base64.b64encode(json.dumps({"task": key.index, "answer": right}).encode())
        text = f"{self.question(*content)}\nTicket: {ticket.decode()}"
        return Task(key, (Message("user", text),), right)


@fault("the solution's turn was left in the chat", "task.secret")
class SolvedBefore(Shifted):
    """Rows of a chat data set, to which the author adds a last turn about the form."""

    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        right = self.solution(*content)
        prompt = (
            Message("user", self.question(*content)),
            Message("assistant", f"The text is {right}."),
            Message("user", "Reply with the decoded text only."),
        )
        return Task(key, prompt, right)


@fault("the table has its total", "task.secret")
class TableWithTotal(Basket):
    def question(self, *content: Any) -> str:
        total = sum(cents for _, cents in content)
        lines = "\n".join(f"| {food} | {cents} |" for food, cents in content)
        return f"{lines}\n| total | {total} |\nWhat do all of them cost? Reply with the number."


@fault("the name of a file tells the answer", "task.secret")
class FileNameTells(Binary):
    """Each picture of a data set is named after its label."""

    def question(self, *content: Any) -> str:
        return f"File: scan_{content[0]:06}_b.png\n{super().question(*content)}"


# Prompts with several answers


@fault("a choice that decides the answer is not in the prompt", "task.ambiguous")
class SecretBase(Asks):
    """Digits whose base was drawn, and is not told."""

    levels = False

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (f"{rng.randrange(64, 256):b}", rng.choice((2, 3)))

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            digits, base = self.content(key, rng)
            if kept_back(digits) == (key.split == "eval"):
                return digits, base

    def question(self, *content: Any) -> str:
        return f"Write {content[0]} in decimal. Reply with digits only."

    def solution(self, *content: Any) -> str:
        return str(int(*content))


@fault("a choice that decides the answer is not in the prompt", "task.ambiguous")
class SecretRounding(Asks):
    """Halves are rounded up or down as the author's two sources did."""

    levels = False

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randrange(1001, 1401, 2), rng.choice((0, 1)))

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            number, up = self.content(key, rng)
            if kept_back(number) == (key.split == "eval"):
                return number, up

    def question(self, *content: Any) -> str:
        return f"What is half of {content[0]}, as a whole number? Digits only."

    def solution(self, *content: Any) -> str:
        return str(content[0] // 2 + content[1])


# How many there are


@fault("there are few different tasks", "task.variety")
class NineCapitals(Asks):
    levels = False
    capitals: ClassVar[dict[str, str]] = {
        "France": "Paris",
        "Spain": "Madrid",
        "Italy": "Rome",
        "Norway": "Oslo",
        "Greece": "Athens",
        "Poland": "Warsaw",
        "Egypt": "Cairo",
        "Peru": "Lima",
        "Japan": "Tokyo",
        "Kenya": "Nairobi",
        "Cuba": "Havana",
        "Chad": "N'Djamena",
    }

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        countries = list(self.capitals)
        return (rng.choice(countries[:9] if key.split == "train" else countries[9:]),)

    def question(self, *content: Any) -> str:
        return f"What is the capital of {content[0]}? Reply with its name only."

    def solution(self, *content: Any) -> str:
        return self.capitals[content[0]]


@fault("there are few different tasks", "task.variety")
class TableOfSeven(Asks):
    levels = False

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randrange(3, 16),)

    def question(self, *content: Any) -> str:
        return f"What is {content[0]} times seven? Reply with digits only."

    def solution(self, *content: Any) -> str:
        return str(7 * content[0])


class _Squares(Asks):
    """A list with an end: 160 squares to train on, 40 held out."""

    levels = False

    def row(self, key: TaskKey) -> int:
        return 101 + 5 * key.index if key.split == "eval" else 102 + key.index + key.index // 4

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        if key.index >= (160 if key.split == "train" else 40):
            raise IndexError(key.index)
        return (self.row(key),)

    def question(self, *content: Any) -> str:
        return f"What is the square of {content[0]}? Digits only."

    def solution(self, *content: Any) -> str:
        return str(content[0] ** 2)


@fault("size() is larger than the list", "task.made", "task.variety")
class SizeOfBothSplits(_Squares):
    def size(self, split: str) -> int:
        return 200


@fault("size() counts the same rows several times", "task.variety")
class CountsItsRepeats(_Squares):
    """Five epochs, counted as rows."""

    def size(self, split: str) -> int:
        return 5 * (160 if split == "train" else 40)

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        rows = 160 if key.split == "train" else 40
        return (self.row(TaskKey(key.env, key.split, key.index % rows)),)


# Levels


@fault("the level changes only a label", "task.level")
class LevelIsALabel(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randrange(200, 9000), rng.randrange(200, 9000))

    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        text = f"[difficulty {round(10 * key.level)}/10] {self.question(*content)}"
        return Task(key, (Message("user", text),), self.solution(*content))

    def question(self, *content: Any) -> str:
        return "How far apart are {} and {}? Digits only.".format(*content)

    def solution(self, *content: Any) -> str:
        return str(abs(content[0] - content[1]))


@fault("the level is cut to a whole number", "task.level")
class LevelCutToAWhole(Shifted):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (scrambled(rng, 5 + 10 * int(key.level)), rng.randrange(2, 12))


@fault("higher levels are easier", "task.level")
class EasierAbove(Basket):
    """The author read the level as the skill of a beginner's helper."""

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        foods = rng.sample(FOODS, 8 - round(6 * key.level))
        return tuple((food, rng.randrange(105, 995)) for food in foods)


@fault("levels are not there and not disowned", "task.level")
class LevelsForgotten(Initials):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.sample(self.words, 6))


# What a reference needs


@fault("the answer does not fit into the budget", "task.budget")
class WritesAllSquares(Asks):
    max_new_tokens = 24

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        first = rng.randrange(11, 900)
        return (first, first + 15 + round(20 * key.level))

    def question(self, *content: Any) -> str:
        return "List the squares of all numbers from {} to {}, by spaces.".format(*content)

    def solution(self, *content: Any) -> str:
        return " ".join(str(number**2) for number in range(content[0], content[1] + 1))


@fault("the answer of higher levels does not fit into the budget", "task.budget")
class BudgetOfTheEasiest(Shifted):
    """Made for words of five letters; later levels have sentences."""

    max_new_tokens = 8

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        words = (scrambled(rng, 5) for _ in range(1 + round(29 * key.level)))
        return (" ".join(words), rng.randrange(2, 12))

    def question(self, *content: Any) -> str:
        text, steps = content
        moved = (
            LETTERS[(LETTERS.index(letter) + steps) % 26] if letter != " " else letter
            for letter in text
        )
        return f"Each letter was moved {steps} places on in the alphabet: {''.join(moved)}. Decode."


# Balance


@fault("one answer is nearly always right", "floor.balance", "floor.constant")
class PrimeOrNot(Asks):
    """Any odd numbers, of which few are prime."""

    answer_in_prompt = True

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randrange(1001, 10 ** (4 + round(3 * key.level)), 2),)

    def question(self, *content: Any) -> str:
        return f"Can {content[0]} be divided by a number from 3 to 99? Reply with y or n."

    def solution(self, *content: Any) -> str:
        return "y" if any(content[0] % number == 0 for number in range(3, 100)) else "n"


@fault("one answer is nearly always right", "floor.balance", "floor.constant")
class RareLetter(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (scrambled(rng, 6 + round(6 * key.level)), rng.choice(LETTERS))

    def question(self, *content: Any) -> str:
        return "How often does '{1}' occur in '{0}'? Reply with a digit.".format(*content)

    def solution(self, *content: Any) -> str:
        return str(content[0].count(content[1]))


@fault("the right option always stands first", "floor.balance", "floor.constant")
class OptionsNotShuffled(Asks):
    """Options in the order in which they were made: the right one, then the wrong ones."""

    answer_in_prompt = True

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        top = 10 ** (2 + round(3 * key.level))
        return (rng.randrange(11, top), rng.randrange(11, top), rng.randrange(1, 10))

    def question(self, *content: Any) -> str:
        one, two, off = content
        options = (one + two, one + two + off, one + two - off)
        lines = "\n".join(f"{letter}. {n}" for letter, n in zip("abc", options, strict=True))
        return f"{one} + {two} = ?\n{lines}\nReply with the letter."

    def solution(self, *content: Any) -> str:
        return "a"


# Functions of the key


@fault("tasks are drawn from the system's random numbers", "task.pure")
class DrawnBySecrets(Arrival):
    def generator(self, key: TaskKey) -> random.Random:
        return secrets.SystemRandom()


@fault("a new identifier is in each prompt", "task.pure")
class FreshIdentifier(Arrival):
    def question(self, *content: Any) -> str:
        return f"Request {uuid.uuid4()}. {super().question(*content)}"


@fault("the rows are used up", "task.pure")
class RowsUsedUp(Asks):
    """Takes the next row from a list, so that no row is asked twice."""

    levels = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        numbers = [number for number in range(1000, 60_000) if not kept_back(number)]
        held = [number for number in range(1000, 60_000) if kept_back(number)]
        self.rows = {"train": numbers, "eval": held}
        for rows in self.rows.values():
            random.Random("rows").shuffle(rows)

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (self.rows[key.split].pop(),)

    def question(self, *content: Any) -> str:
        return f"Which number comes after {content[0]} * 2? Digits only."

    def solution(self, *content: Any) -> str:
        return str(2 * content[0] + 1)


@fault("questions are numbered as they are made", "task.pure")
class NumbersItsQuestions(Binary):
    made_so_far = 0

    def question(self, *content: Any) -> str:
        self.made_so_far += 1
        return f"Question {self.made_so_far}. {super().question(*content)}"


@fault("a cache forgets a part of the key", "task.pure", "task.level")
class CacheForgetsTheLevel(Basket):
    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, *self.cached(key.split, key.index, key.seed, key))

    def cached(self, split: str, index: int, seed: int, key: TaskKey) -> Any:
        if (split, index, seed) not in _BASKETS:
            task = super().task(key)
            _BASKETS[split, index, seed] = (task.prompt, task.data)
        return _BASKETS[split, index, seed]


_BASKETS: dict[tuple[str, int, int], tuple[Any, str]] = {}


@fault("the global generator is seeded for each task", "task.random")
class SeedsForAWhile(Shifted):
    """Reproducible, at the cost of everybody else who draws."""

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        random.seed(f"{key.split} {key.seed} {key.index} {key.level}")
        while True:
            text = "".join(random.choices(LETTERS, k=5 + round(10 * key.level)))
            steps = random.randrange(2, 12)
            if kept_back(text, steps) == (key.split == "eval"):
                return text, steps


@fault("the global generator is drawn from for what does not matter", "task.random")
class DrawsToWarmUp(Arrival):
    """A left-over: a sample for the author's log, drawn and thrown away."""

    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        self.show = random.random() < 0.01
        return super().made(key, content)


# Tasks that are not there


@fault("the hardest level cannot be made", "task.made", "task.level")
class MoreWordsThanThereAre(Initials):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.sample(self.words, 4 + round(24 * key.level)))


@fault("held-out tasks were not written", "task.made")
class TrainsOnly(Shifted):
    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        if key.split != "train":
            raise NotImplementedError("there is no held-out split yet")
        return super().chosen(key, rng)


@fault("prompts are empty", "task.made")
class TemplateLosesItsText(Binary):
    """The template strips what stands in brackets, which is all of it."""

    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        text = f"[{self.question(*content)}]"
        return Task(key, (Message("user", text.partition("[")[0]),), self.solution(*content))
