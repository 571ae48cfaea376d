"""Planted faults, fresh half: verifiers that pay for answers which are not right."""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from typing import Any

from bases_answers_fresh import (
    AlphabetOption,
    ArrivalTime,
    Brackets,
    CamelCase,
    Colouring,
    CommonNumbers,
    Distance,
    Divisible,
    Extraction,
    Hexadecimal,
    LaterDate,
    PrimeFactors,
    RobotWalk,
    SortedNumbers,
    Temperatures,
    Traced,
)
from catalogue import fault

from grpo_core.extract import parse_decimal, parse_integer, parse_json

# Where the answer is looked for


@fault("one of all times in the reply is right", "floor.listed", "floor.suffix")
class AnyTimeCounts(ArrivalTime):
    def accepts(self, right: str, text: str) -> bool:
        return right in re.findall(r"\b[0-9]{2}:[0-9]{2}\b", text)


@fault("the answer is looked for by `in`", "floor.listed", "floor.suffix")
class HexSomewhere(Hexadecimal):
    def accepts(self, right: str, text: str) -> bool:
        return right in text


@fault("the answer is looked for by `in`", "floor.listed", "floor.suffix")
class NameSomewhere(CamelCase):
    def accepts(self, right: str, text: str) -> bool:
        return text.find(right) >= 0


@fault("the first match counts", "floor.listed", "floor.suffix")
class FirstDateCounts(LaterDate):
    def accepts(self, right: str, text: str) -> bool:
        found = re.search(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text)
        return found is not None and found.group() == right


@fault("the last word counts", "floor.listed", "floor.suffix")
class LastWordIsYes(Divisible):
    def accepts(self, right: str, text: str) -> bool:
        return text[-1000:].strip(" .\n").rpartition(" ")[2] == right


@fault("the last match counts", "floor.listed", "floor.suffix")
class LastPairCounts(RobotWalk):
    def accepts(self, right: list[int], text: str) -> bool:
        found = re.findall(r"\[(-?[0-9]{1,4}), (-?[0-9]{1,4})\]", text)
        return bool(found) and list(map(int, found[-1])) == right


@fault("only the beginning of the reply is compared", "floor.suffix")
class MatchWithoutEnd(Traced):
    def accepts(self, right: int, text: str) -> bool:
        return re.match(rf"\s{{0,9}}{right}\b", text) is not None


@fault("only the beginning of the reply is compared", "floor.suffix")
class FirstTenCharacters(LaterDate):
    def accepts(self, right: str, text: str) -> bool:
        return text.lstrip()[:10] == right


@fault("an alternative of a pattern is not in brackets", "floor.suffix", "floor.near")
class LooseAlternative(Temperatures):
    def accepts(self, right: int, text: str) -> bool:
        return re.search(rf"^{right} degrees|^{right}|{right}$", text.strip()) is not None


@fault("an alternative of a pattern is not in brackets", "floor.suffix")
class LooseYesOrNo(Divisible):
    def accepts(self, right: str, text: str) -> bool:
        other = "no" if right == "yes" else "yes"
        pattern = rf"^{right}\b|{right}\W?$"
        return re.search(pattern, text.strip()) is not None and other not in text.split()


# Parts of answers, and too much of them


@fault("a beginning of the answer is enough", "floor.near")
class BeginningIsEnough(CamelCase):
    def accepts(self, right: str, text: str) -> bool:
        return bool(text.strip()) and right.startswith(text.strip())


@fault("the answer contains the reply", "floor.near", "floor.empty")
class ReplyInTheAnswer(PrimeFactors):
    def accepts(self, right: list[int], text: str) -> bool:
        return text.strip() in self.written(right)


@fault("zip compares as far as the shorter one goes", "floor.near", "floor.empty", "floor.suffix")
class ZippedLists(SortedNumbers):
    def accepts(self, right: list[int], text: str) -> bool:
        items = text.split()[:100]
        return all(item == str(number) for item, number in zip(items, right, strict=False))


@fault("zip compares as far as the shorter one goes", "floor.near", "floor.suffix")
class ZippedPairs(RobotWalk):
    def accepts(self, right: list[int], text: str) -> bool:
        value = parse_json(text, max_chars=200)
        items = value.value if value is not None and isinstance(value.value, list) else []
        return bool(items) and all(a == b for a, b in zip(items, right, strict=False))


@fault("all items of the answer, and any others", "floor.superset", "floor.listed")
class AllOfThemAndMore(CommonNumbers):
    def accepts(self, right: list[int], text: str) -> bool:
        return set(right) <= set(self.read(text) or ())


@fault("some items of the answer are enough", "floor.near", "floor.constant", "floor.junk")
class SomeOfThem(CommonNumbers):
    def accepts(self, right: list[int], text: str) -> bool:
        items = self.read(text)
        return items is not None and set(items) <= set(right)


@fault("one item in common is enough", "floor.near", "floor.superset", "floor.listed")
class OneInCommon(CommonNumbers):
    def accepts(self, right: list[int], text: str) -> bool:
        return not set(right).isdisjoint(self.read(text) or ())


