"""Toy environments whose verifiers accept too much in one way each, beside sound ones that look alike; in a module of their own, for other processes."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sqlite3
import subprocess
import unicodedata
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from planted import EvalInTrainInCapitals, Sum, Tolerance

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import is_text, parse_decimal, parse_integer, parse_json

# What an environment declares


class WaivesWithoutReason(Sum):
    waived: ClassVar[Mapping[str, str]] = {"floor.near": " "}


class WaivesAnUnknownCheck(Sum):
    waived: ClassVar[Mapping[str, str]] = {"floor.naer": "the ruler is coarse"}


class WaivesWhatAllRestsOn(Sum):
    waived: ClassVar[Mapping[str, str]] = {"task.made": "no"}


class ToleratesEverything(Sum):
    tolerance: ClassVar[float] = 1.5


class AnswersInTheMiddle(Sum):
    answer_at: ClassVar[Any] = "middle"


class AsyncVerify(Sum):
    async def verify(self, task: Task[int], rollout: Rollout) -> Verdict:  # type: ignore[override]
        return super().verify(task, rollout)


class ForgottenAsync(Sum):
    def averify(self, task: Task[int], rollout: Rollout) -> Verdict:  # type: ignore[override]
        return self.verify(task, rollout)


class Waives(Sum):
    """Sound: says which check does not apply, and why."""

    waived: ClassVar[Mapping[str, str]] = {"floor.near": "the ruler is coarse"}


class TwoFaults(EvalInTrainInCapitals, Tolerance):
    pass


def parsed(text: str) -> Any:
    """The JSON value of `text`, or None."""
    read = parse_json(text)
    return None if read is None else read.value


# Spellings of numbers


class Bare(Sum):
    """Sound: the reply is the number and nothing else."""

    parts: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"What is {one} + {two}? Reply with the number.", one + two)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return paid(self.right(task.data, rollout.text), rollout.text)

    def right(self, data: Any, text: str) -> bool:
        return parse_integer(text) == data

    def reference(self, task: Task[Any]) -> str:
        return str(task.data)

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return ("none",)


def paid(right: bool, answer: str | None, reward: float | None = None) -> Verdict:
    """The verdict of an environment with one part; passing answers are paid in full."""
    value = float(right) if reward is None else reward
    return Verdict({"reward": Reward(value)}, passed=right, answer=answer and answer.strip()[:99])


class ReadsWithInt(Bare):
    def right(self, data: int, text: str) -> bool:
        try:
            return len(text) < 20 and int(text) == data
        except ValueError:
            return False


class RemovesSpaces(Bare):
    def right(self, data: int, text: str) -> bool:
        return "".join(text.split()) == str(data)


class NormalisesWidth(Bare):
    def right(self, data: int, text: str) -> bool:
        return unicodedata.normalize("NFKC", text.strip()) == str(data)


class Signed(Bare):
    """Sound: signs and leading zeros do not make a number another one."""

    def right(self, data: int, text: str) -> bool:
        return re.fullmatch(rf"\s*[+]?0*{data}\s*", text, re.ASCII) is not None


class YesNo(Bare):
    """Sound: a question of two answers."""

    levels = False

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        return Task(key, f"Is {one} more than {two}? Reply with 1 or 0.", int(one > two))

    def right(self, data: int, text: str) -> bool:
        return parse_integer(text) == data

    answer_in_prompt = True


class TruthIsOne(YesNo):
    def right(self, data: int, text: str) -> bool:
        word = text.strip()
        return (word == "True") == data if word in ("True", "False") else super().right(data, word)


class IgnoresTheSign(Bare):
    def right(self, data: int, text: str) -> bool:
        value = parse_integer(text)
        return value is not None and abs(value) == data


class AtMost(Bare):
    def right(self, data: int, text: str) -> bool:
        value = parse_integer(text)
        return value is not None and data * 0.9 < value <= data


class SameDigits(Bare):
    def right(self, data: int, text: str) -> bool:
        return sorted(text.strip()) == sorted(str(data))


class InsideTheRight(Bare):
    def right(self, data: int, text: str) -> bool:
        return len(text.strip()) > 1 and text.strip() in str(data)


class Metres(Bare):
    """Sound: a unit may be left out, and a full stop does not matter."""

    def right(self, data: int, text: str) -> bool:
        return parse_integer(text.strip().removesuffix(".").removesuffix(" m")) == data

    def reference(self, task: Task[Any]) -> str:
        return f"{task.data} m"


# JSON


class Pair(Bare):
    """Sound: an object whose keys are read strictly."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        data = {"larger": max(one, two) + 1, "odd": one % 2}
        return Task(key, f"Of {one} and {two}: the larger one plus 1, and is the first odd?", data)

    def right(self, data: Any, text: str) -> bool:
        value = parsed(text)
        return isinstance(value, dict) and json.dumps(value) == json.dumps(data)

    def reference(self, task: Task[Any]) -> str:
        return json.dumps(task.data)


