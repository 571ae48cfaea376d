"""Planted faults: tasks and their prompts (the second fresh half)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, ClassVar

from bases_fresh2 import (
    ColumnName,
    DayAfter,
    FractionSum,
    Invoice,
    KilnSwing,
    MostCoins,
    NearColumns,
    NetworkOf,
    PrimeFactors,
    Seconds,
)
from catalogue import fault

from grpo_core import Message, Task, TaskKey, held_out


@fault("a schema in the prompt has the answer as a constant", "task.secret")
class SchemaInvoice(Invoice):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        task = super().asked(key, *content)
        fields = {name: {"const": value} for name, value in task.data.items()}
        schema = json.dumps({"type": "object", "properties": fields})
        prompt = f"{self.question(*content)}\nIt has to match this schema: {schema}"
        return replace(task, prompt=(Message("user", prompt),))


@fault("tests that are shown assert the answer", "task.secret")
class AssertedColumn(ColumnName):
    def question(self, number: int) -> str:
        test = f'assert column({number}) == "{self.solved(number)}"'
        return f"{super().question(number)}\nYour reply is tested by:\n{test}"


@fault("the prompt names the limits of the accepted answers", "task.secret")
class AcceptedSwing(KilnSwing):
    def question(self, readings: tuple[str, ...]) -> str:
        right = self.solved(readings)
        return f"{super().question(readings)} Accepted are numbers from {right} to {right}."


@fault("a link in the prompt has the answer as a parameter", "task.secret")
class LinkedNetwork(NetworkOf):
    def question(self, address: str, prefix: int) -> str:
        found = self.solved(address, prefix)
        link = f"https://calc.example/?ip={address}&prefix={prefix}&network={found}"
        return f"{super().question(address, prefix)}\nSource: {link}"


@fault(
    "a placeholder of the prompt is not filled in", "task.ambiguous", "task.variety", "task.split"
)
class UnfilledColumn(ColumnName):
    def question(self, number: int) -> str:
        return "Which letters has column {number} of a spreadsheet? Reply with the letters only."


@fault(
    "what is shown is rounded, and what is judged is not",
    "task.ambiguous",
    "task.split",
    "task.variety",
)
class RoundedSwing(KilnSwing):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        count = 2 + round(3 * key.level)
        return (tuple(str(Decimal(n) / 10) for n in rng.sample(range(900, 1000), count)),)

    def question(self, readings: tuple[str, ...]) -> str:
        shown = (str(round(Decimal(reading))) for reading in readings)
        return super().question(tuple(shown))


@fault("the year is drawn and not shown", "task.ambiguous", "task.split", "task.variety")
class YearlessDay(DayAfter):
    levels = False

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return date(rng.randint(2030, 2060), rng.randint(1, 12), 1), rng.randrange(20, 91, 10)

    def question(self, start: date, days: int) -> str:
        return f"Which date is {days} days after {start:%d %B}? Reply with it, as YYYY-MM-DD."


@fault("prompts are cut at a fixed length", "task.ambiguous", "task.variety", "task.split")
class CutFraction(FractionSum):
    def question(self, a: int, b: int, c: int, d: int) -> str:
        intro = "Reply with a fraction in lowest terms, such as 22/7 or 5/1. "
        return (intro + f"What is {a}/{b} + {c}/{d}?")[: len(intro) + 12]


@fault("working is asked for that does not fit into the budget", "task.budget")
class WorkedSwing(KilnSwing):
    levels = False
    max_new_tokens = 24

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (tuple(str(Decimal(n) / 10) for n in rng.sample(range(5000, 10_000), 24)),)

    def question(self, readings: tuple[str, ...]) -> str:
        return f"{super().question(readings)} Before it, write all temperatures, sorted."

    def reference(self, task: Task[Any]) -> str:
        prompt = task.prompt[0].content if isinstance(task.prompt, tuple) else task.prompt
        readings = sorted(re.findall(r"\d+(?:\.\d)?(?=[,.] )", prompt), key=float)
        return f"Sorted: {', '.join(readings)}\nAnswer: {task.data}"


@fault("the budget counts words, not tokens", "task.budget")
class OneWordDay(DayAfter):
    max_new_tokens = 1


@fault(
    "when no draw fits, a task that never changes is asked",
    "task.variety",
    "floor.constant",
    "floor.balance",
    "task.seed",
    "task.level",
)
class DefaultFactors(PrimeFactors):
    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        for _ in range(2):
            (number,) = self.drawn(key, rng)
            if number < 10_000 and held_out(str(number)) == (key.split == "eval"):
                return (number,)
        return (5005,) if key.split == "train" else (1309,)


@fault("at the lowest level there is next to nothing to draw from", "task.variety", "task.seed")
class BareDay(DayAfter):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        later = rng.randint(0, round(5000 * key.level))
        return date.fromordinal(date(2030, 1, 1).toordinal() + later), rng.randint(20, 29)


@fault("the level is taken for a percentage", "task.level")
class PercentFactors(PrimeFactors):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{key.split}/{key.seed}/{key.index}")

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return super().drawn(replace(key, level=float(key.level > 50)), rng)


@fault("the hardest level is the easiest one again", "task.level")
class WrappedColumn(ColumnName):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{key.split}/{key.seed}/{key.index}/{round(10 * key.level) % 10}")

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return super().drawn(replace(key, level=round(10 * key.level) % 10 / 10), rng)


@fault("a clamp in the wrong direction makes all levels alike", "task.level")
class ClampedSwing(KilnSwing):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(json.dumps([key.split, key.seed, key.index]))

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return super().drawn(replace(key, level=max(1.0, key.level)), rng)


@fault("a split is named that there is not", "task.split", "task.seed")
class MisnamedSplit(NearColumns):
    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            content = self.drawn(key, rng)
            if held_out(repr(content)) == (str(key.split) == "test"):
                return content


@fault("after three tries a task is taken, whatever its split", "task.split", "task.seed")
class ThirdTryColumn(NearColumns):
    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        content: tuple[Any, ...] = ()
        for _ in range(3):
            content = self.drawn(key, rng)
            if held_out(repr(content)) == (key.split == "eval"):
                break
        return content


@fault("what is held out at one level is trained at another", "task.split")
class LevelSplitColumn(NearColumns):
    levels = True

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randint(100, 500 + round(300 * key.level)),)

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            content = self.drawn(key, rng)
            if held_out(f"{key.level} {content}") == (key.split == "eval"):
                return content


@fault("the held-out range includes the training range", "task.split", "task.seed")
class WiderSecond(Seconds):
    def size(self, split: str) -> int:
        return 3000 if split == "train" else 3600

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (2, *divmod(key.index, 60))


@fault("a greeting decides the split", "task.split")
class GreetedColumn(NearColumns):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return rng.choice(("Hello!", "Hi!", "Good day!")), rng.randint(100, 250)

    def question(self, *content: Any) -> str:
        greeting, number = content
        return f"{greeting} {super().question(number)}"

    def solved(self, *content: Any) -> str:
        return super().solved(content[1])


@dataclass(frozen=True, slots=True)
class Seed:
    """Settings of a quiz with a seed of its own."""

    seed: int = 0
    """Where the tasks begin."""


@fault("the seed is a setting, and that of the key is ignored", "task.seed")
class SettingsNetwork(NetworkOf):
    Config: ClassVar = Seed

    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{self.config.seed} {key.split} {key.index} {key.level}")


@fault("rows are shuffled by the run's seed before they are split", "task.seed", "task.split")
class ShuffledSeconds(Seconds):
    def size(self, split: str) -> int:
        return 160 if split == "train" else 40

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        rows = self.rows["train"][:200]
        random.Random(key.seed).shuffle(rows)
        return rows[key.index + (160 if key.split == "eval" else 0)]


@fault("a shared list is shuffled in place", "task.pure", "task.process")
class ReorderedCoins(MostCoins):
    people: ClassVar[list[str]] = ["Arado", "Becia", "Corlis", "Dalfan", "Elmund", "Hulgard"]

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            rng.shuffle(self.people)
            names = tuple(self.people[:4])
            count = 3 + round(9 * key.level)
            gifts = tuple((*rng.sample(names, 2), rng.randint(2, 99)) for _ in range(count))
            held = sorted(self.holdings(names, gifts).values())
            if held[-1] > held[-2]:
                return names, gifts


@fault("each question is asked after those before it", "task.pure", "task.process")
class GrowingChat(DayAfter):
    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.chat = [Message("system", "You are good at dates.")]

    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        self.chat.append(Message("user", self.question(*content)))
        return Task(key, (self.chat[0], *self.chat[1:][-4:]), self.solved(*content))


class Truth:
    """A truth that cannot be compared."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


