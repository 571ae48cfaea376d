"""Honest designs of the fourth fresh part: answers that look odd and are right."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from decimal import Decimal
from typing import Any

from bases_fresh4 import SPACE, Blend, Parcels, Portions, Puzzle
from bases_words_fresh4 import Ticket, settings4
from catalogue import honest

from grpo_core.extract import parse_decimal, parse_integer
from grpo_env_dataset.env import Dataset


@honest("two percent more or less are right, as the prompt says and the class declares")
class WithinTwoPercent(Puzzle):
    """Somebody who works it out in the head is to be paid."""

    tolerance = 0.02

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        legs = tuple(rng.randint(101, 999) for _ in range(2 + round(4 * level)))
        return rng.randint(38, 124), legs

    def asked(self, tenths: int, legs: tuple[int, ...]) -> str:
        told = " km, ".join(map(str, legs))
        return (
            f"A car takes {tenths / 10} litres for 100 km. How many litres does it take for trips "
            f"of {told} km together? Reply with a plain number; an error of 2 % is fine."
        )

    def solved(self, tenths: int, legs: tuple[int, ...]) -> str:
        return str(Decimal(tenths * sum(legs)) / 1000)

    def read(self, text: str) -> Any:
        return parse_decimal(text, max_digits=12)

    def accepts(self, truth: Any, answer: Any) -> bool:
        right = Decimal(truth)
        return bool(abs(answer - right) <= max(Decimal(1), right) * 2 / 100)


@honest("the last word is the answer, whatever stands before it, as the class declares")
class LastWord(Ticket):
    """Small models think aloud, and have no form for their answer."""

    answer_at = "end"

    def asked(self, last: int, sold: tuple[int, ...]) -> str:
        asked = super().asked(last, sold)
        return asked.replace(
            "Reply with it only, as it is printed.",
            "You may think aloud; end with the number as it is printed, and no full stop.",
        )

    def read(self, text: str) -> Any:
        return next(iter(text.split()[-1:]), None)


@honest("kilograms or grams are right, as the prompt says, each with its unit")
class UnitAsYouLike(Parcels):
    """The number alone is not."""

    def asked(self, parcels: tuple[tuple[int, int], ...]) -> str:
        asked, _, _ = super().asked(parcels).partition(" Reply")
        return f"{asked} Reply with the weight only, in kg or in g, as in: 3.40 kg, or: 3400 g"

    def read(self, text: str) -> Any:
        form = r"(0|[1-9]\d{0,3})\.(\d\d) kg|([1-9]\d{0,6}) g"
        found = re.fullmatch(form, text.strip(SPACE), re.ASCII)
        if found is None:
            return None
        return int(found[3]) if found[3] else 1000 * int(found[1]) + 10 * int(found[2])

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == self.read(truth))


@honest("one key of the object is for thoughts, and says what it likes")
class RoomForThoughts(Portions):
    """Every other key is compared, and none may be there that was not asked for."""

    max_new_tokens = 200

    def asked(self, each: tuple[tuple[str, int], ...], people: int, guests: int) -> str:
        asked = super().asked(each, people, guests)
        return f'{asked} Begin with a key "thoughts", whose text is up to you.'

    def accepts(self, truth: Any, answer: Any) -> bool:
        if not isinstance(answer, dict) or not isinstance(answer.get("thoughts"), str):
            return False
        return super().accepts(truth, {k: v for k, v in answer.items() if k != "thoughts"})

    def written(self, truth: Any) -> str:
        return json.dumps({"thoughts": "first for one, then for all", **truth})


@honest("a colour may be in capital letters, and its mark may be missing, as the prompt says")
class ColourAsYouLike(Blend):
    """Style sheets and drawing programs write the same colour in these ways."""

    def asked(self, colours: tuple[int, ...]) -> str:
        asked, _, _ = super().asked(colours).partition(" Reply")
        return f"{asked} Reply with the colour only, as in #09af00, 09af00 or #09AF00."

    def read(self, text: str) -> Any:
        found = re.fullmatch("#?([0-9a-f]{6}|[0-9A-F]{6})", text.strip(SPACE), re.ASCII)
        return None if found is None else f"#{found[1].lower()}"


@honest("the answer is a row of letters of which there are only two")
class TrueOrFalse(Puzzle):
    """All of them have to be right, so guessing is right once in 64 times or less."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        claims = []
        for _ in range(6 + round(4 * level)):
            one, two = rng.randint(12, 99), rng.randint(12, 99)
            claims.append((one, two, one * two + rng.choice((0, rng.choice((-20, -10, 10, 20))))))
        return (tuple(claims),)

    def asked(self, claims: tuple[tuple[int, int, int], ...]) -> str:
        told = "\n".join(f"{one} * {two} = {product}" for one, two, product in claims)
        return f"{told}\nReply with one letter for each line, t if it is true, f if not, as in: ttf"

    def solved(self, claims: tuple[tuple[int, int, int], ...]) -> str:
        return "".join("t" if one * two == product else "f" for one, two, product in claims)


@honest("any three numbers with the total are right, in any order, as the prompt says")
class ThreeOfThem(Puzzle):
    """They all stand in the prompt, and the reference is one choice of maybe several."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        numbers = tuple(rng.sample(range(101, 999), 8 + round(6 * level)))
        return numbers, sum(rng.sample(numbers, 3))

    def asked(self, numbers: tuple[int, ...], total: int) -> str:
        told = ", ".join(map(str, numbers))
        return (
            f"Choose three different numbers of these that add up to {total}, in any order: "
            f"{told}. Reply with the three only, spaces between them."
        )

    def solved(self, numbers: tuple[int, ...], total: int) -> Any:
        return numbers, total

    def read(self, text: str) -> Any:
        words = text.strip(SPACE).split(" ")
        fine = len(words) == 3 and all(re.fullmatch("[1-9][0-9]{2}", word) for word in words)
        return [parse_integer(word) for word in words] if fine else None

    def accepts(self, truth: Any, answer: Any) -> bool:
        numbers, total = truth
        return sum(answer) == total and not Counter(answer) - Counter(numbers)

    def written(self, truth: Any) -> str:
        numbers, total = truth
        triples = itertools.combinations(numbers, 3)
        return " ".join(map(str, next(triple for triple in triples if sum(triple) == total)))


@honest(
    "a function of the user takes minutes, or hours and minutes, as the prompt says",
    build=lambda: MinutesOrHours(
        settings4(
            "minutes_or_hours",
            answer="full",
            prompt="{question} Reply as in: 75 min, or: 1 h 15 min",
        )
    ),
)
class MinutesOrHours(Dataset):
    """The rows have the minutes only, and many rows have the same answer."""

    timeout_seconds = 2.0