@fault("only the keys of the reply are compared", "floor.near", "floor.constant", "floor.junk")
class KeysThatAreThere(Extraction):
    def accepts(self, right: dict[str, Any], text: str) -> bool:
        value = parse_json(text, max_chars=1000)
        if value is None or not isinstance(value.value, dict):
            return False
        return all(right.get(key) == item for key, item in value.value.items())


# What is nearly right


@fault("tolerance without a declaration", "floor.near")
class NearlyThatFar(Distance):
    def accepts(self, right: Decimal, text: str) -> bool:
        value = parse_decimal(text, max_digits=20)
        return value is not None and abs(value - right) < Decimal("0.05") * right


@fault("tolerance without a declaration", "floor.near")
class ADayMoreOrLess(LaterDate):
    def accepts(self, right: str, text: str) -> bool:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text.strip()) is None:
            return False
        try:
            given = date.fromisoformat(text.strip())
        except ValueError:
            return False
        return abs((given - date.fromisoformat(right)).days) <= 1


@fault("both numbers are rounded before they are compared", "floor.near")
class WholeKilometres(Distance):
    def accepts(self, right: Decimal, text: str) -> bool:
        value = parse_decimal(text, max_digits=20)
        return value is not None and int(value) == int(right)


@fault("both numbers are rounded before they are compared", "floor.near")
class ThreeDigitsOfIt(Traced):
    def accepts(self, right: int, text: str) -> bool:
        value = parse_integer(text)
        return value is not None and f"{value:.2g}" == f"{right:.2g}"


@fault("the minus is dropped", "floor.near")
class WarmerOrColder(Temperatures):
    def accepts(self, right: int, text: str) -> bool:
        value = parse_integer(text, max_digits=9)
        return value is not None and abs(value) == abs(right)


@fault("the unit is not looked at", "floor.suffix", "floor.near")
class AnyUnit(Distance):
    def accepts(self, right: Decimal, text: str) -> bool:
        found = re.fullmatch(r"([0-9.]{1,20}) ?[a-zA-Z%]{0,10}", text.strip())
        return found is not None and parse_decimal(found[1]) == right


@fault("typing errors are forgiven", "floor.near")
class OneLetterOff(Hexadecimal):
    def accepts(self, right: str, text: str) -> bool:
        given = text.strip()
        return (
            len(given) == len(right) and sum(a != b for a, b in zip(given, right, strict=True)) < 2
        )


# What is checked is not what was asked


@fault("only a property of the answer is checked", "floor.other", "floor.constant", "floor.junk")
class AscendingNumbers(SortedNumbers):
    def accepts(self, right: list[int], text: str) -> bool:
        numbers = self.read(text)
        return bool(numbers) and numbers == sorted(numbers or ())


@fault("only a property of the answer is checked", "floor.other", "floor.constant")
class WellFormedDate(LaterDate):
    def accepts(self, right: str, text: str) -> bool:
        return re.fullmatch(r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]", text.strip()) is not None


@fault("the answer to another question is contained in it", "floor.constant", "floor.suffix")
class ValidInInvalid(Brackets):
    def accepts(self, right: str, text: str) -> bool:
        return right in text.strip()[-9:]


@fault("conditions that hold for nothing", "floor.constant", "floor.junk")
class EdgesThatAreColoured(Colouring):
    def coloured(self, right: dict[str, Any], value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        edges = [(a, b) for a, b in right["edges"] if a in value and b in value]
        return all(json.dumps(value[a]) != json.dumps(value[b]) for a, b in edges)


@fault("colours that nobody offered", "floor.constant", "floor.junk")
class ColoursWithoutEnd(Colouring):
    def coloured(self, right: dict[str, Any], value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        return all(value.get(a, a) != value.get(b, b) for a, b in right["edges"])


@fault("words in any order and number", "floor.superset", "floor.suffix", "floor.echo")
class WordsOfTheAnswer(Extraction):
    """Counts how many words of the answer are in the reply, as recall does."""

    def accepts(self, right: dict[str, Any], text: str) -> bool:
        words = set(re.findall(r"\w+", text[:20_000]))
        return {str(value) for value in right.values()} <= words


@fault("one of the letters of the reply is right", "floor.listed", "floor.superset")
class AmongItsLetters(AlphabetOption):
    def accepts(self, right: str, text: str) -> bool:
        return right in re.findall(r"\b[A-F]\b", text)


@fault("the first letter of the reply counts", "floor.suffix", "floor.listed")
class FirstLetterCounts(AlphabetOption):
    def accepts(self, right: str, text: str) -> bool:
        return text.strip()[:1] == right


@fault("the reply is evaluated", "safety.eval")
class EvaluatesWithoutBuiltins(Distance):
    def accepts(self, right: Decimal, text: str) -> bool:
        try:
            value = eval(text[:200].strip(), {"__builtins__": {}}, {})
        except (ArithmeticError, AttributeError, NameError, SyntaxError, TypeError, ValueError):
            return False
        return type(value) in (int, float) and Decimal(str(value)) == right