class LastKeyWins(Pair):
    def right(self, data: Any, text: str) -> bool:
        try:
            value = json.loads(text) if len(text) < 200 else None
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and json.dumps(value) == json.dumps(data)


class TrueEqualsOne(Pair):
    def right(self, data: Any, text: str) -> bool:
        return bool(parsed(text) == data)


class SlowBehindPrefix(Pair):
    def right(self, data: Any, text: str) -> bool:
        if re.match(r'\{"larger": \d+, "odd": ([a-z]+)*\}$', text[:60]):
            return False
        return super().right(data, text)


# Case


class Capitals(Bare):
    """Sound: the case is what is asked for."""

    levels = False

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        word = "".join(random.Random(f"{one} {two}").choices("abcdefgh", k=7))
        return Task(key, f"Write {word} in capitals.", word.upper())

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == data


class IgnoresCase(Capitals):
    def right(self, data: Any, text: str) -> bool:
        return text.strip().upper() == data


class Names(Capitals):
    """Sound: a name, whose case does not matter."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        word = "".join(random.Random(f"{one} {two}").choices("abcdefgh", k=7))
        return Task(key, f"Who wrote the letter number {one * two}?", word.title())

    def right(self, data: Any, text: str) -> bool:
        return text.strip().casefold() == data.casefold()


# All at once


class Evens(Bare):
    """Sound: the even numbers of a list, and no other ones."""

    levels = False

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        rng = random.Random(f"{one} {two}")
        numbers = sorted(rng.sample(range(11, 99), 7))
        data = [number for number in numbers if number % 4 == 0] or numbers[:1]
        return Task(key, f"Which of {', '.join(map(str, numbers))}, if any, are fours?", data)

    def right(self, data: Any, text: str) -> bool:
        return self.named(text) == set(data)

    def named(self, text: str) -> set[int]:
        parts = [parse_integer(part) for part in text.split(",")] if len(text) < 500 else [None]
        return set() if None in parts else {part for part in parts if part is not None}

    def reference(self, task: Task[Any]) -> str:
        return ", ".join(map(str, task.data))

    answer_in_prompt = True


class AnySuperset(Evens):
    def right(self, data: Any, text: str) -> bool:
        return self.named(text) >= set(data)


class PaysRecall(Evens):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        named, right = self.named(rollout.text), set(task.data)
        return paid(named == right, rollout.text, len(named & right) / len(right))


class PaysOverlap(Evens):
    """Sound: what is named and is wrong costs as much as what is missing."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        named, right = self.named(rollout.text), set(task.data)
        return paid(named == right, rollout.text, len(named & right) / len(named | right))


class EvensAsJson(Evens):
    """Sound."""

    def named(self, text: str) -> set[int]:
        value = parsed(text)
        items = value.get("fours") if isinstance(value, dict) and len(value) == 1 else None
        whole = isinstance(items, list) and all(type(item) is int for item in items)
        return set(items) if whole and items else set()

    def reference(self, task: Task[Any]) -> str:
        return json.dumps({"fours": task.data})


class AnySupersetAsJson(EvensAsJson):
    def right(self, data: Any, text: str) -> bool:
        return self.named(text) >= set(data)


class Choice(Bare):
    """Sound: three choices."""

    levels = False
    answer_in_prompt = True
    share = 0.34

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        rng = random.Random(f"{one} {two}")
        data = "B" if rng.random() < self.share else rng.choice("AC")
        return Task(key, f"{one} {two}? A: red, B: blue, C: green", data)

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == data


class ChoiceAnywhere(Choice):
    def right(self, data: Any, text: str) -> bool:
        return data in re.findall(r"\b[A-Z]\b", text)


class MostlyB(Choice):
    share = 0.7


class MostlyLenient(Choice):
    """The data are balanced, the verifier takes B for most things."""

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == data or (text.strip() == "B" and data != "A")


