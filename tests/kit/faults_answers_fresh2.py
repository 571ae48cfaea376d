"""Planted faults: verifiers that accept too much, of the second fresh part."""

from __future__ import annotations

import random
import re
from collections import Counter
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import Any

from bases_talk_fresh2 import (
    HEADINGS,
    Blend,
    Compass,
    Depot,
    Ledger,
    Parcel,
    Ranking,
    Stroll,
    Subnet,
    Thirds,
    Weave,
)
from catalogue import fault

from grpo_core.extract import parse_integer


@fault("items need only occur in the right order", "floor.suffix", "floor.listed", "floor.superset")
class NamesSomewhereInOrder(Ranking):
    def accepts(self, right: Any, text: str) -> bool:
        places = [text.find(name) for name in right]
        return -1 not in places and places == sorted(places)


@fault("a pair in the wrong order is forgiven", "floor.near", "floor.spelling")
class OneSwapForgiven(Ranking):
    def accepts(self, right: Any, text: str) -> bool:
        said = self.read(text)
        if sorted(said) != sorted(right):
            return False
        return [one == other for one, other in zip(said, right, strict=True)].count(False) <= 2


@fault("a neighbouring cell is right", "floor.near")
class CellNextDoor(Stroll):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and abs(read[0] - right[0]) + abs(read[1] - right[1]) <= 1


@fault("the coordinates may be swapped", "floor.spelling", "floor.near")
class EitherAxisFirst(Stroll):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and sorted(read) == sorted(right)


@fault("the distance from the start is compared", "floor.near", "floor.spelling")
class DistanceAlone(Stroll):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and bool(
            read[0] ** 2 + read[1] ** 2 == right[0] ** 2 + right[1] ** 2
        )


@fault("numbers of the same bin are the same", "floor.near")
class SameBinOfTen(Ledger):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and read // 10 == right // 10


@fault("what an object leaves out counts as right", "floor.constant", "floor.junk", "floor.near")
class OmittedIsRight(Depot):
    def accepts(self, right: Any, text: str) -> bool:
        value = self.read(text)
        if not isinstance(value, dict) or set(value) - set(right):
            return False
        return all(value.get(name, number) == number for name, number in right.items())


@fault("more than the right number is right", "floor.near", "floor.digits")
class AtLeastAsMany(Depot):
    def accepts(self, right: Any, text: str) -> bool:
        value = self.read(text)
        if not isinstance(value, dict) or set(value) != set(right):
            return False
        given = all(isinstance(number, int) for number in value.values())
        return given and all(value[name] >= number for name, number in right.items())


@fault(
    "whatever does not say no says yes",
    "floor.junk",
    "floor.empty",
    "floor.constant",
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
class NotNoIsYes(Parcel):
    def read(self, text: str) -> str:
        return "no" if text.strip().lower() in ("no", "no.") else "yes"


@fault(
    "zeros make both cross products equal",
    "floor.constant",
    "floor.digits",
    "floor.near",
    "floor.junk",
)
class ZeroOverZero(Thirds):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and read[0] * right[1] == right[0] * read[1]


@fault("half of the digits are compared", "floor.near")
class UpperHalfOfEachByte(Blend):
    def accepts(self, right: Any, text: str) -> bool:
        code = text.strip()
        return bool(re.fullmatch("#[0-9a-f]{6}", code)) and code[1::2] == right[1::2]


@fault(
    "the letters of the answer need only occur in order",
    "floor.suffix",
    "floor.superset",
    "floor.constant",
    "floor.listed",
    "floor.large",
)
class LettersInOrder(Weave):
    def accepts(self, right: Any, text: str) -> bool:
        letters = iter(text)
        return all(letter in letters for letter in right)


@fault("the longest line of the reply counts", "floor.suffix", "floor.listed", "floor.superset")
class LongestLineCounts(Subnet):
    def read(self, text: str) -> str:
        return max((line.strip() for line in text.split("\n")), key=len)


@fault("the most frequent number counts", "floor.suffix", "floor.listed", "floor.superset")
class MostFrequentCounts(Ledger):
    def read(self, text: str) -> int | None:
        numbers = Counter(re.findall(r"Balance: (-?[0-9]{1,9})", text))
        return int(numbers.most_common(1)[0][0]) if numbers else None


@fault(
    "what is not found is taken for the last label",
    "floor.junk",
    "floor.empty",
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
class NotFoundIsWest(Compass):
    def read(self, text: str) -> str:
        names = "|".join(HEADINGS)
        return HEADINGS[names[: names.find(text.strip() or "?")].count("|")]


@fault("whole numbers are compared as floats", "floor.near")
class CentsAsFloats(Ledger):
    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        low, high = 10**18, 10 ** (19 + round(2 * level))
        one, two, three = (rng.randint(low, high) for _ in range(3))
        return f"Booked: +{one}, +{two}, -{three}. What is the balance?", one + two - three

    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and float(read) == float(right)


@fault("zeros are stripped from whole numbers", "floor.near", "floor.suffix")
class ZerosAtTheEnd(Ledger):
    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and str(read).rstrip("0") == str(right).rstrip("0")


@fault("the answer is used as a pattern", "floor.spelling", "floor.near")
class DotsMatchAnything(Subnet):
    def accepts(self, right: Any, text: str) -> bool:
        return re.fullmatch(right, text.strip()) is not None


@fault("a member is taken for the whole", "floor.near", "floor.other")
class AnyHostOfIt(Subnet):
    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        asked, network = super().drawn(rng, level)
        found = re.search(r"/([0-9]+)", asked)
        return asked, f"{network}/{found[1]}" if found else ""

    def accepts(self, right: Any, text: str) -> bool:
        try:
            return IPv4Address(text.strip()) in IPv4Network(right)
        except AddressValueError:
            return False

    def written(self, data: str) -> str:
        return data.partition("/")[0]


@fault(
    "an unreadable truth equals whatever cannot be read",
    "floor.junk",
    "floor.empty",
    "floor.other",
    "floor.spelling",
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
class NoneIsNone(Ledger):
    def accepts(self, right: Any, text: str) -> bool:
        return self.unsigned(text) == self.unsigned(self.written(right))

    def unsigned(self, text: str) -> int | None:
        found = re.fullmatch(r"Balance: ([0-9]{1,9})", text.strip())
        return None if found is None else int(found[1])


@fault("only the first item has to be in its place", "floor.near", "floor.spelling")
class LowestIsEnough(Ranking):
    def accepts(self, right: Any, text: str) -> bool:
        said = self.read(text)
        return bool(said[0] == right[0]) and sorted(said) == sorted(right)


@fault(
    "a numerator alone is compared",
    "floor.near",
    "floor.suffix",
    "floor.listed",
    "floor.superset",
    "floor.spelling",
)
class NumeratorAlone(Thirds):
    def read(self, text: str) -> Any:
        return parse_integer(text.strip().partition("/")[0])

    def accepts(self, right: Any, text: str) -> bool:
        return bool(self.read(text) == right[0])
