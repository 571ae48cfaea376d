"""Tasks that are unsuited to training or measurement, fourth fresh part."""

from __future__ import annotations

import base64
import json
import random
from collections import namedtuple
from functools import cache
from typing import Any, cast

from bases_fresh4 import Coins, Finish, Heavier, JsonPuzzle, Ledger, Portions, Seat
from bases_words_fresh4 import Cipher, Route, Stations, coined, stations
from catalogue import fault

from grpo_core import Message, Task, TaskKey
from grpo_core.extract import parse_integer

DISHES = (
    *("soup", "bread", "olives", "salad", "pasta", "trout", "dumplings", "risotto", "cheese"),
    *("cake", "sorbet", "coffee", "juice", "stew"),
)


@fault("a prompt has several right answers, one is accepted", "task.ambiguous")
class TwoDishes(JsonPuzzle):
    """Two dishes are drawn and their prices added, and other two may cost as much."""

    levels = False

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        menu = random.Random(f"menu {rng.randrange(8)}")
        prices = tuple(sorted((dish, menu.randint(4, 29)) for dish in menu.sample(DISHES, 10)))
        return prices, tuple(sorted(rng.sample([dish for dish, _ in prices], 2)))

    def asked(self, prices: tuple[tuple[str, int], ...], pair: tuple[str, ...]) -> str:
        told = ", ".join(f"{dish} {price}" for dish, price in prices)
        total = sum(dict(prices)[dish] for dish in pair)
        return (
            f"A menu: {told}. Which two different dishes cost {total} together? Reply with a JSON "
            "list of their names, in the order of the alphabet."
        )

    def solved(self, prices: tuple[tuple[str, int], ...], pair: tuple[str, ...]) -> Any:
        return list(pair)


@fault("a prompt is empty or of a wrong type", "task.made", "declared.contract")
class NoComma(Seat):
    """A comma was forgotten, and one message in brackets is no tuple."""

    def posed(self, key: TaskKey, *content: Any) -> Task[Any]:
        prompt = Message("user", self.asked(*content))
        return Task(key, cast(Any, prompt), self.solved(*content))


@fault("a reference is longer than max_new_tokens", "verdict.reference", "task.budget")
class BudgetOfANumber(Coins):
    """The answer used to be one number, and the budget was kept when it became an object."""

    max_new_tokens = 8


@fault("a task cannot be sent to another process", "task.pickle")
class TypeOfTheTask(Portions):
    """The data are of a type that is made with the task, and that no module has."""

    def solved(self, each: tuple[tuple[str, int], ...], people: int, guests: int) -> Any:
        amounts = super().solved(each, people, guests)
        return namedtuple("Amounts", amounts)(**amounts)

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(truth._asdict(), answer)

    def written(self, truth: Any) -> str:
        return json.dumps(truth._asdict())


@fault("a task seeds the global generator", "safety.state", "task.pure", "task.random")
class SeedsForLibrary(Route):
    """A helper draws from the global generator, which is seeded by the whole key before."""

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        random.seed(repr(key))
        return super().fitting(key, cast(random.Random, random))


WORDINGS = {
    "train": "A phone costs {price} crowns and {rate} percent of tax. What does it cost with tax?",
    "eval": "Without tax, a phone is {price} crowns. Tax is {rate} percent. What is its price "
    "with tax?",
}


@fault("held-out tasks are paraphrased training tasks", "task.split")
class OtherWords(Ledger):
    """The same prices and rates are asked for in other words."""

    levels = False

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return key.split, 100 * rng.randint(11, 60), rng.choice((5, 8, 12, 15, 20, 25))

    def asked(self, split: str, price: int, rate: int) -> str:  # type: ignore[override]
        told = WORDINGS[split].format(price=price, rate=rate)
        return f'{told} End with a line such as "Price: 70".'

    def solved(self, split: str, price: int, rate: int) -> int:  # type: ignore[override]
        return price + price * rate // 100

    def read(self, text: str) -> Any:
        label, _, number = text.strip().rpartition("\n")[2].partition(": ")
        return parse_integer(number, max_digits=9) if label == "Price" else None

    def written(self, truth: Any) -> str:
        return f"Price: {truth}"


@fault("levels fall", "task.level")
class EasierWithLevel(Finish):
    """The number of runners falls from eight to four."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        return super().drawn(rng, 1 - level)


@cache
def answered() -> dict[str, list[tuple[str, int, int, int]]]:
    """Return the rows with two people's answers, of whom the second slips now and then."""
    rng = random.Random("second")
    table: dict[str, list[tuple[str, int, int, int]]] = {}
    for split, rows in stations().items():
        table[split] = []
        for name, height, year in rows:
            slip = rng.choice((0, 0, -100, 10, 1))
            table[split].append((name, height, year, height + year))
            table[split].append((name, height, year, height + year + slip))
    return table


@fault("rows with the same prompt have different answers", "task.ambiguous")
class TwoPeopleAnswered(Stations):
    """Each row was answered twice, and where they disagree both were kept."""

    def size(self, split: str) -> int | None:
        return len(answered()[split])

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return answered()[key.split][key.index]

    def asked(self, *content: Any) -> str:
        return super().asked(*content[:3])

    def solved(self, *content: Any) -> int:
        return int(content[3])


@fault("the last training rows are held out, too", "task.split")
class LastRows(Stations):
    """The slices were right for a longer table, before some stations were taken out."""

    def rows(self, split: str) -> list[tuple[str, int, int]]:
        rows = stations()["train"]
        return rows[:600] if split == "train" else rows[-150:]

    def size(self, split: str) -> int | None:
        return len(self.rows(split))

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return self.rows(key.split)[key.index]


@fault("the prompt holds the answer in disguise", "task.secret")
class LinkToForm(Heavier):
    """The link to the sheet has its content in base64, with the solution."""

    def asked(self, crates: tuple[tuple[str, int], ...], limit: int) -> str:
        sheet = f"limit={limit}&key={self.solved(crates, limit)}"
        code = base64.urlsafe_b64encode(sheet.encode()).decode().rstrip("=")
        return f"Sheet https://sheets.example/{code}\n{super().asked(crates, limit)}"


@fault("what decides the answer is not in the prompt", "task.ambiguous")
class WayNotTold(Cipher):
    """Whether letters are shifted forward or back is drawn, and no longer told."""

    levels = False

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        return coined(rng, 1), rng.choice((-1, 1)) * rng.randint(1, 3)

    def asked(self, word: str, places: int) -> str:
        return (
            f"Move each letter of {word!r} by {abs(places)} in the alphabet, in which a follows z. "
            "Reply with the new syllable only."
        )
