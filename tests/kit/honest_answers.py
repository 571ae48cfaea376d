"""Honest verifiers that look odd: declared tolerance and places, several spellings, partial pay."""

import contextlib
import json
import math
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from bases import (
    Compared,
    Consonants,
    JsonTotals,
    LargestOption,
    Marked,
    PlainSum,
    TaggedSum,
    WordsWith,
    held_out,
    judged_by,
    paid,
)
from catalogue import honest

from grpo_core import JudgeRequest, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_decimal, parse_integer, parse_json, xml_tag


@honest("a tolerance of 1 % is declared, as for a measurement")
class DeclaredTolerance(PlainSum):
    tolerance = 0.01

    def fits(self, answer: int, right: int) -> bool:
        return abs(answer - right) <= 0.01 * max(1, abs(right))


@honest("a tolerance is declared, and decimals are allowed")
class SquareRoots(Compared):
    tolerance = 0.001

    def task(self, key: TaskKey) -> Task[float]:
        number = key.rng().randrange(2, 10 ** (2 + round(2 * key.level))) * 2
        number += key.split == "eval"
        return Task(key, f"What is the square root of {number}? At least 3 decimals.", number**0.5)

    def verify(self, task: Task[float], rollout: Rollout) -> Verdict:
        value = parse_decimal(rollout.text, max_digits=20)
        right = value is not None and math.isclose(float(value), task.data, rel_tol=1e-4)
        return paid(right, None if value is None else str(value))

    def written(self, right: float) -> str:
        return f"{right:.5f}"


@honest("2.50 is the same decimal number as 2.5")
class TrailingZeros(PlainSum):
    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        right = Decimal(one + two) / 2
        return Task(key, f"What is the mean of {one} and {two}? The number only.", right)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        value = parse_decimal(rollout.text, max_digits=15)
        return self.judged(value == task.data, None if value is None else rollout.text.strip())

    def reference(self, task: Task[Any]) -> str:
        return str(task.data)

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return (f"{task.data} or {task.data + 1}",)


@honest("after free reasoning the last line is the answer, as is declared")
class LastLineCounts(PlainSum):
    answer_at = "end"

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        prompt = f"Add {one} and {two}. Reason as you like; the last line is the number alone."
        return Task(key, prompt, one + two)

    def extracted(self, text: str) -> int | None:
        return parse_integer((text.strip().splitlines() or [""])[-1])

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (f"{task.data} or {task.data + 1}", f"{task.data}\n{task.data + 1}")


@honest("after free reasoning what follows 'Answer:' in the last line counts, as is declared")
class AnswerAtTheEnd(Consonants):
    answer_at = "end"

    def asked(self, key: TaskKey, word: str) -> Task[str]:
        task = super().asked(key, word)
        return replace(task, prompt=f"{task.prompt} Think first, then end with 'Answer: REST'.")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        last = (rollout.text.strip().splitlines() or [""])[-1]
        answer = last.removeprefix("Answer: ") if last.startswith("Answer: ") else None
        return paid(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return f"I leave out a, e, i, o and u.\nAnswer: {task.data}"


@honest("the answer comes first and an explanation may follow, as is declared")
class AnswerAtTheStart(LargestOption):
    answer_at = "start"

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        first = (rollout.text.strip().splitlines() or [""])[0].strip()
        return paid(first == task.data, first[:50])


@honest("the last block counts, so that a policy may change its mind, as is declared")
class LastBlockCounts(TaggedSum):
    answer_at = "end"

    def extracted(self, text: str) -> int | None:
        block = xml_tag(text, tag="answer", which="last")
        return None if block is None or text[block.end :].strip() else parse_integer(block.content)


@honest("Arabic-Indic digits are normalised on purpose, since the prompt is in Arabic")
class ArabicDigits(PlainSum):
    waived: ClassVar[Mapping[str, str]] = {
        "floor.spelling": "the prompt is in Arabic, whose own digits are welcome"
    }
    digits: ClassVar[Mapping[int, str]] = {0x660 + n: str(n) for n in range(10)}

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"ما مجموع {one} و {two}؟ اكتب الرقم فقط.", one + two)

    def extracted(self, text: str) -> int | None:
        return parse_integer(text.translate(self.digits)) if len(text) < 60 else None


