"""Sound environments: divisions, strands, masses, knitting, trams, a herbarium, a lock."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from bases_c_fresh8 import WHITE, chat, chosen, marked

from grpo_core import Environment, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer, xml_tag


class WrittenDivision(Environment[list[str]]):
    """Asks for a division on paper: one line for each digit, with what remains."""

    max_new_tokens = 600

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[str]]:
        """Return the question, and the lines."""
        below, lines = rng.randint(11, 97), []
        above = remainder = rng.randint(1, below - 1)
        count = 20 + round(20 * level)
        for _ in range(count):
            digit, remainder = divmod(10 * remainder, below)
            lines.append(f"{digit} r {remainder}")
        return f"Divide {above} by {below} to {count} decimals.", lines

    def task(self, key: TaskKey) -> Task[list[str]]:
        text, lines = chosen(key, self.draw)
        rules = 'Write a line for each decimal: the digit, " r " and the remainder.'
        return chat(key, rules, text, lines)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        given = rollout.text[:4000].strip(WHITE).split("\n")
        right = [line.strip(WHITE) for line in given] == task.data and len(rollout.text) < 4000
        return marked(right, rollout.text)

    def reference(self, task: Task[list[str]]) -> str:
        return "\n".join(task.data)


PAIRS = str.maketrans("ACGT", "TGCA")


class OtherStrand(Environment[str]):
    """Asks for the other strand of a piece of DNA, read from its own start."""

    max_new_tokens = 64

    def strand(self, rng: random.Random, level: float) -> str:
        """Return a piece of DNA."""
        return "".join(rng.choices("ACGT", k=8 + round(20 * level)))

    def draw(self, rng: random.Random, level: float) -> tuple[str, str]:
        """Return the question, and the other strand."""
        strand = self.strand(rng, level)
        other = strand.translate(PAIRS)[::-1]
        return f"5'-{strand}-3': what is the reverse complement?", other

    def task(self, key: TaskKey) -> Task[str]:
        text, other = chosen(key, self.draw)
        return chat(key, "Reply with the bases alone, from 5' to 3'.", text, other)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return marked(rollout.text.strip(WHITE) == task.data, rollout.text)

    def reference(self, task: Task[str]) -> str:
        return task.data


WEIGHTS = {"C": 12, "H": 1, "N": 14, "O": 16, "S": 32}


def formula(counts: dict[str, int]) -> str:
    """Return a formula such as C2H6O."""
    return "".join(f"{e}{n if n > 1 else ''}" for e, n in counts.items() if n)


class WholeMasses(Environment[int]):
    """Asks for the mass of a molecule with whole atomic masses; the reply has it in <mass>."""

    max_new_tokens = 200
    RULES: ClassVar[str] = (
        "C is 12, H 1, N 14, O 16, S 32. Work it out and give <mass>NUMBER</mass>."
    )

    def counts(self, rng: random.Random, level: float) -> dict[str, int]:
        """Return how many atoms of each element a molecule has."""
        most = 9 + round(30 * level)
        counts = {"C": rng.randint(1, most), "H": rng.randint(2, 2 * most)}
        return counts | {element: rng.randint(0, most // 3) for element in "NOS"}

    def draw(self, rng: random.Random, level: float) -> tuple[str, int]:
        """Return the question, and the mass."""
        counts = self.counts(rng, level)
        mass = sum(WEIGHTS[element] * number for element, number in counts.items())
        return f"What is the mass of {formula(counts)} in u?", mass

    def task(self, key: TaskKey) -> Task[int]:
        text, mass = chosen(key, self.draw)
        return chat(key, self.RULES, text, mass)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="mass")
        inner = block.content.strip(WHITE) if block else ""
        right = bool(re.fullmatch("[1-9][0-9]{0,5}", inner, re.ASCII)) and int(inner) == task.data
        return marked(right, inner)

    def reference(self, task: Task[int]) -> str:
        return f"<mass>{task.data}</mass>"


class SleeveStitches(Environment[int]):
    """Asks how many stitches a sleeve has in the end; the reply is the number."""

    max_new_tokens = 12

    def draw(self, rng: random.Random, level: float) -> tuple[str, int]:
        """Return a pattern, and its last number of stitches."""
        stitches = cast_on = rng.randint(40, 140)
        told = []
        for _ in range(1 + round(3 * level)):
            often, each = rng.randint(3, 15), rng.choice((2, 4))
            every, word = rng.randint(2, 9), rng.choice(("Increase", "Decrease"))
            word = "Increase" if often * each >= stitches else word
            stitches += often * each * (1 if word == "Increase" else -1)
            told.append(f"{word} {each} stitches in every {every}th row, for {often * every} rows.")
        return f"Cast on {cast_on}. {' '.join(told)} How many stitches are there?", stitches

    def task(self, key: TaskKey) -> Task[int]:
        text, stitches = chosen(key, self.draw)
        return chat(key, "Reply with the number alone.", text, stitches)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return marked(parse_integer(rollout.text, max_digits=5) == task.data, rollout.text)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


def _tram_rows() -> list[tuple[str, str]]:
    """Return questions of a time-table with their answers."""
    rng, rows = random.Random("trams"), {}
    while len(rows) < 420:
        line, start, stops = rng.randint(1, 28), rng.randint(300, 1200), rng.randint(3, 19)
        each, wait = rng.randint(2, 5), rng.randint(1, 9)
        text = (
            f"Tram {line} leaves at {start // 60:02}:{start % 60:02}. It needs {each} minutes from "
            f"stop to stop and once waits {wait} minutes more. When is it at the {stops}th stop "
            "after the first?"
        )
        end = start + each * stops + wait
        rows[text] = f"{end // 60:02}:{end % 60:02}"
    return list(rows.items())


TRAM_ROWS = _tram_rows()


class TramTimes(Environment[str]):
    """Asks the rows of a list of trams, the first 320 in training; the reply is like 14:05."""

    max_new_tokens = 12
    levels = False

    def rows(self, split: str) -> Sequence[tuple[str, str]]:
        """Return the rows of a split."""
        return TRAM_ROWS[:320] if split == "train" else TRAM_ROWS[320:]

    def size(self, split: str) -> int:
        return len(self.rows(split))

    def task(self, key: TaskKey) -> Task[str]:
        text, arrival = self.rows(key.split)[key.index]
        return chat(key, "Reply with the time alone, as HH:MM.", text, arrival)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return marked(rollout.text.strip(WHITE) == task.data, rollout.text)

    def reference(self, task: Task[str]) -> str:
        return task.data


def call(name: str, **arguments: Any) -> str:
    """Return a call of a tool as the policy writes it."""
    made = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{made}</tool_call>"


def drawer(task: Task[dict[str, int]]) -> list[int]:
    """List the numbers of the sheets in the drawer."""
    return [int(number) for number in task.data]


def seeds_on(task: Task[dict[str, int]], number: int) -> str:
    """Say how many seeds are on one sheet.

    Args:
        task: filled in.
        number: the number of the sheet.
    """
    count = task.data.get(str(number))
    return "there is no such sheet" if count is None else f"{count} seeds"


class HerbariumDrawer(Environment[dict[str, int]]):
    """Asks how many seeds a drawer of a herbarium holds, which only its tools know."""

    max_turns = 5
    max_new_tokens = 600

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, dict[str, int]]:
        """Return the question, and the seeds of each sheet."""
        name, count = f"{rng.choice('ABCDEFGH')}{rng.randint(1000, 9999)}", 4 + round(4 * level)
        content = random.Random(f"{name} {count}")  # a drawer holds the same whoever asks
        numbers = content.sample(range(100, 1000), count)
        sheets = {str(number): content.randint(3, 90) for number in numbers}
        return f"How many seeds are in drawer {name}, on its {count} sheets together?", sheets

    def task(self, key: TaskKey) -> Task[dict[str, int]]:
        text, sheets = chosen(key, self.draw)
        rules = "Ask the tools first. Then reply with the number of seeds and nothing else."
        return chat(key, rules, text, sheets)

    def tools(self) -> Sequence[Callable[..., object]]:
        return (drawer, seeds_on)

    def verify(self, task: Task[dict[str, int]], rollout: Rollout) -> Verdict:
        total = sum(task.data.values())
        return marked(parse_integer(rollout.text, max_digits=5) == total, rollout.text)

    def reference(self, task: Task[dict[str, int]]) -> tuple[str, ...]:
        sheets = "\n".join(call("seeds_on", number=int(number)) for number in task.data)
        return call("drawer"), sheets, str(sum(task.data.values()))


class BicycleLock(Environment[str]):
    """Has the policy open a lock by guesses; each answer says how many digits are in place."""

    max_turns = 6
    max_new_tokens = 48

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, str]:
        """Return what a lock is like, and its code."""
        length, label = 3 + round(2 * level), rng.randint(1000, 9999)
        code = "".join(random.Random(f"{label} {length}").choices("0123456789", k=length))
        total = sum(map(int, code))
        return f"Lock {label} has {length} digits, which add up to {total}. Open it.", code

    def task(self, key: TaskKey) -> Task[str]:
        text, code = chosen(key, self.draw)
        return chat(key, "Reply with a code and nothing else; you are told what fits.", text, code)

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> list[Message] | None:
        guess, length = messages[-1].content.strip(WHITE), len(task.data)
        if guess == task.data:
            return None
        if not re.fullmatch(f"[0-9]{{{length}}}", guess, re.ASCII):
            return [Message("user", f"Give {length} digits.")]
        hits = sum(a == b for a, b in zip(guess, task.data, strict=True))
        return [Message("user", f"{hits} of {length} are right and in place.")]

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return marked(rollout.text.strip(WHITE) == task.data, rollout.text)

    def reference(self, task: Task[str]) -> str:
        return task.data
