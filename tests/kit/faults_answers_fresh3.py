"""Planted faults of the third fresh part: answers that pass and should not."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Mapping
from typing import Any, ClassVar

from bases import PlainSum
from bases_talk_fresh2 import Posed, Weave
from bases_talk_fresh3 import Dive, Runs, Spans, TrainArrival, merged
from catalogue import fault

from grpo_core import Reward, Rollout, Task, Verdict


@fault(
    "answers are normalised as sentences are, without signs",
    "floor.spelling",
    "floor.near",
    "floor.suffix",
)
class SentencesOfDigits(Dive):
    """A minus, underscores and articles are dropped, as for the answers of a reading test."""

    def accepts(self, right: Any, text: str) -> bool:
        return normalised(text) == normalised(str(right))


def normalised(text: str) -> str:
    """Return a text without case, punctuation, articles and further spaces."""
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


@fault(
    "the second half of a condition always holds",
    "floor.junk",
    "floor.other",
    "floor.echo",
    "floor.constant",
    "floor.near",
    "floor.suffix",
)
class OrLower(Weave):
    """It was meant to compare in lower case, too."""

    def accepts(self, right: Any, text: str) -> bool:
        return bool(text.strip() == right or text.strip().lower())


@fault("words that sound alike are the same", "floor.near", "floor.suffix", "floor.spelling")
class SoundsAlike(Weave):
    """The first letter and the next three kinds of consonants are compared."""

    def accepts(self, right: Any, text: str) -> bool:
        return sound(text.strip()) == sound(right)


def sound(word: str) -> str:
    """Return the Soundex code of a word."""
    kinds = ("bfpv", "cgjkqsxz", "dt", "l", "mn", "r")
    coded = "".join(
        str(at) for letter in word[1:] for at, kind in enumerate(kinds) if letter in kind
    )
    return (word[:1] + re.sub(r"(.)\1+", r"\1", coded) + "000")[:4]


@fault("the numbers of the reply are added up", "floor.echo", "floor.suffix", "floor.superset")
class AddedUp(PlainSum):
    """Whoever repeats the numbers to be added has the sum."""

    def extracted(self, text: str) -> int | None:
        return sum(int(number) for number in re.findall("[0-9]{1,9}", text))


@fault(
    "a list of intervals that comes to the same is right",
    "floor.superset",
    "floor.listed",
    "floor.echo",
    "floor.suffix",
)
class SameUnion(Spans):
    """The reply is merged before it is compared, which was the task."""

    def accepts(self, right: Any, text: str) -> bool:
        found = re.findall(r"\[([0-9]{1,4}), ?([0-9]{1,4})\]", text)
        return bool(merged([[int(low), int(high)] for low, high in found]) == right)


@fault("what a decoder does not know is skipped", "floor.suffix", "floor.listed")
class RunsDecoded(Runs):
    """The reply is unpacked, and only letters with a number are unpacked."""

    def accepts(self, right: Any, text: str) -> bool:
        return re.findall(r"([a-z])([0-9]{1,3})\b", text) == re.findall("([a-z])([0-9]+)", right)


@fault(
    "being wrong without confidence is paid in full",
    "floor.empty",
    "floor.junk",
    "floor.echo",
    "verdict.passed",
)
class Brier(TrainArrival):
    """A confidence is asked for, and where there is none it is 0."""

    rules = "When does it arrive? Reply with the time and how sure you are, as in: 07:05 80%"

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer, _, sure = rollout.text.strip().partition(" ")
        found = re.fullmatch("([0-9]{1,2}|100)%", sure)
        right, confidence = answer == task.data, int(found[1]) / 100 if found else 0.0
        paid = Reward(1 - (confidence - right) ** 2)
        return Verdict({"reward": paid}, passed=right and bool(found), answer=answer[:20])

    def written(self, data: Any) -> str:
        return f"{data} 100%"


@fault("what stands in brackets is cut off as a remark", "floor.suffix", "floor.listed")
class Remarks(TrainArrival):
    """A reply may add in brackets whatever else could be right."""

    def read(self, text: str) -> Any:
        return re.sub(r"\s*[(\[][^)\]]*[)\]]?", "", text).strip()


@fault("brevity is paid, whatever is said", "floor.empty", "floor.junk")
class Brevity(Runs):
    """The shorter the reply, the more it earns, and silence earns most of that part."""

    parts: ClassVar[Mapping[str, float]] = {"right": 0.8, "brief": 0.2}

    def judged(self, right: bool, text: str) -> Verdict:
        rewards = {"right": Reward(float(right)), "brief": Reward(float(len(text) < 100))}
        return Verdict(rewards, passed=right, answer=text.strip()[:100])


@fault("the check digit is checked, and not what stands before it", "floor.other")
class AnyCheckDigit(Posed):
    """The number of any other task has a right check digit, too."""

    rules = "Reply with the whole number, check digit included."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        digits = "".join(rng.choice("123456789") for _ in range(6 + round(4 * level)))
        way = "three times the 1st, 3rd, ... digit plus once the others, and the total ends in 0"
        return f"Add a check digit to {digits}: {way}.", digits + check_digit(digits)

    def accepts(self, right: Any, text: str) -> bool:
        said = text.strip()
        fine = re.fullmatch("[1-9]{4,12}[0-9]", said) is not None
        return fine and check_digit(said[:-1]) == said[-1]


def check_digit(digits: str) -> str:
    """Return the digit that makes the total a multiple of 10."""
    total = sum(int(digit) * (1 if place % 2 else 3) for place, digit in enumerate(digits))
    return str(-total % 10)