@honest("case matters: the answer is the word of the prompt in capitals")
class CapitalsMatter(Consonants):
    answer_in_prompt = True

    def asked(self, key: TaskKey, word: str) -> Task[str]:
        return Task(key, f"Write {word!r} in capital letters.", word.upper())


@honest("case matters: every second letter is a capital, and the prompt holds the word")
class EverySecondCapital(Consonants):
    def asked(self, key: TaskKey, word: str) -> Task[str]:
        right = "".join(c.upper() if n % 2 else c for n, c in enumerate(word))
        return Task(key, f"Write every second letter of {word!r} as a capital.", right)


@honest("case does not matter for the letter of a choice")
class EitherCase(LargestOption):
    def accepts(self, right: str, text: str) -> bool:
        return text.strip().upper() == right


@honest("a choice whose options are letters, compared exactly")
class LettersAsOptions(LargestOption):
    def asked(self, key: TaskKey, numbers: list[int]) -> Task[str]:
        rng = key.rng("letters")
        while True:
            options = rng.sample("abcdefghijklmnopqrst", 6)
            if held_out("".join(options)) == (key.split == "eval"):
                break
        prompt = f"Which of these letters comes first in the alphabet: {', '.join(options)}?"
        return Task(key, f"{prompt} Reply with it.", min(options))


@honest("the order of the keys and white space do not matter in JSON")
class AnyOrderOfKeys(JsonTotals):
    def accepts(self, right: Any, value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(type(value.get(name)) is int and value[name] == right[name] for name in right)
            and len(value) == len(right)
        )


@honest("a set is asked for, so any order is right, and nothing more than the set")
class AnyOrderOfItems(WordsWith):
    letter = "e"

    def given(self, text: str) -> list[str]:
        return [word.strip() for word in text.split(",", 20)]


@honest("items are paid in part, and each wrong one costs as much as a right one earns")
class PartialPay(AnyOrderOfItems):
    def verify(self, task: Task[tuple[str, ...]], rollout: Rollout) -> Verdict:
        given = set(self.given(rollout.text))
        right = len(given & set(task.data)) - len(given - set(task.data))
        value = max(0.0, right / len(task.data))
        answer = rollout.text.strip()[:90]
        return Verdict({"reward": Reward(value)}, passed=value >= 1.0, answer=answer)


@honest("closer numbers earn more, and only the right one passes")
class CloserEarnsMore(PlainSum):
    parts: ClassVar[Mapping[str, float]] = {"exact": 0.7, "close": 0.3}

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        right = answer == task.data
        away = 1.0 if answer is None else abs(answer - task.data) / task.data
        rewards = {"exact": Reward(float(right)), "close": Reward(max(0.0, 1.0 - 2 * away))}
        return Verdict(rewards, passed=right, answer=None if answer is None else str(answer))


@honest("there is no best answer: the longer the run of different letters, the better")
class OpenEnded(Compared):
    open_ended = True
    levels = False

    def task(self, key: TaskKey) -> Task[str]:
        letter = key.rng().choice("bcdfgh" if key.split == "train" else "klm")
        salt = key.rng("salt").randrange(10**6)
        prompt = f"Write different letters without a space, {letter!r} first. (round {salt})"
        return Task(key, prompt, letter)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()[:100]
        letters = re.fullmatch("[a-z]+", text) is not None and len(set(text)) == len(text)
        value = len(text) / 26 if letters and text.startswith(task.data) else 0.0
        return Verdict({"reward": Reward(value)}, passed=value > 0.3, answer=text)

    def written(self, right: str) -> str:
        return right + "abcdefghijklmnopqrstuvwxyz".replace(right, "")[:20]


@honest("any divisor is right, and the reference is one of them")
class AnyDivisor(Compared):
    primes: ClassVar[Sequence[int]] = [p for p in range(11, 600) if all(p % d for d in range(2, p))]
    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        start = 0 if key.split == "train" else 1
        one, two = key.rng().sample(self.primes[start::2], 2)
        prompt = f"Name a divisor of {one * two} other than 1 and the number itself."
        return Task(key, prompt, one * two)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=9)
        right = answer is not None and 1 < answer < task.data and task.data % answer == 0
        return paid(right, None if answer is None else str(answer))

    def written(self, right: int) -> str:
        return str(next(d for d in range(2, right) if right % d == 0))


