"""Environments without a fault whose tasks look odd, third fresh part."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from typing import Any

from bases_fresh3 import Arrival, Exam, Initials, Squares, Tally, Walk, clock
from catalogue import honest

from grpo_core import Task, TaskKey, held_out
from grpo_core.extract import parse_integer

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """Return a number below 1000 in words."""
    if number >= 100:
        rest = f" and {in_words(number % 100)}" if number % 100 else ""
        return f"{ONES[number // 100]} hundred{rest}"
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")


@honest("the sound base: initials of people, in the order of their ages")
class HonestInitials(Initials):
    pass


@honest("the sound base: a time of day, which lies often on the next day")
class HonestArrival(Arrival):
    pass


@honest("the sound base: an object with two numbers, which may be negative")
class HonestWalk(Walk):
    pass


@honest("the sound base: the largest of three sums, in a block that is paid a little by itself")
class HonestTally(Tally):
    pass


@honest("easy tasks are in hours and hard ones in minutes, with nothing between them")
class HoursOrMinutes(Exam):
    """How many minutes pass? Easy: whole hours more."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        start = rng.randrange(24 * 60)
        if key.level < 0.5:
            return start, 60 * rng.randint(2, 23)
        return start, rng.choice([n for n in range(61, 1440) if n % 60])

    def question(self, start: int, minutes: int) -> str:
        return (
            f"A shift begins at {clock(start)} and ends at the next {clock(start + minutes)}. "
            "How many minutes is it long? Reply with the number only."
        )

    def solved(self, start: int, minutes: int) -> int:
        return minutes

    def read(self, text: str) -> int | None:
        return parse_integer(text, max_digits=6)


@honest("all numbers of the prompt are written as words, and their words decide the split")
class NumbersAsWords(Exam):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (tuple(rng.sample(range(21, 1000), 3 + round(5 * key.level))),)

    def question(self, numbers: tuple[int, ...]) -> str:
        told = ", then ".join(map(in_words, numbers))
        return (
            f"A ship loads {told} sacks. How many sacks is that in all? "
            "Reply with a number in digits and nothing else."
        )

    def solved(self, numbers: tuple[int, ...]) -> int:
        return sum(numbers)

    def read(self, text: str) -> int | None:
        return parse_integer(text, max_digits=6)


@honest("the prompt is raw text for a base model, with fixed examples and a line that is begun")
class BegunLine(Arrival):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        start, minutes = content
        examples = "10:00 + 12 min = 10:12\n23:50 + 40 min = 00:30\n"
        prompt = f"{examples}{clock(start)} + {minutes} min ="
        return Task(key, prompt, self.solved(start, minutes))

    def reference(self, task: Task[Any]) -> str:
        return f" {task.data}"


@honest("each seed of a run has people of its own, drawn from the key alone")
class PeopleOfSeed(Initials):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        (people,) = super().drawn(key, rng)
        ends = random.Random(f"people {key.seed}").sample(("la", "mo", "ri", "su", "ta"), 2)
        return (tuple((name + rng.choice(ends), age) for name, age in people),)


@honest("answers have up to 50 digits, and budget and verifier allow for them")
class LongProducts(Exam):
    max_new_tokens = 128

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        digits = 4 + round(20 * key.level)
        return rng.randrange(10**digits, 10 ** (digits + 1)), rng.randrange(10**3, 10**digits)

    def question(self, one: int, two: int) -> str:
        return f"Multiply {one} by {two}. Reply with the product only, without separators."

    def solved(self, one: int, two: int) -> int:
        return one * two

    def read(self, text: str) -> int | None:
        return parse_integer(text, max_digits=60)


@honest("the data are the question, and the verifier works out the answer each time")
class SolvedByVerifier(Walk):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        return replace(super().asked(key, *content), data=content)

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(self.solved(*truth), answer)

    def reference(self, task: Task[Any]) -> str:
        return json.dumps(self.solved(*task.data))


@honest("the prompt is Japanese, without spaces between its words")
class JapaneseApples(Exam):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        most = 1000 + round(90_000 * key.level)
        sold = rng.randint(101, most)
        return sold + rng.randint(101, most), sold

    def question(self, all_: int, sold: int) -> str:
        return f"りんごが{all_}個あります。{sold}個売りました。残りは何個ですか。数字だけで答えてください。"

    def solved(self, all_: int, sold: int) -> int:
        return all_ - sold

    def read(self, text: str) -> int | None:
        return parse_integer(text, max_digits=9)


@honest("training tasks are made without end, and the held-out ones are a list with an end")
class HeldOutList(Squares):
    def size(self, split: str) -> int | None:
        return super().size(split) if split == "eval" else None

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        if key.split == "eval":
            return super().fitting(key, rng)
        while True:
            number = rng.randrange(100, 100_000)
            if not held_out(str(number)):
                return (number,)


@honest("somebody's answer stands in the prompt, and is always wrong")
class WrongGuess(Tally):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        (wards,) = super().drawn(key, rng)
        return wards, super().solved(wards) + rng.choice((-1, 1)) * rng.randint(2, 900)

    def question(self, wards: Any, guess: int) -> str:  # type: ignore[override]
        return f"Kim thinks that it is {guess}, which is wrong.\n{super().question(wards)}"

    def solved(self, wards: Any, guess: int) -> int:  # type: ignore[override]
        return super().solved(wards)


@honest("every third task is an easy one at any level, so that there is always something to learn")
class ThirdIsEasy(Walk):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return super().drawn(replace(key, level=0.0) if key.index % 3 == 2 else key, rng)


@honest("each thread makes its own decoder when it first judges")
class DecoderOfThread(Walk):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.local = threading.local()

    def accepts(self, truth: Any, answer: Any) -> bool:
        if not hasattr(self.local, "decoder"):
            self.local.decoder = json.JSONDecoder()
        return super().accepts(self.local.decoder.decode(json.dumps(truth)), answer)