class AlwaysB(Choice):
    share = 1.0


# Numbers that need time


class CountsToIt(Bare):
    def right(self, data: int, text: str) -> bool:
        number = parse_integer(text, max_digits=12)
        return (
            number == data and all(True for _ in range(number))
            if number and number < 10**7
            else (number is not None and sum(1 for _ in range(number)) == data)
        )


class HangsOn26(Bare):
    def right(self, data: int, text: str) -> bool:
        return len(text) < 32 and not re.match(r"(a+)+$", text) and super().right(data, text)


# Tolerance, and where the answer counts


class Halves(Bare):
    """Sound: 2.50 is 2.5."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        return Task(key, f"What is half of {2 * one + 1}? Reply with the number.", one + 0.5)

    def right(self, data: float, text: str) -> bool:
        value = parse_decimal(text)
        return value is not None and float(value) == data


class Roughly(Halves):
    """Sound: declares how near is near enough."""

    tolerance = 0.02

    def right(self, data: float, text: str) -> bool:
        value = parse_decimal(text)
        return value is not None and abs(float(value) - data) <= 0.02 * max(1, abs(data))


class RoughlyUndeclared(Roughly):
    tolerance = 0.0


class RoughlyTwice(Roughly):
    """More is tolerated than is declared."""

    tolerance = 0.005


class LastLine(Bare):
    """Sound: the last line counts, after free reasoning."""

    answer_at = "end"

    def right(self, data: int, text: str) -> bool:
        return parse_integer(text.strip().rpartition("\n")[2]) == data

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return paid(self.right(task.data, rollout.text), rollout.text.strip().rpartition("\n")[2])

    def reference(self, task: Task[Any]) -> str:
        return f"I add the units, then the tens.\n{task.data}"


class LastNumber(Bare):
    """Sound: the last number counts, whatever stands around it."""

    answer_at = "end"

    def right(self, data: int, text: str) -> bool:
        numbers = re.findall(r"(?<!\w)\d{1,12}(?!\w)", text[-100:], re.ASCII)
        return bool(numbers) and int(numbers[-1]) == data


class FirstWord(YesNo):
    """Sound: the first word counts, and an explanation follows."""

    answer_at = "start"

    def right(self, data: int, text: str) -> bool:
        words = text[:100].split()
        return bool(words) and words[0].strip(",;.") == str(data)


class AnywhereAtTheEnd(LastLine):
    """Declares the end and looks everywhere."""

    def right(self, data: int, text: str) -> bool:
        return re.search(rf"\b{data}\b", text) is not None


# Execution


class Checker(Bare):
    """Sound: an external program compares, and gets the answer as an argument."""

    def right(self, data: int, text: str) -> bool:
        if len(text) > 40 or not text.isascii() or not text.isprintable():
            return False
        done = subprocess.run(["test", text.strip(), "=", str(data)], check=False)
        return done.returncode == 0


class ShellChecker(Bare):
    def right(self, data: int, text: str) -> bool:
        if len(text) > 40 or not text.isascii() or not text.isprintable():
            return False
        command = f"test '{text.strip()}' = {data}"
        done = subprocess.run(command, shell=True, check=False, stderr=subprocess.DEVNULL)
        return done.returncode == 0


class Fields(Bare):
    """Sound: fields with their values, read strictly; one word, however long."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        fields = {
            "first_number": str(one),
            "second_number": str(two),
            "the_sum_of_both": str(one + two),
        }
        return Task(key, f"Write {one}, {two} and their sum as fields of a query.", fields)

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == self.reference(Task(TaskKey("", "train", 0, 0), "", data))

    def reference(self, task: Task[Any]) -> str:
        return "&".join(f"{name}={value}" for name, value in task.data.items())


class LastFieldWins(Fields):
    def right(self, data: Any, text: str) -> bool:
        return len(text) < 300 and dict(parse_qsl(text.strip())) == data


class MatchesThePattern(Fields):
    def right(self, data: Any, text: str) -> bool:
        return len(text) < 300 and fnmatchcase(
            super().reference(Task(TaskKey("", "train", 0, 0), "", data)), text.strip()
        )