@honest("rewards go from -1 to 1, and the floor is -1")
class PunishesWrong(PlainSum):
    reward_range = (-1.0, 1.0)
    floor = -1.0

    def judged(self, right: bool, answer: str | None) -> Verdict:
        value = 1.0 if right else -1.0
        return Verdict({"exact": Reward(value)}, passed=right, answer=answer)


@honest("a length penalty makes a right answer with spaces worth a little less")
class Concise(Consonants):
    def judged(self, right: bool, text: str) -> Verdict:
        value = max(0.5, 1.0 - 0.01 * (len(text) - len(text.strip()))) if right else 0.0
        return Verdict({"reward": Reward(value)}, passed=right, answer=text.strip()[:100])


@honest("a checker of its own gets the answer as an argument, and no shell")
class ExternalChecker(Consonants):
    """The answer is data to another program: what it does with it is compare."""

    program: ClassVar[str] = "import sys; sys.exit(sys.argv[1] != sys.argv[2])"

    def accepts(self, right: str, text: str) -> bool:
        text = text.strip()
        if not re.fullmatch("[a-z_]{1,40}", text):
            return False
        done = subprocess.run([sys.executable, "-S", "-E", "-c", self.program, text, right])
        return done.returncode == 0


@honest("a file is written for each verdict, in a folder that is removed")
class TidyFiles(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "answer.txt")
            path.write_text(str(answer))
            answer = parse_integer(path.read_text())
        return super().scored(task, answer)


