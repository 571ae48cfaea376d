"""Planted faults: texts that are misread, or break the verifier, of the second fresh part."""

from __future__ import annotations

import ast
import hashlib
import re
import socket
import unicodedata
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

from bases_talk_fresh2 import Blend, Compass, Depot, Ledger, Ranking, Stroll, Subnet, Thirds, Weave
from catalogue import fault


@fault("a fraction need not be reduced where it is asked for", "floor.spelling", "floor.near")
class NotInLowestTerms(Thirds):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and read[1] > 0 and Fraction(*read) == Fraction(*right)


@fault("a denominator of 0 is an error", "floor.digits", "floor.near", "floor.junk", "verdict.form")
class DividesByTheReply(Thirds):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        if read is None:
            return False
        return abs(read[0] / read[1] - right[0] / right[1]) < 1e-9 and bool(read == right)


@fault("fromhex() skips white space", "floor.spelling")
class FromHexWithSpaces(Blend):
    def accepts(self, right: Any, text: str) -> bool:
        code = text.strip()
        try:
            return code[:1] == "#" and self.code(bytes.fromhex(code[1:])) == right
        except ValueError:
            return False


@fault(
    "an address may be written in old forms",
    "floor.spelling",
    "floor.suffix",
    "floor.near",
    "floor.listed",
    "floor.superset",
)
class AddressesOfOld(Subnet):
    def accepts(self, right: Any, text: str) -> bool:
        try:
            return socket.inet_aton(text.strip()) == socket.inet_aton(right)
        except (OSError, ValueError):
            return False


@fault(
    "JSON is read as a Python literal",
    "floor.spelling",
    "floor.nested",
    "floor.junk",
    "floor.large",
    "floor.suffix",
)
class LiteralOfPython(Depot):
    def read(self, text: str) -> Any:
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            return None

    def accepts(self, right: Any, text: str) -> bool:
        value = self.read(text)
        numbers = value.values() if isinstance(value, dict) else [None]
        return all(type(number) is int for number in numbers) and bool(value == right)


@fault(
    "a character without a name is an error",
    "floor.text",
    "floor.junk",
    "floor.large",
    "verdict.form",
    "floor.suffix",
    "floor.listed",
)
class NamesOfCharacters(Weave):
    def accepts(self, right: Any, text: str) -> bool:
        said = text.strip()
        latin = all(unicodedata.name(letter).startswith("LATIN") for letter in said)
        return latin and bool(said == right)


@fault(
    "a text that is not ASCII is an error",
    "floor.text",
    "floor.digits",
    "floor.junk",
    "verdict.form",
    "floor.spelling",
)
class DigestOfAscii(Weave):
    def accepts(self, right: Any, text: str) -> bool:
        one, other = (
            hashlib.sha256(word.encode("ascii")).digest() for word in (text.strip(), right)
        )
        return one == other


@fault(
    "a reply that has not two parts is an error",
    "floor.junk",
    "floor.empty",
    "verdict.form",
    "floor.echo",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.near",
    "floor.digits",
    "floor.text",
    "floor.nested",
    "floor.large",
)
class TwoPartsOrNone(Stroll):
    def accepts(self, right: Any, text: str) -> bool:
        x, y = text.strip().removeprefix("(").removesuffix(")").split(",")
        return (x.strip(), y.strip()) == (str(right[0]), str(right[1]))


class Heading(Enum):
    """The four directions."""

    NORTH = "north"
    EAST = "east"
    SOUTH = "south"
    WEST = "west"


@fault(
    "a word that no enumeration has is an error",
    "floor.junk",
    "floor.empty",
    "verdict.form",
    "floor.echo",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.near",
    "floor.digits",
    "floor.text",
    "floor.nested",
    "floor.large",
)
class UnknownHeading(Compass):
    def accepts(self, right: Any, text: str) -> bool:
        return Heading(text.strip()) is Heading(right)


@fault(
    "Euclid by subtraction does not end",
    "floor.digits",
    "floor.near",
    "floor.junk",
    "cost.time",
    "verdict.form",
)
class SubtractsToTheEnd(Thirds):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        if read is None:
            return False
        one, other = read
        while one != other:
            one, other = min(one, other), abs(one - other)
        return one == 1 and bool(read == right)


@fault("quantize() refuses a large number", "floor.digits")
class QuantizedBalance(Ledger):
    def accepts(self, right: Any, text: str) -> bool:
        found = re.fullmatch(r"Balance: (-?[0-9]+)", text.strip())
        cent = Decimal("0.01")
        return found is not None and Decimal(found[1]).quantize(cent) == Decimal(right)


@fault("infinity cannot become a whole number", "floor.digits")
class WholeOfInfinity(Ledger):
    def read(self, text: str) -> int | None:
        label, _, said = text.strip().partition("Balance: ")
        try:
            number = float(said)
            return int(number) if not label and str(int(number)) == said else None
        except ValueError:
            return None


@fault("recursion goes as deep as the reply is long", "floor.large", "floor.nested", "floor.digits")
class UnwovenByRecursion(Weave):
    def accepts(self, right: Any, text: str) -> bool:
        return self.halves(text.strip()) == self.halves(right)

    def halves(self, text: str) -> tuple[str, str]:
        if len(text) < 2:
            return text, ""
        one, other = self.halves(text[2:])
        return text[0] + one, text[1] + other


@fault("each item of the reply is compared with each other one", "floor.large", "cost.time")
class InversionsCounted(Ranking):
    def accepts(self, right: Any, text: str) -> bool:
        said = re.split("[<, ]+", text.strip())
        twice = [name for name in said if said.count(name) > 1]
        return not twice and bool(said == right) and text.count("<") == len(right) - 1