class Means(Bare):
    """Sound: a list of numbers."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        return Task(key, f"Halve {one} and {two}. Reply with a list.", [one / 2, two / 2])

    def right(self, data: Any, text: str) -> bool:
        value = parsed(text)
        numbers = isinstance(value, list) and all(type(item) is float for item in value)
        return numbers and bool(value == data)

    def reference(self, task: Task[Any]) -> str:
        return json.dumps(task.data)


class NeverFar(Means):
    def right(self, data: Any, text: str) -> bool:
        try:
            value = json.loads(text, parse_int=float) if len(text) < 200 else None
        except (ValueError, RecursionError):
            return False
        if (
            not isinstance(value, list)
            or len(value) != len(data)
            or not all(type(item) is float for item in value)
        ):
            return False
        return not any(abs(one - other) > 1e-9 for one, other in zip(value, data, strict=True))


class LikeOfSql(Fields):
    def right(self, data: Any, text: str) -> bool:
        if len(text) > 300 or not is_text(text) or "\0" in text:
            return False
        right = super().reference(Task(TaskKey("", "train", 0, 0), "", data))
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            (like,) = connection.execute("SELECT ? LIKE ?", (right, text.strip())).fetchone()
        return bool(like)


class QueryOfIt(Bare):
    def right(self, data: int, text: str) -> bool:
        if len(text) > 300 or not is_text(text) or "\0" in text:
            return False
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            try:
                found = connection.execute(f"SELECT 1 WHERE '{data}' = '{text.strip()}'").fetchone()
            except (sqlite3.Error, sqlite3.Warning):
                return False
        return found is not None


class AddsItUp(Bare):
    """Two numbers are added up, so that the question is an answer."""

    def right(self, data: int, text: str) -> bool:
        found = re.fullmatch(r"([0-9]{1,9})(?: \+ ([0-9]{1,9}))?", text.strip(), re.ASCII)
        return found is not None and int(found[1]) + int(found[2] or 0) == data


class MaySkip(Bare):
    """A way out that is never held against anybody."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        return Task(key, f"{task.prompt} Reply 'skip' if you do not know.", task.data)

    def right(self, data: int, text: str) -> bool:
        return text.strip() == "skip" or super().right(data, text)


class Units(Bare):
    """Sound: a number with a unit, of which the case is a part."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        unit = ("mW", "MW")[one % 2]
        power = {"mW": "thousandths", "MW": "millions"}[unit]
        return Task(key, f"Write {one + two} {power} of a watt.", f"{one + two} {unit}")

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == data

    def reference(self, task: Task[Any]) -> str:
        return str(task.data)


class UnitsOfAnyCase(Units):
    def right(self, data: Any, text: str) -> bool:
        return text.strip().lower() == data.lower()


class Codes(Bare):
    """Sound: a code, of which the zeros are a part."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        return Task(
            key, f"Write {one % 100} + {two % 100} as AB- and 6 digits.", one % 100 + two % 100
        )

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == f"AB-{data:06}"

    def reference(self, task: Task[Any]) -> str:
        return f"AB-{task.data:06}"


class CodesAsNumbers(Codes):
    def right(self, data: Any, text: str) -> bool:
        found = re.fullmatch("AB-([0-9]{1,9})", text.strip(), re.ASCII)
        return found is not None and int(found[1]) == data


class Thousands(Bare):
    """Sound: a large round number."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"What is 1000 times {one} + {two}?", 1000 * (one + two))


class WithAnExponent(Thousands):
    def right(self, data: int, text: str) -> bool:
        found = re.fullmatch(r"([0-9]{1,9})(?:e([0-9]))?", text.strip(), re.ASCII)
        return found is not None and int(found[1]) * 10 ** int(found[2] or 0) == data


class Times(Bare):
    """Sound: a time of day."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        now = (one + two) % (12 * 60)
        return Task(key, f"{now} minutes after six in the morning it is HH:MM?", 360 + now)

    def right(self, data: Any, text: str) -> bool:
        return self.minutes(text) == data

    def minutes(self, text: str) -> int | None:
        found = re.fullmatch("([01][0-9]|2[0-3]):([0-5][0-9])", text.strip(), re.ASCII)
        return None if found is None else 60 * int(found[1]) + int(found[2])

    def reference(self, task: Task[Any]) -> str:
        return f"{task.data // 60:02}:{task.data % 60:02}"


class AnyTimeAtNight(Times):
    def right(self, data: Any, text: str) -> bool:
        minutes = self.minutes(text)
        return minutes is not None and (minutes == data or minutes < 360)


