"""Honest designs of the third fresh part: answers and rows that look odd and are right."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from bases_talk_fresh2 import Posed
from bases_talk_fresh3 import Dive, Runs, Spans, TrainArrival, settings3
from catalogue import honest

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.extract import parse_integer
from grpo_env_dataset.env import Dataset


@honest("the hour may have a zero before it or not, as the prompt says")
class LooseHour(TrainArrival):
    """No other zero may be left out."""

    rules = "When does it arrive? Reply with the time only, as in 7:05 or 07:05."

    def read(self, text: str) -> Any:
        found = re.fullmatch("([0-9]{1,2}):([0-9]{2})", text.strip(), re.ASCII)
        return None if found is None else f"{int(found[1]):02}:{found[2]}"


@honest("the sound base: letters and how often each comes in a row")
class HonestRuns(Runs):
    """Nothing is changed."""


@honest("the sound base: intervals to be merged, whose ends all stand in the prompt")
class HonestSpans(Spans):
    """Some of the merged intervals are among those of the prompt, and never all of them."""


@honest("a confidence is asked for, and is only logged")
class LoggedConfidence(Dive):
    """The metric shows whether a policy knows what it knows; nothing is paid for it."""

    rules = "How high is it above the rim? Reply with a whole number and how sure you are: -70 80%"

    def accepts(self, right: Any, text: str) -> bool:
        answer, _, sure = text.strip().partition(" ")
        return confidence(sure) is not None and bool(self.read(answer) == right)

    def judged(self, right: bool, text: str) -> Verdict:
        sure = confidence(text.strip().partition(" ")[2])
        return Verdict(
            {"reward": Reward(float(right))},
            passed=right,
            answer=text.strip().partition(" ")[0][:20],
            metrics={} if sure is None else {"confidence": sure},
        )

    def written(self, data: Any) -> str:
        return f"{data} 100%"


def confidence(text: str) -> float | None:
    """Return what a number of per cent says, from 0 to 1."""
    found = re.fullmatch("([0-9]|[1-9][0-9]|100)%", text)
    return None if found is None else int(found[1]) / 100


@honest("the answer is the number of the prompt with one digit more")
class CheckDigits(Posed):
    """A reply is compared as a whole, so the digit alone is wrong."""

    rules = "Reply with the whole number, check digit included."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        digits = "".join(rng.choice("123456789") for _ in range(6 + round(4 * level)))
        way = "three times the 1st, 3rd, ... digit plus once the others, and the total ends in 0"
        total = sum(int(digit) * (1 if place % 2 else 3) for place, digit in enumerate(digits))
        return f"Add a check digit to {digits}: {way}.", f"{digits}{-total % 10}"


@honest("any two primes with a given sum are right, in any order, as the prompt says")
class TwoPrimes(Posed):
    """The reference is one pair of many."""

    rules = "Reply with two different primes of that sum, in any order, as in: 5 7"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        top = 4000 + round(90_000 * level)
        return f"Split {(total := 2 * rng.randint(top // 4, top))} in two.", total

    def read(self, text: str) -> Any:
        numbers = [parse_integer(part, max_digits=6) for part in text.strip().split(" ")]
        one, two = numbers if len(numbers) == 2 else (None, None)
        if one is None or two is None or one == two or not (is_prime(one) and is_prime(two)):
            return None
        return one + two

    def written(self, data: Any) -> str:
        small = next(n for n in range(3, data) if is_prime(n) and is_prime(data - n))
        return f"{small} {data - small}"


def is_prime(number: int) -> bool:
    """Return whether a number below a million is a prime."""
    return number > 1 and all(number % n for n in range(2, int(number**0.5) + 1))


@honest("two decimals are asked for, so zeros at the end have to be written")
class TwoDecimals(Posed):
    """The text is compared, since 4.5 is not what was asked for."""

    rules = "Reply with the crowns only, with two decimals, as in 4.50."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        goods = [(rng.randint(2, 9), rng.randint(21, 999)) for _ in range(2 + round(3 * level))]
        listed = " and ".join(f"{n} at {each} cents each" for n, each in goods)
        cents = sum(n * each for n, each in goods)
        return f"Somebody buys {listed}.", f"{cents // 100}.{cents % 100:02}"


@honest("brevity is paid, and only for right answers")
class BriefAndRight(TrainArrival):
    """Thoughts are allowed before the last line, and cost a fifth."""

    rules = "When does it arrive? End with a line: Answer: 07:05. A reply of that line earns more."
    parts: ClassVar[Mapping[str, float]] = {"right": 0.8, "brief": 0.2}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        label, _, answer = text.rpartition("\n")[2].partition(": ")
        right = label == "Answer" and answer == task.data
        rewards = {
            "right": Reward(float(right)),
            "brief": Reward(float(right and "\n" not in text)),
        }
        return Verdict(rewards, passed=right, answer=answer[:20])

    def written(self, data: Any) -> str:
        return f"Answer: {data}"


@honest("a number is written in words, with hyphens or without, as the prompt says")
class InWords(Posed):
    """The two ways are as good as each other; nothing else is."""

    rules = "Reply in lower case; hyphens may be spaces, as in forty-one"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        high = 1 + rng.randrange(round(9 + 990 * level))
        number = 1000 * high + rng.randint(100, 999)
        return f"Write {number} in English words, without 'and'.", words(number)

    def read(self, text: str) -> Any:
        return text.strip().replace("-", " ")

    def accepts(self, right: Any, text: str) -> bool:
        return bool(self.read(text) == self.read(right))


ONES = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def words(number: int) -> str:
    """Return a number from 1 to 999,999 in words."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {words(number % size)}" if number % size else ""
            return f"{words(number // size)} {name}{rest}"
    if number < 20:
        return ONES[number - 1]
    return TENS[number // 10 - 2] + (f"-{ONES[number % 10 - 1]}" if number % 10 else "")


@honest(
    "a number without its unit earns a half, and does not pass",
    build=lambda: HalfWithoutUnit(
        settings3("number_and_unit", answer="full", prompt="{question} Reply as in: 12 tiles")
    ),
)
class HalfWithoutUnit(Dataset):
    """All rows have the same unit, which the prompt names, and another number."""

    timeout_seconds = 2.0
