"""Environments whose tasks look odd, and are sound."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bases_g_fresh10 import WHITE, chat, judged, wanted
from catalogue import honest

from grpo_core import Environment, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import xml_tag

STARTS = [
    "Bar",
    "Cal",
    "Dor",
    "Fen",
    "Gil",
    "Har",
    "Kes",
    "Lor",
    "Mar",
    "Nor",
    "Pel",
    "Quin",
    "Ros",
    "Sal",
    "Tam",
    "Ver",
]
ENDS = [
    "aby",
    "aco",
    "ander",
    "ek",
    "ell",
    "ette",
    "ian",
    "ik",
    "in",
    "ola",
    "on",
    "or",
    "osa",
    "una",
    "win",
    "yra",
]


@dataclass(frozen=True)
class Arrival:
    """Holds the name of the guest who is asked about."""

    guest: str


@honest("The prompt holds its answer, since the name has to be picked from a list; it is declared.")
class GuestByArrival(Environment[Arrival]):
    """Asks which guest of an inn came as the third, say; the list is by name, not by time."""

    answer_in_prompt = True
    max_new_tokens = 48
    rules = "Reply with the guest in <guest>...</guest>."

    def task(self, key: TaskKey) -> Task[Arrival]:
        rng = key.rng()
        while True:
            size = 6 + round(8 * key.level)
            pool = [start + end for start in STARTS for end in ENDS]
            guests = sorted(rng.sample(pool, size))
            minutes = rng.sample(range(14 * 60, 22 * 60), size)
            lines = [
                f"{guest}: {m // 60}:{m % 60:02d}" for guest, m in zip(guests, minutes, strict=True)
            ]
            place = rng.randint(1, size)
            guest = guests[minutes.index(sorted(minutes)[place - 1])]
            question = "\n".join(lines) + f"\nWho was number {place} to arrive?"
            if wanted(key, question):
                return chat(key, self.rules, question, Arrival(guest))

    def verify(self, task: Task[Arrival], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="guest")
        given = None if block is None else block.content.strip(WHITE)[:40]
        return judged(given == task.data.guest, given)

    def reference(self, task: Task[Arrival]) -> str:
        return f"<guest>{task.data.guest}</guest>"


DAYS = [datetime.date(1990, 1, 1) + datetime.timedelta(days=11 * n) for n in range(1500)]
DATED = {
    split: [day for day in DAYS if held_out(day.isoformat()) == (split == "eval")]
    for split in ("train", "eval")
}
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Dated:
    """Holds the name of a day of the week."""

    weekday: str


@honest("The prompt is raw text to go on with, and tasks are rows, which depend on the index only.")
class DiaryOfWeekdays(Environment[Dated]):
    """Has a base model complete an entry of a diary with the day of the week."""

    levels = False
    max_new_tokens = 8

    def size(self, split: str) -> int:
        return len(DATED[split])

    def task(self, key: TaskKey) -> Task[Dated]:
        day = DATED[key.split][key.index]
        text = f"2000-01-01 was a Saturday\n1999-12-31 was a Friday\n{day.isoformat()} was a"
        return Task(key, text, Dated(WEEKDAYS[day.weekday()]))

    def verify(self, task: Task[Dated], rollout: Rollout) -> Verdict:
        given = rollout.text.strip(WHITE)
        return judged(given == task.data.weekday, given[:40])

    def reference(self, task: Task[Dated]) -> str:
        return f" {task.data.weekday}"


@dataclass(frozen=True)
class Formula:
    """Holds the coefficients of a * x + b * y + c * x * y."""

    terms: tuple[int, int, int]


def _run(program: Sequence[str], x: int, y: int) -> int | None:
    """Return what a stack program leaves; None if it fails or grows beyond all bounds."""
    stack: list[int] = []
    for word in program:
        if word in ("x", "y"):
            stack.append(x if word == "x" else y)
        elif word in ("+", "-", "*"):
            if len(stack) < 2:
                return None
            second, first = stack.pop(), stack.pop()
            results = {"+": first + second, "-": first - second, "*": first * second}
            stack.append(results[word])
        elif re.fullmatch("[0-9]{1,4}", word, re.ASCII):
            stack.append(int(word))
        else:
            return None
        if abs(stack[-1]) > 10**12:
            return None
    return stack[0] if len(stack) == 1 else None


@honest("Any program that computes the formula is right; it is tried on inputs that are drawn.")
class PostfixPrograms(Environment[Formula]):
    """Asks for a program of a stack calculator, and runs it on inputs drawn for the verdict."""

    max_new_tokens = 96
    rules = (
        "Write a program for a stack calculator: words x, y, +, -, * and whole numbers of up to "
        "four digits, separated by spaces. It must leave the value of the formula. Reply with the "
        "program alone."
    )

    def task(self, key: TaskKey) -> Task[Formula]:
        rng = key.rng()
        while True:
            a, b = rng.randint(2, 60), rng.randint(2, 60)
            c = rng.randint(2, 60) if key.level >= 0.5 else 0
            text = f"{a} times x, plus {b} times y"
            if c:
                text += f", plus {c} times the product of x and y"
            if wanted(key, f"{a}x {b}y {c}xy"):
                return chat(key, self.rules, f"The formula: {text}.", Formula((a, b, c)))

    def verify(self, task: Task[Formula], rollout: Rollout) -> Verdict:
        program = re.split("[ \t\r\n]+", rollout.text[:600].strip(WHITE))
        if len(rollout.text) > 600 or not 1 <= len(program) <= 60:
            return judged(False, None)
        a, b, c = task.data.terms
        rng = task.rng()
        inputs = [(rng.randint(2, 99), rng.randint(2, 99)) for _ in range(8)]
        right = all(_run(program, x, y) == a * x + b * y + c * x * y for x, y in inputs)
        return judged(right, " ".join(program)[:200])

    def reference(self, task: Task[Formula]) -> str:
        a, b, c = task.data.terms
        return f"{a} x * {b} y * +" + (f" {c} x y * * +" if c else "")


ANIMALS = (
    "hen",
    "goat",
    "pig",
    "cow",
    "horse",
    "sheep",
    "duck",
    "goose",
    "cat",
    "dog",
    "turkey",
    "donkey",
    "rabbit",
    "rooster",
)


@dataclass(frozen=True)
class Song:
    """Holds the lines of a song."""

    lines: tuple[str, ...]


@honest("The reference is long, and so is the budget; there are two degrees of difficulty only.")
class CumulativeSongs(Environment[Song]):
    """Asks for a song in which every verse repeats all animals so far, from the last one back."""

    max_new_tokens = 1024
    rules = (
        "Write the song. Verse N has one line: 'I had a A and a B and a C', with the animals that "
        "I have had so far, the newest first. Reply with the verses alone, one on each line."
    )

    def task(self, key: TaskKey) -> Task[Song]:
        rng = key.rng()
        while True:
            animals = rng.sample(ANIMALS, 4 if key.level < 0.5 else 9)
            if wanted(key, " ".join(animals)):
                verses = (animals[n::-1] for n in range(len(animals)))
                lines = tuple("I had a " + " and a ".join(verse) for verse in verses)
                question = f"The animals, in the order in which I got them: {', '.join(animals)}."
                return chat(key, self.rules, question, Song(lines))

    def verify(self, task: Task[Song], rollout: Rollout) -> Verdict:
        text = rollout.text[:5000].strip(WHITE)
        lines = tuple(line.strip(WHITE) for line in text.split("\n"))
        return judged(lines == task.data.lines and len(rollout.text) <= 5000, text[:200])

    def reference(self, task: Task[Song]) -> str:
        return "\n".join(task.data.lines)
