"""Planted faults of the fourth fresh part: how an answer is written, and hostile texts."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import replace
from typing import Any

from bases_fresh4 import SPACE, Blend, Coins, Heavier, Ledger
from bases_words_fresh4 import Cipher, OddRow, Stations, Ticket, Verbs
from catalogue import fault

from grpo_core import Rollout, Task, Verdict
from grpo_core.extract import parse_integer, parse_json, ungrouped


@fault("a number may be written as code", "floor.spelling")
class NumberOfSource(Stations):
    """A base of 0 reads a number as a program has it: 0x7d1, 0b111, 2_001."""

    def read(self, text: str) -> Any:
        try:
            return int(text.strip(SPACE)[:30], 0)
        except ValueError:
            return None


@fault("a number may be written with an exponent", "floor.spelling", "floor.near")
class NumberOfJson(Stations):
    """The grammar of JSON's numbers has exponents."""

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=40)
        number = None if value is None else value.value
        return number if isinstance(number, (int, float)) else None


@fault(
    "a pattern behind a prefix backtracks without end",
    "floor.large",
    "floor.digits",
    "floor.text",
    "cost.time",
    "verdict.form",
)
class GroupedBalance(Ledger):
    """Commas between thousands are allowed, and a row of digits can be cut in many ways."""

    form = re.compile(r"Balance: (-?(?:[0-9]+,?)+)", re.ASCII)

    def read(self, text: str) -> Any:
        found = self.form.fullmatch(text.strip(SPACE).rpartition("\n")[2])
        return None if found is None else parse_integer(ungrouped(found[1]), max_digits=9)


@fault(
    "a superscript is a digit, and an error",
    "floor.digits",
    "floor.text",
    "floor.spelling",
    "verdict.form",
)
class DigitSigns(OddRow):
    """isdigit() holds for signs that int() does not read."""

    def read(self, text: str) -> Any:
        said = text.strip(SPACE)
        return int(said) if said.isdigit() and len(said) < 10 else None


@fault(
    "accents are dropped where they are the point", "floor.spelling", "floor.near", "floor.superset"
)
class PlainLetters(Verbs):
    """The normalisation was taken from a search engine: él habló and yo hablo are the same."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        return searched(answer) == searched(truth)


def searched(text: str) -> str:
    """Return a text without accents."""
    parts = unicodedata.normalize("NFD", text)
    return "".join(sign for sign in parts if not unicodedata.combining(sign))


@fault(
    "an answer that is out of range is an error",
    "floor.digits",
    "floor.near",
    "floor.other",
    "verdict.form",
    "floor.junk",
)
class LooksUpRow(OddRow):
    """The verifier looks whether the row of that number adds up."""

    def solved(self, rows: Any) -> Any:
        return rows

    def read(self, text: str) -> Any:
        number = super().read(text)
        return None if number is None or number < 0 else number

    def accepts(self, truth: Any, answer: Any) -> bool:
        one, two, total = truth[answer]
        return bool(one + two != total)

    def written(self, truth: Any) -> str:
        return str(super().solved(truth))


@fault("compatible characters are the same", "floor.spelling")
class SameSigns(Heavier):
    """Keyboards write signs in several ways, and so Ｈ３７ and H³⁷ are H37."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(unicodedata.normalize("NFKC", answer) == truth)


@fault("half of a surrogate pair is an error", "floor.text", "verdict.form")
class DigestOfColour(Blend):
    """Digests are compared, as where the answers of a competition are kept secret."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = digest(answer) == digest(task.data)
        return self.judged(right, answer)


def digest(text: str) -> str:
    """Return a digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


@fault("leading zeros are dropped where they are the point", "floor.spelling", "floor.near")
class TicketAsNumber(Ticket):
    """The number is compared, and the prompt wants it as it is printed."""

    def read(self, text: str) -> Any:
        said = text.strip(SPACE)
        return said.lstrip("0") if re.fullmatch("[0-9]{1,9}", said) else None

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth.lstrip("0"))


@fault("other digits and underscores are a number", "floor.spelling")
class WhatIntReads(Stations):
    """int() reads the digits of all scripts, signs, and underscores."""

    def read(self, text: str) -> Any:
        try:
            return int(text[:40])
        except ValueError:
            return None


@fault(
    "text that is not a number is an error",
    "floor.junk",
    "floor.empty",
    "floor.text",
    "floor.echo",
    "floor.suffix",
    "floor.large",
    "floor.nested",
    "verdict.form",
)
class NumberFound(Stations):
    """There is no match to take the number from."""

    def read(self, text: str) -> Any:
        found = re.fullmatch("-?[0-9]{1,9}", text.strip(SPACE))
        return int(found[0])  # type: ignore[index]


@fault("time grows with the square of the length", "floor.large", "cost.time", "verdict.form")
class RepeatedWords(Cipher):
    """A metric says how many words of the reply occur more than once."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        words = rollout.text.split()
        repeated = sum(words.count(word) > 1 for word in words)
        share = repeated / len(words) if words else 0.0
        return replace(super().verify(task, rollout), metrics={"repeated": share})


@fault("true is 1", "floor.spelling")
class CoinsAreInts(Coins):
    """isinstance(True, int) holds, and True == 1."""

    def accepts(self, truth: Any, answer: Any) -> bool:
        return (
            isinstance(answer, dict)
            and all(isinstance(count, int) for count in answer.values())
            and answer == truth
        )
