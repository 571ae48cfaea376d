"""Environments without a fault whose answers look odd, fifth fresh part."""

from __future__ import annotations

import json
import random
import re
from datetime import date
from decimal import Decimal
from typing import Any

from bases_fresh5 import BLANK, DAYS, MONTHS, Departures, Fuel, Offers, Weekdays
from catalogue import honest

from grpo_core.extract import parse_decimal, parse_json

FORM = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@honest("a number within two percent is right, as the prompt says and the class declares")
class AboutSoManyLitres(Fuel):
    tolerance = 0.02

    def wording(self, facts: Any) -> str:
        question = super().wording(facts).partition(" End with")[0]
        return (
            f"{question} Reply with the number of litres only; one that is off by at most 2 % is "
            "good enough."
        )

    def solution(self, facts: Any) -> Any:
        return super().solution(facts).removesuffix(" l")

    def read(self, text: str) -> Any:
        return parse_decimal(text, max_digits=9)

    def same(self, truth: Any, answer: Any) -> bool:
        right = Decimal(truth)
        return bool(abs(answer - right) <= Decimal("0.02") * right)

    def wrapped(self, truth: Any) -> str:
        return str(truth)


@honest("the reply is free text that may name other times; its last word counts, as declared")
class LastWordIsTheTime(Departures):
    answer_at = "end"
    max_new_tokens = 200

    def wording(self, facts: Any) -> str:
        question = super().wording(facts).partition(" End with")[0]
        return f"{question} Think aloud as you like; the last word of your reply is the time."

    def read(self, text: str) -> Any:
        words = text.rsplit(maxsplit=1)
        return words[-1] if words else None

    def wrapped(self, truth: Any) -> str:
        return f"I add the walks, and go up to a multiple of the gap: the tram leaves at {truth}"


@honest("the object has a field for thoughts, in which any letters may stand")
class ThoughtsInTheObject(Offers):
    max_new_tokens = 200

    def wording(self, facts: Any) -> str:
        question = super().wording(facts).partition("Reply with")[0]
        return (
            f"{question}Reply with a JSON object only; what you think comes first, in at most "
            '400 characters: {"thoughts": "...", "choice": ...}'
        )

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=2000)
        said = value.value if value is not None else None
        if not isinstance(said, dict) or said.keys() != {"thoughts", "choice"}:
            return None
        thoughts = said["thoughts"]
        fits = isinstance(thoughts, str) and len(thoughts) <= 400
        return said["choice"] if fits else None

    def same(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth)

    def wrapped(self, truth: Any) -> str:
        thoughts = f"I divide A, B, C and D by their weights, and {truth} is the lowest."
        return json.dumps({"thoughts": thoughts, "choice": truth})


@honest("any Tuesday of the month is right, of which there are four or five")
class AnyTuesdayWillDo(Weekdays):
    def draw(self, rng: random.Random, level: float) -> Any:
        year, month, weekday, _ = super().draw(rng, level)
        return year + rng.randint(0, 40), month, weekday, 0

    def wording(self, facts: Any) -> str:
        year, month, weekday, _ = facts
        return (
            f"1 January 2027 is a Friday. Give a date in {MONTHS[month - 1]} {year} that is a "
            f"{DAYS[weekday]}; any will do. Reply with the date only, as in: 2026-12-31"
        )

    def solution(self, facts: Any) -> Any:
        return list(facts[:3])

    def read(self, text: str) -> Any:
        said = text.strip(BLANK)
        try:
            return date.fromisoformat(said) if FORM.fullmatch(said) else None
        except ValueError:  # there is no such day
            return None

    def same(self, truth: Any, answer: Any) -> bool:
        return bool([answer.year, answer.month, answer.weekday()] == truth)

    def wrapped(self, truth: Any) -> str:
        year, month, weekday = truth
        first = date(year, month, 1)
        return first.replace(day=1 + (weekday - first.weekday()) % 7).isoformat()