@honest("a database in memory compares, with the reply as a parameter")
class QueriesByParameter(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        if not text.isascii() or len(text) > 1000:
            return False
        connection = sqlite3.connect(":memory:")
        try:
            (same,) = connection.execute("SELECT ? = ?", (text.strip(), right)).fetchone()
        finally:
            connection.close()
        return bool(same)


@honest("a cache of replies that is bounded")
class BoundedCache(Consonants):
    cache: ClassVar[dict[tuple[str, str], bool]] = {}

    def accepts(self, right: str, text: str) -> bool:
        if len(text) > 200:
            return False
        if len(self.cache) > 500:
            self.cache.clear()
        return self.cache.setdefault((right, text), text.strip() == right)


@honest("an expression is asked for, and parsed by hand")
class Expressions(Compared):
    """Sums of numbers, which are split and never evaluated."""

    levels = False
    open_ended = True

    def task(self, key: TaskKey) -> Task[int]:
        total = key.rng().randrange(50, 5000) * 2 + (key.split == "eval")
        prompt = f"Write {total} as a sum of three different numbers above 1, as in 2+3+4."
        return Task(key, prompt, total)

    def accepts(self, right: int, text: str) -> bool:
        numbers = [parse_integer(n, max_digits=6) for n in text[:60].strip().split("+")]
        whole = [n for n in numbers if n is not None and n > 1]
        sums_up = len(numbers) == len(set(whole)) == 3 and sum(whole) == right
        return sums_up and len(text) <= 60

    def written(self, right: int) -> str:
        return f"2+3+{right - 5}"


@honest("composed and decomposed accents are the same text")
class NormalisesAccents(Consonants):
    def asked(self, key: TaskKey, word: str) -> Task[str]:
        right = "".join("é" if c == "e" else c for c in f"{word}me")
        return Task(key, f"Write {word + 'me'!r} with an accent on each e (é).", right)

    def accepts(self, right: str, text: str) -> bool:
        return unicodedata.normalize("NFC", text.strip()[:400]) == right


@honest("commas between thousands are allowed")
class GroupedThousands(PlainSum):
    def extracted(self, text: str) -> int | None:
        text = text.strip()
        grouped = re.fullmatch("-?[0-9]{1,3}(,[0-9]{3}){1,4}", text)
        return parse_integer(text.replace(",", "") if grouped else text)


@honest("a JSON list of numbers is asked for, and 1.0 is refused where 1 is right")
class StrictNumbers(Consonants):
    def asked(self, key: TaskKey, word: str) -> Task[Any]:
        flags = [int(letter in "aeiou") for letter in sorted(word)]
        prompt = f"Sort the letters of {word!r}; list 1 for each vowel and 0 for each other."
        return Task(key, f"{prompt} Reply with a JSON list.", flags)

    def accepts(self, right: Any, text: str) -> bool:
        value = parse_json(text, max_chars=500)
        return value is not None and json.dumps(value.value) == json.dumps(right)

    def written(self, right: Any) -> str:
        return json.dumps(right)


def _alike(request: JudgeRequest) -> float:
    """Score the share of the reference's words that the text has, and nothing above it."""
    wanted, given = request.reference.split(), request.candidate.split()
    return float(given == wanted)


@honest(
    "a judge scores what is filled in, and the prompt holds the text around the gap",
    build=judged_by(_alike),
)
class FillsTheGap(Marked):
    """One of five words is left out; it is told by the ones around it."""

    answer_in_prompt = False

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        first = rng.randrange(100, 10**6) * 2 + (key.split == "eval")
        numbers = [first + 3 * n for n in range(5)]
        gap = rng.randrange(1, 4)
        shown = " ".join("___" if n == gap else str(number) for n, number in enumerate(numbers))
        return Task(key, f"Fill the gap: {shown}", str(numbers[gap]))


@honest("groups are judged together: the reward is relative to nobody, the call is one")
class JudgesGroups(Consonants):
    async def verify_batch(self, groups: Sequence[Any]) -> list[list[Verdict]]:
        return [
            [self.verify(group.task, rollout) for rollout in group.rollouts] for group in groups
        ]


@honest("a grid is asked for, several lines of which each must be right")
class SeveralLines(PlainSum):
    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        lines = tuple(one + n * two for n in range(1, 5))
        prompt = f"Starting from {one}, add {two} four times; one number a line."
        return Task(key, prompt, lines)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        lines = [parse_integer(line) for line in rollout.text.strip().splitlines()[:9]]
        return self.judged(tuple(lines) == task.data, rollout.text.strip()[:90])

    def reference(self, task: Task[Any]) -> str:
        return "\n".join(map(str, task.data))

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return (" ".join(map(str, task.data)), str(task.data[-1]))


@honest("the right answer is empty brackets now and then, since nothing fits")
class NothingFits(Compared):
    levels = False
    answer_in_prompt = True

    def task(self, key: TaskKey) -> Task[tuple[int, ...]]:
        rng = key.rng()
        numbers = [rng.randrange(10, 99) * 2 + (key.split == "eval") for _ in range(8)]
        right = tuple(number for number in numbers if number % 7 == 0)
        prompt = f"Which of {numbers} are multiples of seven? Reply with a JSON list, in order."
        return Task(key, prompt, right)

    def accepts(self, right: tuple[int, ...], text: str) -> bool:
        value = parse_json(text, max_chars=300)
        return value is not None and json.dumps(value.value) == self.written(right)

    def written(self, right: tuple[int, ...]) -> str:
        return json.dumps(right)


@honest("a log of verdicts is wanted, and the check of files is waived with the reason")
class WantedLog(PlainSum):
    waived: ClassVar[Mapping[str, str]] = {"safety.files": "the log is read by people afterwards"}

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        with Path("judged.log").open("a") as log:
            log.write(f"{task.key.index} {answer}\n")
        return super().scored(task, answer)


@honest("a measurement varies a little from verdict to verdict, as is declared")
class Measured(Consonants):
    deterministic = False

    def judged(self, right: bool, text: str) -> Verdict:
        verdict = super().judged(right, text)
        return replace(verdict, metrics={"seconds": time.perf_counter() % 1.0})


@honest("a canary is not the task of its key: nobody can know the word, and nothing is paid")
class CanaryOfItsOwn(Consonants):
    def canaries(self) -> Sequence[Task[str]]:
        key = TaskKey("consonants", "eval", 0)
        return (Task(key, "Remove the vowels from the word that I think of.", "?"),)

    def accepts(self, right: str, text: str) -> bool:
        return right != "?" and super().accepts(right, text)


@honest("the verifier draws from the global generator, and seeds nothing")
class DrawsWhileJudging(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        random.random()
        return super().scored(task, answer)


@honest("the working directory is another one for a moment, and is restored")
class MovesAndReturns(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        with contextlib.chdir(tempfile.gettempdir()):
            return super().accepts(right, text)
