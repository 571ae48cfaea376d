"""Environments whose tasks look odd, and are sound."""

import datetime
import random
import re
from collections.abc import Sequence

from bases_g_fresh10 import WHITE, Asked, Draft, Tagged, judged
from catalogue import honest

from grpo_core import Rollout, Task, TaskKey, Verdict, held_out

STARTS = "Bar Cal Dor Fen Gil Har Kes Lor Mar Nor Pel Quin Ros Sal Tam Ver"
ENDS = "aby aco ander ek ell ette ian ik in ola on or osa una win yra"


@honest("The prompt holds its answer, since the name has to be picked from a list; it is declared.")
class GuestByArrival(Tagged):
    """Asks which guest of an inn came as the third, say; the list is by name, not by time."""

    answer_in_prompt = True
    max_new_tokens = 48
    rules = "Reply with the guest in <guest>...</guest>."
    tag = "guest"

    def draw(self, rng: random.Random, level: float) -> Draft:
        size = 6 + round(8 * level)
        pool = [start + end for start in STARTS.split() for end in ENDS.split()]
        guests = sorted(rng.sample(pool, size))
        minutes = rng.sample(range(14 * 60, 22 * 60), size)
        lines = [
            f"{guest}: {m // 60}:{m % 60:02d}" for guest, m in zip(guests, minutes, strict=True)
        ]
        place = rng.randint(1, size)
        guest = guests[minutes.index(sorted(minutes)[place - 1])]
        return Draft("\n".join(lines) + f"\nWho was number {place} to arrive?", guest)


DAYS = [datetime.date(1990, 1, 1) + datetime.timedelta(days=11 * n) for n in range(1500)]
DATED = {
    split: [day for day in DAYS if held_out(day.isoformat()) == (split == "eval")]
    for split in ("train", "eval")
}
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@honest("The prompt is raw text to go on with, and tasks are rows, which depend on the index only.")
class DiaryOfWeekdays(Asked):
    """Has a base model complete an entry of a diary with the day of the week."""

    levels = False
    max_new_tokens = 8

    def size(self, split: str) -> int:
        return len(DATED[split])

    def task(self, key: TaskKey) -> Task[str]:
        day = DATED[key.split][key.index]
        text = f"2000-01-01 was a Saturday\n1999-12-31 was a Friday\n{day.isoformat()} was a"
        return Task(key, text, WEEKDAYS[day.weekday()])

    def written(self, answer: str) -> str:
        return f" {answer}"


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
class PostfixPrograms(Asked):
    """Asks for a program of a stack calculator, and runs it on inputs drawn for the verdict."""

    max_new_tokens = 96
    rules = (
        "Write a program for a stack calculator: words x, y, +, -, * and whole numbers of up to "
        "four digits, separated by spaces. It must leave the value of the formula. Reply with the "
        "program alone."
    )

    def draw(self, rng: random.Random, level: float) -> Draft:
        a, b = rng.randint(2, 60), rng.randint(2, 60)
        c = rng.randint(2, 60) if level >= 0.5 else 0
        text = f"{a} times x, plus {b} times y"
        if c:
            text += f", plus {c} times the product of x and y"
        return Draft(f"The formula: {text}.", (a, b, c), f"{a}x {b}y {c}xy")

    def verify(self, task: Task[tuple[int, int, int]], rollout: Rollout) -> Verdict:
        program = re.split("[ \t\r\n]+", rollout.text[:600].strip(WHITE))
        if len(rollout.text) > 600 or not 1 <= len(program) <= 60:
            return judged(False, None)
        a, b, c = task.data
        rng = task.rng()
        inputs = [(rng.randint(2, 99), rng.randint(2, 99)) for _ in range(8)]
        right = all(_run(program, x, y) == a * x + b * y + c * x * y for x, y in inputs)
        return judged(right, " ".join(program)[:200])

    def right(self, data: tuple[int, int, int]) -> str:
        a, b, c = data
        return f"{a} x * {b} y * +" + (f" {c} x y * * +" if c else "")


ANIMALS = "hen goat pig cow horse sheep duck goose cat dog turkey donkey rabbit rooster"


@honest("The reference is long, and so is the budget; there are two degrees of difficulty only.")
class CumulativeSongs(Asked):
    """Asks for a song in which every verse repeats all animals so far, from the last one back."""

    max_new_tokens = 1024
    rules = (
        "Write the song. Verse N has one line: 'I had a A and a B and a C', with the animals that "
        "I have had so far, the newest first. Reply with the verses alone, one on each line."
    )

    def draw(self, rng: random.Random, level: float) -> Draft:
        animals = rng.sample(ANIMALS.split(), 4 if level < 0.5 else 9)
        verses = (animals[n::-1] for n in range(len(animals)))
        lines = ["I had a " + " and a ".join(verse) for verse in verses]
        question = f"The animals, in the order in which I got them: {', '.join(animals)}."
        return Draft(question, lines, " ".join(animals))

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        text = rollout.text[:5000].strip(WHITE)
        lines = [line.strip(WHITE) for line in text.split("\n")]
        return judged(lines == task.data and len(rollout.text) <= 5000, text[:200])

    def right(self, data: list[str]) -> str:
        return "\n".join(data)
