"""Honest verifiers that look odd, fresh half: many right answers, encodings, places, partial pay."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any, ClassVar

from bases import syllables
from bases_answers_fresh import (
    SPACE,
    AlphabetOption,
    ArrivalTime,
    Asked,
    Brackets,
    CamelCase,
    Colouring,
    CommonNumbers,
    Distance,
    Divisible,
    Extraction,
    Fractions,
    Hexadecimal,
    LaterDate,
    PrimeFactors,
    RobotWalk,
    SortedNumbers,
    Temperatures,
    Traced,
    clock,
    kept_back,
)
from catalogue import honest

from grpo_core import (
    Environment,
    Group,
    JudgeRequest,
    Message,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import (
    fenced_code,
    is_text,
    parse_decimal,
    parse_integer,
    parse_json,
    ungrouped,
    xml_tag,
)
from grpo_core.testing import FakeJudge

# One right answer


@honest("the answer is a time, whose digits are no number")
class TimesOfTrains(ArrivalTime):
    def cheats(self, task: Task[str]) -> Sequence[str]:
        return (f"{task.data} or 00:00", task.data.replace(":", ""), f"{task.data}:00")


@honest("the answer is a date in one spelling only")
class DatesInOneSpelling(LaterDate):
    def cheats(self, task: Task[str]) -> Sequence[str]:
        return (task.data.replace("-", ""), task.data.replace("-", "/"), task.data[:7])


@honest("the answer is hexadecimal, and sometimes has no letter")
class HexadecimalDigits(Hexadecimal):
    def cheats(self, task: Task[str]) -> Sequence[str]:
        return (f"0x{task.data}", task.data[:-1], f"{int(task.data, 16)}")


@honest("an expression is the answer, and equal numbers are not")
class LowestTerms(Fractions):
    def cheats(self, task: Task[str]) -> Sequence[str]:
        above, below = map(int, task.data.split("/"))
        return (f"{2 * above}/{2 * below}", f"{above / below:.6f}")


@honest("capitals matter, since they are what is asked for")
class CapitalsOfCamels(CamelCase):
    def cheats(self, task: Task[str]) -> Sequence[str]:
        return (task.data.lower(), task.data[0].upper() + task.data[1:])


@honest("half of the answers are no, and the prompt says both")
class EvenlyDivided(Divisible):
    def cheats(self, task: Task[str]) -> Sequence[str]:
        return ("yes no", "yes or no")


@honest("one of the two answers is a part of the other one")
class ValidOrNot(Brackets):
    pass


@honest("the answer is in the prompt, among others, as JSON with keys in any order")
class WhoBoughtWhat(Extraction):
    def cheats(self, task: Task[dict[str, Any]]) -> Sequence[str]:
        return (json.dumps({**task.data, "more": 1}), json.dumps(str(task.data)))


@honest("items in any order, each of them once")
class CommonInAnyOrder(CommonNumbers):
    def cheats(self, task: Task[list[int]]) -> Sequence[str]:
        return (json.dumps(task.data + task.data[:1]), json.dumps(task.data[1:]))


@honest("repeated items count as often as they are there")
class FactorsWithRepeats(PrimeFactors):
    def cheats(self, task: Task[list[int]]) -> Sequence[str]:
        return (self.written(task.data[1:]), self.written([*task.data, 1]))


@honest("answers are negative half of the time")
class ColderOrWarmer(Temperatures):
    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (str(-task.data), f"{task.data} degrees")


@honest("decimals in any number of zeros at the end are equal")
class ExactDecimals(Distance):
    pass


@honest("a list whose items are all in the prompt, in another order")
class InAscendingOrder(SortedNumbers):
    def cheats(self, task: Task[list[int]]) -> Sequence[str]:
        return (self.written(task.data[::-1]), self.written(task.data[:-1]))


@honest("the prompt holds code, and the answer is what it prints")
class PrintedNumber(Traced):
    pass


@honest("a pair of numbers, whose order matters")
class WhereTheRobotIs(RobotWalk):
    def cheats(self, task: Task[list[int]]) -> Sequence[str]:
        return (json.dumps([*task.data, 0]), json.dumps(task.data[:1]))


@honest("four to six options, and harder ones begin alike")
class FirstInTheAlphabet(AlphabetOption):
    def cheats(self, task: Task[str]) -> Sequence[str]:
        return ("A B C D E F", "ABCDEF", f"{task.data} or X")


ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
SMALL = [*ONES.split(), "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spoken(number: int) -> str:
    """Return a number below a million in words."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {spoken(number % size)}" if number % size else ""
            return f"{spoken(number // size)} {name}{rest}"
    if number < 20:
        return SMALL[number]
    return TENS[number // 10] + (f"-{SMALL[number % 10]}" if number % 10 else "")


@honest("a number in words, of which hyphens and capitals do not matter, as the prompt says")
class NumbersInWords(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, str]:
        low = 10 ** (2 + round(2 * level))
        number = rng.randrange(low, 10 * low)
        question = f"Write {number} in English words, without 'and'."
        return f"{question} Hyphens and capitals do not matter.", spoken(number)

    def accepts(self, right: str, text: str) -> bool:
        return self.plain(text.strip(SPACE)) == self.plain(right)

    def plain(self, text: str) -> str:
        return text.lower().replace("-", " ") if text.isascii() else ""


@honest("a number without digits, whose beginning is often another number")
class RomanYears(Asked):
    marks: ClassVar[Sequence[tuple[int, str]]] = tuple(
        zip(
            (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
            ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"],
            strict=True,
        )
    )

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        number = rng.randrange(20 + round(1500 * level), 700 + round(3200 * level))
        left, text = number, ""
        for value, letters in self.marks:
            text, left = text + letters * (left // value), left % value
        return f"Write {number} as a Roman numeral in capitals. Reply with it only.", text


@honest("the answer is in the prompt, in Morse code")
class MorseCode(Asked):
    answer_in_prompt = True
    codes: ClassVar[Mapping[str, str]] = dict(
        zip(
            "abcdefghiklmnoprstu",
            [
                ".-",
                "-...",
                "-.-.",
                "-..",
                ".",
                "..-.",
                "--.",
                "....",
                "..",
                "-.-",
                ".-..",
                "--",
                "-.",
                "---",
                ".--.",
                ".-.",
                "...",
                "-",
                "..-",
            ],
            strict=True,
        )
    )

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        word = syllables(rng, 3 + round(5 * level))
        code = " / ".join(self.codes[letter] for letter in word)
        return f"Read this Morse code: {code}\nReply with the word in lower case.", word


@honest("the answer is in the prompt, encoded, since to decode it is the task")
class ReadsBase64(Asked):
    answer_in_prompt = True

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        word = syllables(rng, 3 + round(6 * level))
        code = base64.b64encode(word.encode()).decode()
        return f"Decode this base64: {code}\nReply with what it says and nothing else.", word


@honest("the answer is in the prompt, each letter some places further")
class ShiftedLetters(Asked):
    answer_in_prompt = True

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        word, shift = syllables(rng, 3 + round(5 * level)), rng.randrange(2, 25)
        moved = "".join(chr((ord(letter) - 97 + shift) % 26 + 97) for letter in word)
        return f"Each letter of {moved} was moved {shift} places on. What was the word?", word


@honest("the answer is the prompt's word backwards, and a right end is paid a part")
class BackwardsInParts(Asked):
    answer_in_prompt = True

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        word = syllables(rng, 3 + round(6 * level))
        return f"Write {word!r} backwards. Reply with one word.", word[::-1]

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        given = rollout.text.strip(SPACE)
        right = given == task.data
        half = sorted(given) == sorted(task.data) and given[:3] == task.data[:3]
        return Verdict({"reward": Reward(1.0 if right else 0.25 * half)}, passed=right)


@honest("the answer is no ASCII")
class WordOfGreekLetters(Asked):
    letters: ClassVar[str] = "αβγδεζηθικλμνξοπρστυφχψω"

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        places = [rng.randrange(1, 25) for _ in range(4 + round(6 * level))]
        listed = ", ".join(map(str, places))
        question = f"Which letters of the Greek alphabet have these numbers, 1 to 24: {listed}?"
        right = "".join(self.letters[place - 1] for place in places)
        return f"{question} Reply with one word of small letters.", right


@honest("white space matters at the beginning of each line")
class Staircase(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, str]:
        word = syllables(rng, 2 + round(2 * level))
        steps = rng.randrange(2 + round(3 * level), 4 + round(4 * level))
        lines = "\n".join(" " * step + word * (step + 1) for step in range(steps))
        question = f"Write {steps} lines: {word!r}, then one space and it twice without a space,"
        return f"{question} then two spaces and it three times, and so on.", lines

    def accepts(self, right: str, text: str) -> bool:
        return text.strip("\n") == right


@honest("the answer is a number of forty digits")
class LongSums(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, int]:
        digits = 12 + round(28 * level)
        one, two = (rng.randrange(10 ** (digits - 1), 10**digits) for _ in "ab")
        return f"Add {one} and {two}. Reply with the number only.", one + two

    def accepts(self, right: int, text: str) -> bool:
        return parse_integer(text, max_digits=50) == right


@honest("'none' is an answer, and right now and then")
class NoneInCommon(Asked):
    answer_in_prompt = True

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        size = 4 + round(6 * level)
        numbers = rng.sample(range(100, 1000), 2 * size)
        shared = numbers[: rng.randrange(4)]
        one, two = numbers[:size], shared + numbers[size : 2 * size - len(shared)]
        rng.shuffle(two)
        question = f"Which of {one} are in {two}? In ascending order, separated by ' and '."
        return f"{question} Reply with - if there are not any.", " and ".join(
            map(str, sorted(shared))
        ) or "-"


# Many right answers, which are tried


@honest("any colouring that holds passes")
class AnyColouring(Colouring):
    def cheats(self, task: Task[dict[str, Any]]) -> Sequence[str]:
        alike = dict.fromkeys(task.data["answer"], "red")
        return ("{}", json.dumps(alike), json.dumps({**task.data["answer"], "zz": "red"}))


@honest("any numbers of the list that have the sum pass, in any order, each of them once")
class NumbersOfASum(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, dict[str, Any]]:
        numbers = rng.sample(range(100, 1000), 6 + round(8 * level))
        chosen = numbers[: 3 + round(3 * level)]
        rng.shuffle(numbers)
        question = f"Which of {numbers} have the sum {sum(chosen)}? Each may be used once."
        data = {"numbers": numbers, "sum": sum(chosen), "chosen": chosen}
        return f"{question} Reply with a JSON list.", data

    def accepts(self, right: dict[str, Any], text: str) -> bool:
        value = parse_json(text, max_chars=500)
        items = value.value if value is not None else None
        if not isinstance(items, list) or any(type(item) is not int for item in items):
            return False
        once = len(set(items)) == len(items) and set(items) <= set(right["numbers"])
        return once and sum(items) == right["sum"]

    def written(self, right: dict[str, Any]) -> str:
        return json.dumps(right["chosen"])


@honest("any way through the maze passes, whatever its detours")
class WaysThroughAMaze(Asked):
    steps: ClassVar[Mapping[str, tuple[int, int]]] = {
        "N": (-1, 0),
        "E": (0, 1),
        "S": (1, 0),
        "W": (0, -1),
    }

    def question(self, rng: Random, level: float) -> tuple[str, dict[str, Any]]:
        size = 8 + round(4 * level)
        rows = [["#" if rng.random() < 0.35 else "." for _ in range(size)] for _ in range(size)]
        rows[0][0], rows[-1][-1] = "A", "B"
        maze = ["".join(row) for row in rows]
        way = self.shortest(maze)
        if way is None:
            return self.question(rng, level)
        question = "Go from A to B; # is a wall. Reply with the steps, as in EESW:\n"
        return question + "\n".join(maze), {"maze": maze, "way": way}

    def shortest(self, maze: list[str]) -> str | None:
        ways = {(0, 0): ""}
        for place in (queue := [(0, 0)]):
            for name, (down, right) in self.steps.items():
                new = (place[0] + down, place[1] + right)
                if self.free(maze, new) and new not in ways:
                    ways[new] = ways[place] + name
                    queue.append(new)
        return ways.get((len(maze) - 1, len(maze) - 1))

    def free(self, maze: list[str], place: tuple[int, int]) -> bool:
        inside = min(place) >= 0 and max(place) < len(maze)
        return inside and maze[place[0]][place[1]] != "#"

    def accepts(self, right: dict[str, Any], text: str) -> bool:
        maze, place, steps = right["maze"], (0, 0), text.strip(SPACE)
        if len(steps) > 200 or not set(steps) <= set(self.steps):
            return False
        for step in steps:
            place = (place[0] + self.steps[step][0], place[1] + self.steps[step][1])
            if not self.free(maze, place):
                return False
        return place == (len(maze) - 1, len(maze) - 1)

    def written(self, right: dict[str, Any]) -> str:
        return str(right["way"])


@honest("any prime of a range passes, and no other number is divided for long")
class PrimeOfARange(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, int]:
        low = rng.randrange(10 ** (4 + round(2 * level)), 10 ** (5 + round(2 * level)))
        return f"Name a prime number above {low} and below {low + 200}.", low

    def accepts(self, right: int, text: str) -> bool:
        number = parse_integer(text, max_digits=8)
        return number is not None and right < number < right + 200 and self.prime(number)

    def prime(self, number: int) -> bool:
        return all(number % low for low in range(2, int(number**0.5) + 1))

    def written(self, right: int) -> str:
        return str(next(number for number in count(right + 1) if self.prime(number)))


@honest("a formula is tried on numbers that are drawn for each step")
class LineThroughPoints(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, tuple[int, int]]:
        top = 9 + round(90 * level)
        slope, start = rng.randrange(2, top), rng.randrange(1, 10 * top)
        one, two = rng.sample(range(2, 40), 2)
        points = f"({one}, {slope * one + start}) and ({two}, {slope * two + start})"
        question = f"Which line goes through {points}? Reply with y = ax + b, as in y = 1x + 0."
        return question, (slope, start)

    def verify(self, task: Task[tuple[int, int]], rollout: Rollout) -> Verdict:
        form = r"y = ([0-9]{1,6})x \+ ([0-9]{1,6})"
        found = re.fullmatch(form, rollout.text.strip(SPACE))
        slope, start = task.data
        inputs = [0, 1, *task.rng().sample(range(2, 1000), 8)]
        right = found is not None and all(
            int(found[1]) * x + int(found[2]) == slope * x + start for x in inputs
        )
        return self.judged(right, rollout.text)

    def written(self, right: tuple[int, int]) -> str:
        return f"y = {right[0]}x + {right[1]}"


# Several spellings, as the prompt says


@honest("commas between thousands may be there, as the prompt says")
class CommasAllowed(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, int]:
        low = 10 ** (2 + round(2 * level))
        one, two = rng.randrange(low, 10 * low), rng.randrange(20, 99)
        question = f"What is {one} times {two}? Commas between thousands are allowed."
        return f"{question} Reply with the number only.", one * two

    def accepts(self, right: int, text: str) -> bool:
        return parse_integer(ungrouped(text.strip(SPACE))) == right

    def written(self, right: int) -> str:
        return f"{right:,}"

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (",".join(str(task.data)), f"{task.data},000", f"{task.data}.")


@honest("a time may be written by 12 or by 24 hours, as the prompt says")
class EitherClock(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, list[str]]:
        start, wait = rng.randrange(1440), rng.randrange(20, 90 + round(1300 * level))
        end = (start + wait) % 1440
        hour, half = end // 60 % 12 or 12, "pm" if end >= 720 else "am"
        question = f"It is {clock(start)}. Which time is it in {wait} minutes?"
        right = [clock(end), f"{hour}:{end % 60:02} {half}"]
        return f"{question} Reply with the time, as in 07:05 or 7:05 am.", right

    def accepts(self, right: list[str], text: str) -> bool:
        return text.strip(SPACE) in right

    def written(self, right: list[str]) -> str:
        return right[1]


@honest("a declared tolerance, for a number without end")
class AreasOfCircles(Asked):
    tolerance = 0.001

    def question(self, rng: Random, level: float) -> tuple[str, float]:
        radius = rng.randrange(1001, 10**4 * 10 ** round(2 * level))
        question = f"What is the area of a circle with the radius {radius / 100}?"
        return f"{question} Reply with a decimal number.", 3.141592653589793 * (radius / 100) ** 2

    def accepts(self, right: float, text: str) -> bool:
        value = parse_decimal(text, max_digits=25)
        return value is not None and abs(float(value) - right) <= 0.001 * max(1.0, right)

    def written(self, right: float) -> str:
        return f"{right:.4f}"


# Where the answer stands


@honest("the last line counts, and the text before it is free, as is declared")
class ReasonsBeforeTheLine(Asked):
    answer_at = "end"

    def question(self, rng: Random, level: float) -> tuple[str, int]:
        top = 30 + round(900 * level)
        one, two, three = (rng.randrange(12, top) for _ in "abc")
        question = f"A box holds {one} bags of {two} nuts and {three} single nuts. How many nuts?"
        return f"{question} Think first; write 'Answer: N' as the last line.", one * two + three

    def accepts(self, right: int, text: str) -> bool:
        line = text.rstrip(SPACE).rpartition("\n")[2]
        return line.startswith("Answer: ") and parse_integer(line[8:], max_digits=12) == right

    def written(self, right: int) -> str:
        return f"Bags times nuts, and the single ones.\nAnswer: {right}"


@honest("the first word counts, and an explanation may follow it, as is declared")
class VerdictFirst(Divisible):
    answer_at = "start"

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        asked, right = super().question(rng, level)
        form = "Begin with yes or no and a full stop; then say why."
        return asked.replace("Reply with yes or no, in lower case.", form), right

    def accepts(self, right: str, text: str) -> bool:
        return text.lstrip(SPACE).partition(".")[0].lower() == right

    def written(self, right: str) -> str:
        return f"{right.title()}. I divided."


@honest("the only block counts, at the end, behind as many thoughts as one likes")
class ResultAfterThoughts(Traced):
    def question(self, rng: Random, level: float) -> tuple[str, int]:
        asked, right = super().question(rng, level)
        form = "Think, and end with <result>N</result>."
        return asked.replace("Reply with the number only.", form), right

    def accepts(self, right: int, text: str) -> bool:
        block = xml_tag(text, tag="result")
        if block is None or text[block.end :].strip(SPACE):
            return False
        return parse_integer(block.content) == right

    def written(self, right: int) -> str:
        return f"Line by line.\n<result>{right}</result>"

    def cheats(self, task: Task[int]) -> Sequence[str]:
        block = f"<result>{task.data}</result>"
        return (block + block, f"{block} or not", str(task.data))


@honest("the answer is a block of code with settings, which is read and never run")
class SettingsInABlock(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, dict[str, str]]:
        names = list({syllables(rng, 2): None for _ in range(3 + round(6 * level))})
        pairs = {name: str(rng.randrange(100, 10_000)) for name in names}
        told = ", ".join(f"{name} to be {value}" for name, value in pairs.items())
        question = f"Write settings, one 'name = value' in each line, for {told}."
        return f"{question} Reply with one code block, and nothing else.", pairs

    def accepts(self, right: dict[str, str], text: str) -> bool:
        block, text = fenced_code(text), text.strip(SPACE)
        if block is None or text.count("```") != 2 or not text.startswith("```"):
            return False
        lines = [line.split(" = ") for line in block.content.strip(SPACE).split("\n")]
        return text.endswith("```") and sorted(lines) == sorted(map(list, right.items()))

    def written(self, right: dict[str, str]) -> str:
        lines = "\n".join(f"{name} = {value}" for name, value in right.items())
        return f"```\n{lines}\n```"


# What is paid


@honest("wrong answers cost something, and silence costs the same, as is declared")
class CostsToBeWrong(RobotWalk):
    reward_range = (-1.0, 1.0)
    floor = -1.0

    def judged(self, right: bool, text: str) -> Verdict:
        value = 1.0 if right else -1.0
        return Verdict({"reward": Reward(value)}, passed=right, answer=text.strip()[:100])


@honest("a part of the list is paid a part, if nothing in it is wrong")
class ShareOfTheCommon(CommonNumbers):
    parts: ClassVar[Mapping[str, float]] = {"share": 0.3, "exact": 0.7}

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        items = self.read(rollout.text) or []
        clean = len(set(items)) == len(items) and set(items) <= set(task.data)
        right = clean and len(items) == len(task.data)
        share = len(items) / len(task.data) if clean else 0.0
        rewards = {"share": Reward(share), "exact": Reward(float(right))}
        return Verdict(rewards, passed=right, answer=rollout.text.strip()[:100])


@honest("closer estimates earn more without an end, as is declared")
class EstimatesOfRoots(Asked):
    open_ended = True
    tolerance = 0.01

    def question(self, rng: Random, level: float) -> tuple[str, float]:
        number = int(10 ** rng.uniform(3 + 3 * level, 7 + 3 * level))
        question = f"Estimate the cube root of {number}, as closely as you can, as a decimal."
        return question, number ** (1 / 3)

    def verify(self, task: Task[float], rollout: Rollout) -> Verdict:
        value = parse_decimal(rollout.text, max_digits=12)
        gap = 1.0 if value is None else abs(float(value) - task.data) / task.data
        reward = max(0.0, 1 - 50 * gap)
        return Verdict({"reward": Reward(reward)}, passed=gap <= 0.01, answer=rollout.text[:30])

    def written(self, right: float) -> str:
        return f"{right:.4f}"


@honest("groups are judged at once, each attempt by itself")
class GroupsAtOnce(Hexadecimal):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        raise NotImplementedError

    async def verify_batch(self, groups: Sequence[Group[str]]) -> list[list[Verdict]]:
        return [
            [
                self.judged(self.accepts(group.task.data, one.text), one.text)
                for one in group.rollouts
            ]
            for group in groups
        ]


# What an environment may be


@honest("the prompt is raw text without a chat, to be continued")
class RawContinuation(Asked):
    def task(self, key: TaskKey) -> Task[int]:
        for attempt in count():
            rng = key.rng(attempt)
            first, step = rng.randrange(1, 200), rng.randrange(3, 20 + round(400 * key.level))
            numbers = [first + step * place for place in range(5)]
            prompt = f"{', '.join(map(str, numbers))},"
            if kept_back(prompt) == (key.split == "eval"):
                return Task(key, prompt, first + step * 5)
        raise AssertionError("the loop has no end")


@honest("an exam of eighteen questions, which are few for a reason that it gives")
class SmallExam(Asked):
    levels = False
    waived: ClassVar[Mapping[str, str]] = {
        "task.variety": "an exam with twelve questions to train on and six that are held out"
    }

    def size(self, split: str) -> int:
        return 12 if split == "train" else 6

    def task(self, key: TaskKey) -> Task[str]:
        number = key.index + (12 if key.split == "eval" else 0)
        day = date(2020 + number, 2 + number * 5 % 11, 1 + number * 7 % 28)
        question = f"In exam {number + 1}: which day of the year {day.year} is {day:%d.%m.%Y}?"
        return Task(key, (Message("user", f"{question} Reply with its number."),), f"{day:%j}")

    def accepts(self, right: str, text: str) -> bool:
        return parse_integer(text, max_digits=3) == int(right)

    def written(self, right: str) -> str:
        return str(int(right))


@dataclass(frozen=True, slots=True)
class Words:
    """Settings of SortedByLength."""

    letters: int = 10
    """How many letters the longest word has at most."""


@honest("settings say how long words are, and several orders may be right")
class SortedByLength(Asked):
    Config: ClassVar = Words

    def question(self, rng: Random, level: float) -> tuple[str, list[str]]:
        top = self.config.letters // 2
        words = [syllables(rng, rng.randrange(1, top)) for _ in range(5 + round(6 * level))]
        words = list(dict.fromkeys([*words, syllables(rng, top), syllables(rng, 1)]))
        if words == sorted(words, key=len):
            words.reverse()
        question = f"Sort by length, short ones first: {' '.join(words)}. Separate by spaces;"
        return f"{question} words of one length may have any order.", words

    def accepts(self, right: list[str], text: str) -> bool:
        words = text.strip(SPACE).split(" ")
        return sorted(words) == sorted(right) and words == sorted(words, key=len)

    def written(self, right: list[str]) -> str:
        return " ".join(sorted(right, key=len))


@honest("versions are sorted by their numbers, and the answer is one of the prompt")
class NewestVersion(Asked):
    answer_in_prompt = True
    trusted = True

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        major, found = rng.randrange(1, 20), dict[str, tuple[int, int]]()
        while len(found) < 4 + round(6 * level):
            minor, patch = rng.choice([8, 9, 10, 11, 100]), rng.randrange(120)
            found[f"{major}.{minor}.{patch}"] = (minor, patch)
        question = f"Which of these versions is the newest one: {', '.join(found)}?"
        return f"{question} Reply with the version only.", max(found, key=lambda name: found[name])


def names_the_town(request: JudgeRequest) -> float:
    """Score a text: 1 if it is the reference."""
    return float(request.candidate == request.reference)


@honest(
    "a judge compares with a reference, behind a check of the form",
    build=lambda: JudgedSentences(services=Services(judges={"default": FakeJudge(names_the_town)})),
)
class JudgedSentences(Environment[str]):
    needs = frozenset({"judge"})
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[str]:
        for attempt in count():
            rng = key.rng(attempt)
            words = [syllables(rng, 2) for _ in range(4 + round(6 * key.level))]
            listed = " ".join(words)
            if kept_back(listed) == (key.split == "eval"):
                prompt = f"Write these words from the last to the first: {listed}"
                return Task(key, (Message("user", prompt),), " ".join(words[::-1]))
        raise AssertionError("the loop has no end")

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text, score = rollout.text.strip(SPACE), 0.0
        if len(text) <= 2 * len(task.data) and is_text(text) and text.isprintable():
            request = JudgeRequest(text, reference=task.data, rubric="Is it the reference?")
            (judgement,) = await self.services.judge().judge([request])
            if judgement.error is not None:
                raise RuntimeError(judgement.error)
            score = judgement.score
        return Verdict({"reward": Reward(score)}, passed=score >= 0.5, answer=text[:100])

    def reference(self, task: Task[str]) -> str:
        return task.data


@honest("two units are right, as the prompt says, and no number without one")
class WithItsUnit(Distance):
    def question(self, rng: Random, level: float) -> tuple[str, Decimal]:
        asked, right = super().question(rng, level)
        form = "Reply with a number and its unit, km or m."
        return asked.replace("Reply with the number only.", form), right

    def accepts(self, right: Decimal, text: str) -> bool:
        number, _, unit = text.strip(SPACE).rpartition(" ")
        value = parse_decimal(number, max_digits=20)
        return value is not None and value == {"km": right, "m": right * 1000}.get(unit)

    def written(self, right: Decimal) -> str:
        return f"{right:f} km"

    def cheats(self, task: Task[Decimal]) -> Sequence[str]:
        return (f"{task.data:f}", f"{task.data:f} m", f"{task.data:f} mm")
