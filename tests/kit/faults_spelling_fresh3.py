"""Planted faults of the third fresh part: how an answer is written, and hostile texts."""

from __future__ import annotations

import base64
import binascii
import csv
import random
import unicodedata
from typing import Any
from xml.etree import ElementTree

from bases_talk_fresh2 import Posed, coined
from bases_talk_fresh3 import Dive, TrainArrival
from catalogue import fault

from grpo_core import Reward, Verdict
from grpo_core.extract import parse_integer


@fault("strip() takes letters, not a label", "verdict.reference")
class LabelLetters(Posed):
    """Words that begin with a letter of the label lose it."""

    rules = "Reply with one line: Word: ..."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        word = coined(rng, 3 + round(3 * level))
        return f"Which word is {word.upper()!r} with its first two letters at the end?", (
            word[2:] + word[:2]
        )

    def accepts(self, right: Any, text: str) -> bool:
        said = text.strip()
        return said.startswith("Word: ") and bool(said.lstrip("Word: ") == right)

    def written(self, data: Any) -> str:
        return f"Word: {data}"


@fault("a table's reader has a limit for its fields", "floor.large", "verdict.form")
class FieldLimit(Posed):
    """csv raises for a field of more than 131,072 characters."""

    rules = "Reply with one line: name, comma, sum."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        name, top = coined(rng, 3), 100 + round(900 * level)
        one, two, three = (rng.randint(11, top) for _ in range(3))
        asked = f"{name.capitalize()} buys for {one}, {two} and {three} crowns."
        return f"{asked} What does it come to?", [name.capitalize(), str(one + two + three)]

    def accepts(self, right: Any, text: str) -> bool:
        return list(csv.reader(text.strip().splitlines())) == [right]

    def written(self, data: Any) -> str:
        return ",".join(data)


@fault(
    "a reply that is not XML is an error",
    "floor.junk",
    "floor.empty",
    "floor.text",
    "floor.echo",
    "floor.suffix",
    "floor.large",
    "floor.nested",
    "verdict.form",
)
class NotXml(TrainArrival):
    """The parser raises for everything else."""

    rules = "When does it arrive? Reply with one element, as in: <time>07:05</time>"

    def read(self, text: str) -> Any:
        element = ElementTree.fromstring(text.strip())
        return element.text if element.tag == "time" else None

    def written(self, data: Any) -> str:
        return f"<time>{data}</time>"


@fault("signs that no code has are skipped", "floor.suffix", "floor.spelling")
class LooseBase64(Posed):
    """The decoder drops what is not of its alphabet, and stops at the padding."""

    rules = "Reply with the code only."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        word = coined(rng, 2 + 3 * round(level))
        return f"Write the word {word!r} in base64.", word

    def accepts(self, right: Any, text: str) -> bool:
        try:
            return bool(base64.b64decode(text).decode() == right)
        except (binascii.Error, ValueError):
            return False

    def written(self, data: Any) -> str:
        return base64.b64encode(data.encode()).decode()


@fault("a number is too large for a character", "floor.digits", "verdict.form")
class LargeCharacter(Posed):
    """chr() raises an OverflowError, too, which nobody thought of."""

    rules = "Reply with the numbers only, spaces between them."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        word = coined(rng, 2 + round(2 * level))
        return f"Which Unicode numbers do the letters of {word!r} have, in decimal?", word

    def accepts(self, right: Any, text: str) -> bool:
        numbers = [parse_integer(number, max_digits=40) for number in text.split(" ")]
        try:
            return bool("".join(chr(-1 if n is None else n) for n in numbers) == right)
        except ValueError:
            return False

    def written(self, data: Any) -> str:
        return " ".join(str(ord(letter)) for letter in data)


@fault(
    "the reply becomes part of a template",
    "floor.nested",
    "floor.junk",
    "floor.text",
    "floor.large",
    "verdict.form",
)
class NoteTemplate(Dive):
    """A remark for the log is filled in after the reply was put into it."""

    def judged(self, right: bool, text: str) -> Verdict:
        note = (f"said {text.strip()[:100]}, " + "which is {}").format(
            "right" if right else "wrong"
        )
        return Verdict(
            {"reward": Reward(float(right), note=note)}, passed=right, answer=text.strip()[:100]
        )


@fault("each sign is taken by its value as a digit", "floor.spelling")
class DigitValues(Dive):
    """The digits of all scripts have a value."""

    def read(self, text: str) -> Any:
        said = text.strip()
        values = [unicodedata.decimal(sign, None) for sign in said.removeprefix("-")[:9]]
        if len(said) > 9 or not values or None in values:
            return None
        number = int("".join(map(str, values)))
        return -number if said.startswith("-") else number