@fault("the data cannot be compared", "task.pure", "task.process", "task.pickle", "verdict.repeat")
class ObjectNetwork(NetworkOf):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        return Task(key, (Message("user", self.question(*content)),), Truth(self.solved(*content)))

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(str(truth), answer)


@fault("a generator is left in the data", "task.pickle", "task.pure", "task.process")
class LazyFactors(PrimeFactors):
    def asked(self, key: TaskKey, number: int) -> Task[Any]:
        def factors() -> Iterator[int]:
            yield from self.solved(number)

        return Task(
            key, (Message("user", self.question(number)),), {"n": number, "rest": factors()}
        )

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(self.solved(truth["n"]), answer)

    def reference(self, task: Task[Any]) -> str:
        return json.dumps(self.solved(task.data["n"]))


@fault("levels between those of a table cannot be made", "task.made", "task.level")
class TabledFraction(FractionSum):
    most: ClassVar[Mapping[float, int]] = {0.0: 12, 0.2: 25, 0.4: 40, 0.6: 60, 0.8: 80, 1.0: 95}

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        one, two = (rng.randint(3, self.most[key.level]) for _ in range(2))
        return rng.randrange(1, one), one, rng.randrange(1, two), two


@fault("a message has a role that there is not", "task.made")
class HumanDay(DayAfter):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        role: Any = "human"
        return Task(key, (Message(role, self.question(*content)),), self.solved(*content))


@fault("a task has another key than was asked for", "task.made", "task.pure")
class RekeyedColumn(ColumnName):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        return super().asked(TaskKey("spreadsheet", key.split, key.index), *content)


@fault("a rounding makes most answers 0", "floor.balance", "floor.constant")
class FlooredSeconds(Seconds):
    def question(self, hours: int, minutes: int, seconds: int) -> str:
        return (
            f"How many whole days are {hours // 2} h {minutes} min {seconds} s and 13 h 7 min? "
            "Reply with the number only."
        )

    def solved(self, hours: int, minutes: int, seconds: int) -> int:
        return (super().solved(hours // 2, minutes, seconds) + 47_220) // 86_400


@fault("answers are cut to a limit, which most of them reach", "floor.balance", "floor.constant")
class LimitedSeconds(Seconds):
    def question(self, hours: int, minutes: int, seconds: int) -> str:
        return f"{super().question(hours, minutes, seconds)} Above 9999 write 9999."

    def solved(self, hours: int, minutes: int, seconds: int) -> int:
        return min(super().solved(hours, minutes, seconds), 9999)