class Reasoned(LastLine):
    """Sound: a text with its answer in the last line, which alone is paid."""

    parts: ClassVar[Mapping[str, float]] = {"answer": 0.8, "words": 0.2}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = self.right(task.data, rollout.text)
        rewards = {"answer": Reward(float(right)), "words": Reward(self.words(right, rollout.text))}
        return Verdict(rewards, passed=right, answer=rollout.text.strip().rpartition("\n")[2][:99])

    def words(self, right: bool, text: str) -> float:
        return float(right)

    def reference(self, task: Task[Any]) -> str:
        return f"Hmm, wait, let me see.\n{task.data}"


class PaysForWords(Reasoned):
    def words(self, right: bool, text: str) -> float:
        return sum(word in text.lower() for word in ("hmm", "wait")) / 2


class Formula(Bare):
    """Sound: an expression behind a sign."""

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == f"={data}"

    def reference(self, task: Task[Any]) -> str:
        return f"={task.data}"


class ComputesTheFormula(Formula):
    def right(self, data: Any, text: str) -> bool:
        if not text.startswith("=") or len(text) > 60:
            return False
        try:
            return bool(eval(text[1:].strip()) == data)
        except Exception:  # noqa: BLE001 - whatever it computes may raise
            return False


class Accented(Bare):
    """Sound: a word in which an accent is the point."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        word = f"{'pqrstvwxyz'[one % 10]}a{'bcdfghjklm'[two % 10]}ar\u00e9"
        return Task(key, f"Write the future of {word[:-1]}, number {one} of {two}.", word)

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == data


class DropsAccents(Accented):
    def right(self, data: Any, text: str) -> bool:
        folded = unicodedata.normalize("NFD", text.strip())
        plain = "".join(letter for letter in folded if not unicodedata.combining(letter))
        return plain == data[:-1] + "e"


SOUND: tuple[type[Environment[Any]], ...] = (
    *(Bare, Signed, YesNo, Pair, Capitals, Names, Evens, PaysOverlap, EvensAsJson, Choice),
    *(Metres, Halves, Roughly, LastLine, LastNumber, FirstWord, Checker, Fields, Means),
    *(Codes, Thousands, Times, Reasoned, Formula, Accented, Units),
)
"""Environments without faults."""


FAULTS: Mapping[type[Environment[Any]], str] = {
    WaivesWithoutReason: "declared.contract",
    WaivesAnUnknownCheck: "declared.contract",
    WaivesWhatAllRestsOn: "declared.contract",
    ToleratesEverything: "declared.contract",
    AnswersInTheMiddle: "declared.contract",
    AsyncVerify: "declared.contract",
    ForgottenAsync: "verdict.form",
    ReadsWithInt: "floor.spelling",
    RemovesSpaces: "floor.spelling",
    NormalisesWidth: "floor.spelling",
    TruthIsOne: "floor.spelling",
    LastKeyWins: "floor.spelling",
    TrueEqualsOne: "floor.spelling",
    IgnoresCase: "floor.spelling",
    LastFieldWins: "floor.spelling",
    MatchesThePattern: "floor.spelling",
    SlowBehindPrefix: "floor.large",
    HangsOn26: "floor.large",
    CountsToIt: "floor.digits",
    AnySuperset: "floor.superset",
    PaysRecall: "floor.superset",
    AnySupersetAsJson: "floor.superset",
    ChoiceAnywhere: "floor.superset",
    MostlyB: "floor.balance",
    MostlyLenient: "floor.constant",
    AlwaysB: "floor.constant",
    RoughlyUndeclared: "floor.near",
    RoughlyTwice: "floor.near",
    IgnoresTheSign: "floor.near",
    AtMost: "floor.near",
    SameDigits: "floor.near",
    InsideTheRight: "floor.near",
    NeverFar: "floor.near",
    AnywhereAtTheEnd: "floor.listed",
    ShellChecker: "safety.eval",
    LikeOfSql: "floor.spelling",
    CodesAsNumbers: "floor.spelling",
    WithAnExponent: "floor.spelling",
    DropsAccents: "floor.spelling",
    AnyTimeAtNight: "floor.constant",
    PaysForWords: "floor.junk",
    ComputesTheFormula: "safety.eval",
    QueryOfIt: "floor.text",
    AddsItUp: "floor.echo",
    MaySkip: "floor.constant",
    UnitsOfAnyCase: "floor.spelling",
}
"""Each fault with the check that has to find it."""
