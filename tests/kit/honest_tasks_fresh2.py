"""Honest designs: tasks that look odd and are right (the second fresh half)."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property
from typing import Any, ClassVar

from bases_fresh2 import (
    PEOPLE,
    ColumnName,
    DayAfter,
    FractionSum,
    Invoice,
    KilnSwing,
    MostCoins,
    NetworkOf,
    PrimeFactors,
    Quiz,
    Seconds,
    Spelled,
)
from catalogue import honest

from grpo_core import Message, Task, TaskKey, held_out
from grpo_core.extract import parse_integer


@honest("the answer is a date, whose beginning is often that of the prompt's date")
class PlainDay(DayAfter):
    pass


@honest("the answer is a fraction, and the prompt names others as examples")
class PlainFraction(FractionSum):
    pass


@honest("the answer is a word of capitals, of which shorter ones are other answers")
class PlainColumn(ColumnName):
    pass


@honest("the answer is an address that shares its first numbers with that of the prompt")
class PlainNetwork(NetworkOf):
    pass


@honest("one of four names is right, and each of them stands in the prompt, as is declared")
class PlainCoins(MostCoins):
    pass


@honest("the answer is an object with three numbers, of which one decides the others")
class PlainInvoice(Invoice):
    pass


@honest("the answer is a list with repeated items, in one order only")
class PlainFactors(PrimeFactors):
    pass


@honest("the answer is marked in the last line of a free text, and read as a whole")
class PlainSwing(KilnSwing):
    pass


@honest("a list with an end, which is long, and split by content")
class PlainSeconds(Seconds):
    pass


@honest("only symbols differ between prompts, and their order is the task")
class ClosingBracket(Spelled):
    form = r"\d{1,3}"

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        text, pairs = "", 14 + round(26 * key.level)
        opened, stack = 0, list[str]()
        while opened < pairs or stack:
            if opened < pairs and (len(stack) < 2 or rng.random() < 0.45):
                stack.append(rng.choice("([{"))
                text, opened = text + stack[-1], opened + 1
            else:
                text += {"(": ")", "[": "]", "{": "}"}[stack.pop()]
        return (text, rng.choice([at for at in range(len(text) // 2) if text[at] in "([{"]))

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            text, at = self.drawn(key, rng)
            if held_out(text) == (key.split == "eval"):
                return text, at

    def question(self, text: str, at: int) -> str:
        return (
            f"Brackets are counted from 1, from the left. Which one closes bracket {at + 1} of "
            f"{text} ? Reply with its number only."
        )

    def solved(self, text: str, at: int) -> str:
        depth = 0
        for number, sign in enumerate(text[at:], at + 1):
            depth += 1 if sign in "([{" else -1
            if depth == 0:
                return str(number)
        raise ValueError(text)


@honest("five wordings of one question, and content alone decides the split")
class WordedDay(DayAfter):
    words: ClassVar[tuple[str, ...]] = (
        "Which date is {days} days after {start}?",
        "Count {days} days on from {start}: which date is it?",
        "A parcel is sent on {start} and arrives {days} days later. When?",
        "Today is {start}. What will be the date in {days} days?",
        "{days} days have passed since {start}. What is the date?",
    )

    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        start, days = content
        asked = key.rng("words").choice(self.words).format(start=start, days=days)
        prompt = (Message("user", f"{asked} Reply with the date only, as YYYY-MM-DD."),)
        return Task(key, prompt, self.solved(start, days))


@honest("examples in the prompt are other tasks, drawn from the training split only")
class ExampleColumns(ColumnName):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        train, rng = replace(key, split="train"), key.rng("examples")
        chat = list[Message]()
        while len(chat) < 4:
            shown = self.fitting(train, rng)
            if shown != content:
                chat.append(Message("user", self.question(*shown)))
                chat.append(Message("assistant", self.solved(*shown)))
        chat.append(Message("user", self.question(*content)))
        return Task(key, tuple(chat), self.solved(*content))


@honest("three kinds of question in turn, by the index")
class ThreeKinds(Quiz):
    @cached_property
    def kinds(self) -> tuple[Spelled, ...]:
        return DayAfter(), FractionSum(), NetworkOf()

    def task(self, key: TaskKey) -> Task[Any]:
        number = key.index % len(self.kinds)
        task = self.kinds[number].task(key)
        return replace(task, data=(number, task.data))

    def read(self, text: str) -> Any:
        return next(
            ((n, found) for n, kind in enumerate(self.kinds) if (found := kind.read(text))), None
        )

    def reference(self, task: Task[Any]) -> str:
        return str(task.data[1])


@honest("held-out numbers are longer than all that are trained on, so that no task is in both")
class LongerHeldOut(FractionSum):
    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        low, high = (200, 300) if key.split == "eval" else (11, 40)
        top = high + round((high - 11) * key.level)
        one, two = rng.randint(low, top), rng.randint(low, top)
        return rng.randrange(low // 2, one), one, rng.randrange(low // 2, two), two


@honest("the prompt has braces, quotes and percent signs, as a template would")
class TemplatedInvoice(Invoice):
    def question(self, lines: tuple[Any, ...], rate: int) -> str:
        rows = ",\n".join(
            f'  {{"name": "{{{{part_{n}}}}}", "count": {count}, "cents": {price}, "%": "100%s"}}'
            for n, (count, price) in enumerate(lines)
        )
        ask = super().question(lines, rate).splitlines()[-2:]
        return (
            f"[\n{rows}\n]\nEach line has the cents of one piece; names are filled in later.\n"
            + "\n".join(ask)
        )


@honest("there are two levels only, easy below a half and hard above it")
class TwoSteps(PrimeFactors):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return super().drawn(replace(key, level=float(key.level >= 0.5)), rng)


@honest("what is harder are sentences that do not matter, and the answer stays as simple")
class DistractedSeconds(Seconds):
    levels = True
    rows: ClassVar[Mapping[str, list[tuple[int, int, int]]]] = Seconds.rows

    def size(self, split: str) -> None:  # type: ignore[override]
        return None

    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        rng = key.rng("tales")
        tales = [
            f"{rng.choice(PEOPLE)} waited for {rng.randint(2, 59)} minutes."
            for _ in range(round(8 * key.level))
        ]
        tales.insert(len(tales) // 2, self.question(*content))
        return Task(key, (Message("user", " ".join(tales)),), self.solved(*content))

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return rng.choice(self.rows[key.split])


@dataclass(frozen=True, slots=True)
class Village:
    """Settings of a quiz about people."""

    people: int = 24
    """How many people there are."""
    seed: int = 7
    """Which people."""


@honest("each instance draws its people, with a seed of the settings")
class SettledCoins(MostCoins):
    Config: ClassVar = Village

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.people = random.Random(self.config.seed).sample(PEOPLE, self.config.people)

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            names = tuple(rng.sample(self.people, 4))
            count = 3 + round(9 * key.level)
            gifts = tuple((*rng.sample(names, 2), rng.randint(2, 99)) for _ in range(count))
            held = sorted(self.holdings(names, gifts).values())
            if held[-1] > held[-2]:
                return names, gifts


@honest("a table is made at the first task, and is the same whichever task that is")
class LazyTable(Spelled):
    levels = False
    form = r"[A-Z][a-z]+"
    answer_in_prompt = False

    @cached_property
    def seats(self) -> tuple[str, ...]:
        return tuple(random.Random("seats").sample(PEOPLE, 24))

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return rng.randrange(24), rng.randint(30, 900), rng.choice((3, 5, 7, 11))

    def question(self, first: int, steps: int, stride: int) -> str:
        return (
            f"In a ring of 24 seats sit, from seat 0 on: {', '.join(self.seats)}. A ball starts at "
            f"seat {first} and is passed {steps} times, each time {stride} seats on. Who has it? "
            "Reply with the name only."
        )

    def solved(self, first: int, steps: int, stride: int) -> str:
        return self.seats[(first + steps * stride) % 24]


@honest("the held-out list is longer than the one to train on")
class LongEvaluation(Seconds):
    rows: ClassVar[Mapping[str, list[tuple[int, int, int]]]] = {
        "train": Seconds.rows["eval"],
        "eval": Seconds.rows["train"],
    }


@honest("dates are long past or far ahead, and no clock is read")
class OldDay(DayAfter):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        start = date(1601, 1, 1) + timedelta(rng.randrange(140_000, 400_000))
        return start, rng.randint(20, 90 + round(9000 * key.level))


@honest("a long chat of rules and of examples that never change")
class RuledSwing(KilnSwing):
    rules: ClassVar[tuple[Message, ...]] = (
        Message("system", "You read the book of a kiln."),
        Message("user", "Temperatures: 20.5, 30.0. What is the difference?"),
        Message("assistant", "30.0 is the highest one.\nAnswer: 9.5"),
        Message("user", "Good. The kiln is hotter now."),
        Message("assistant", "I am ready."),
    )

    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        task = super().asked(key, *content)
        return replace(task, prompt=(*self.rules, *task.prompt))


@honest("the truth is a nested structure, from which the question could be made again")
class NestedTruth(NetworkOf):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        address, prefix = content
        data = {"asked": [address, {"prefix": prefix}], "right": self.solved(address, prefix)}
        return Task(key, (Message("user", self.question(address, prefix)),), data)

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(truth["right"], answer)

    def reference(self, task: Task[Any]) -> str:
        return str(task.data["right"])


@honest("the prompt is a table in JSON, and the answer one of its many numbers added up")
class TabledSum(Quiz):
    max_new_tokens = 16

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        names = rng.sample(PEOPLE, 6 + round(20 * key.level))
        return (tuple((name, rng.choice("NSEW"), rng.randint(1000, 9999)) for name in names),)

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            (rows,) = self.drawn(key, rng)
            sides = [side for _, side, _ in rows]
            twice = sorted(side for side in set(sides) if sides.count(side) > 1)
            if twice and held_out(repr(rows)) == (key.split == "eval"):
                return rows, rng.choice(twice)

    def question(self, rows: tuple[Any, ...], side: str) -> str:
        table = [{"who": name, "side": at, "eggs": eggs} for name, at, eggs in rows]
        return f"{json.dumps(table)}\nHow many eggs has side {side}? Reply with the number only."

    def solved(self, rows: tuple[Any, ...], side: str) -> int:
        return sum(eggs for _, at, eggs in rows if at == side)

    def read(self, text: str) -> int | None:
        return parse_integer(text, max_digits=9)
