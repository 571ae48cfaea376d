"""Environments without a fault whose answers look odd, sixth fresh part."""

from __future__ import annotations

import math
import random
import re
from decimal import Decimal
from typing import Any

from bases_fresh6 import WHITE, Harvest, Quiz, at_the_end, last_line
from bases_words_fresh6 import Tour
from catalogue import honest

from grpo_core.extract import parse_decimal, parse_integer


@honest("three or four numbers are right, which are close to each other, as the prompt asks")
class AnyCommonMultiple(Quiz):
    def draw(self, rng: random.Random, level: float) -> Any:
        few = rng.sample(range(11, 40 + round(60 * level)), 2)
        low = 1000 * rng.randint(10, 899)
        return (*few, low, low + 3 * math.lcm(*few)) if math.gcd(*few) == 1 else None

    def question(self, facts: Any) -> str:
        one, other, low, high = facts
        return (
            f"Name any one whole number from {low} to {high} that can be divided by {one} and by "
            f"{other}. Reply with the number only."
        )

    def truth(self, facts: Any) -> Any:
        return facts

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=9)

    def fits(self, truth: Any, answer: Any) -> bool:
        one, other, low, high = truth
        return bool(low <= answer <= high and answer % one == 0 == answer % other)

    def reply_with(self, truth: Any) -> str:
        one, other, low, _ = truth
        return str(-(-low // (one * other)) * one * other)


@honest("digits of colours are right in either case, and with a # or without it, as is asked")
class ColoursInEitherCase(Quiz):
    def draw(self, rng: random.Random, level: float) -> Any:
        lights = tuple(tuple(rng.randrange(256) for _ in range(3)) for _ in range(2))
        return lights, rng.randint(2, 3 + round(3 * level))

    def question(self, facts: Any) -> str:
        (one, other), parts = facts
        return (
            f"Mix 1 part of rgb{one} with {parts - 1} parts of rgb{other}: take the mean of each "
            "channel by parts, rounded down. Reply with the six hexadecimal digits of the colour "
            "only, in capital or small letters; a # in front of them may be left out."
        )

    def truth(self, facts: Any) -> Any:
        (one, other), parts = facts
        mixed = ((a + (parts - 1) * b) // parts for a, b in zip(one, other, strict=True))
        return "".join(f"{channel:02x}" for channel in mixed)

    def read(self, text: str) -> Any:
        found = re.fullmatch("#?([0-9a-fA-F]{6})", text.strip(WHITE))
        return found[1].lower() if found else None

    def reply_with(self, truth: Any) -> str:
        return f"#{truth}"


@honest("kilograms and tonnes are both right, so 1500 kg, 1.5 t and 1.50 t are one answer")
class KilogramsOrTonnes(Harvest):
    def question(self, facts: Any) -> str:
        question = super().question(facts).partition(" End with")[0]
        return (
            f"{question} Give it in kg or in t, exactly, and end with <weight>1234 kg</weight> or "
            "<weight>1.234 t</weight>."
        )

    def read(self, text: str) -> Any:
        number, _, unit = (at_the_end(text, "weight") or "").partition(" ")
        weight = parse_decimal(number, max_digits=12)
        return None if weight is None or unit not in ("kg", "t") else (weight, unit)

    def fits(self, truth: Any, answer: Any) -> bool:
        weight, unit = answer
        return bool(weight * (1000 if unit == "t" else 1) == Decimal(truth.removesuffix(" kg")))


@honest("names may be cut to three letters, which the prompt allows since no two begin alike")
class ShortNamesOfTowns(Tour):
    def question(self, facts: Any) -> str:
        question = super().question(facts).partition(" End with")[0]
        return (
            f"{question} End with a line of the first three letters of each or of whole names, "
            "such as: Route: Tur, Basel, Lyo"
        )

    def read(self, text: str) -> Any:
        label, _, rest = last_line(text).partition(": ")
        return rest.split(", ") if label == "Route" else None

    def fits(self, truth: Any, answer: Any) -> bool:
        return len(answer) == len(truth) and all(
            said in (name, name[:3]) for said, name in zip(answer, truth, strict=True)
        )
