"""More sound environments, of five subject matters, in which faults are planted elsewhere."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bases_a_fresh7 import LONGEST, WHITE, verdict, wanted

from grpo_core import Environment, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import xml_tag

# A melody in another key -------------------------------------------------------------------------

NOTES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
INTERVALS: Mapping[str, int] = {
    "minor second": 1,
    "major second": 2,
    "minor third": 3,
    "major third": 4,
    "minor sixth": 8,
    "major sixth": 9,
    "minor seventh": 10,
    "major seventh": 11,
}


class TransposedMelody(Environment[str]):
    """Asks for a melody that is moved up by an interval, in <notes>...</notes>."""

    max_new_tokens = 120
    example: ClassVar[str] = "<notes>A B C#</notes>"

    def task(self, key: TaskKey) -> Task[str]:
        rng, length = key.rng(), 3 + round(5 * key.level)
        while True:
            melody, interval = rng.choices(NOTES, k=length), rng.choice(list(INTERVALS))
            if wanted(" ".join((*(self.spoken(n) for n in melody), interval)), key):
                break
        text = (
            f"Transpose this melody up by {self.named(interval)}: {' '.join(melody)}. Use sharps "
            "and no flats, and leave out the octaves. Write the notes with spaces between them in "
            f"one pair of tags, in the form {self.example}; you may think before it."
        )
        moved = [NOTES[(NOTES.index(note) + INTERVALS[interval]) % 12] for note in melody]
        return Task(key, (Message("user", text),), " ".join(moved))

    def spoken(self, note: str) -> str:
        """Return a note as a word, since `held_out` does not see the sign."""
        return note.replace("#", "sharp")

    def named(self, interval: str) -> str:
        """Return an interval as the prompt names it."""
        return f"a {interval}"

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="notes") if len(rollout.text) <= LONGEST else None
        answer = None if block is None else " ".join(self.words(block.content))
        return verdict(answer == task.data, answer)

    def words(self, text: str) -> Sequence[str]:
        """Return the words of a text, at the white space of ASCII."""
        return [word for word in re.split(r"[ \t\r\n]+", text) if word]

    def reference(self, task: Task[str]) -> str:
        return f"<notes>{task.data}</notes>"


# A formula of a spreadsheet ----------------------------------------------------------------------

OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


@dataclass(frozen=True, slots=True)
class Sheet:
    """Holds the cells by name, the value that is wanted, and a formula that has it."""

    cells: tuple[tuple[str, int], ...]
    target: int
    formula: str


class SheetFormula(Environment[Sheet]):
    """Asks for a formula that uses each of four cells once and has a certain value."""

    levels = False
    max_new_tokens = 32

    def task(self, key: TaskKey) -> Task[Sheet]:
        rng = key.rng()
        while True:
            names = rng.sample([f"{column}{row}" for column in "ABCDEF" for row in "1234"], 4)
            cells = dict(zip(names, rng.sample(range(2, 30), 4), strict=True))
            operations = rng.choices("+-*", k=3)
            a, b, c, d = names
            x, y, z = operations
            formula = rng.choice((f"({a}{x}{b}){y}{c}{z}{d}", f"{a}{x}({b}{y}{c}){z}{d}"))
            target = self.value(formula, cells)
            asked = " ".join(map(str, (*sorted(cells.items()), target)))
            if len(set(operations)) > 1 and target is not None and wanted(asked, key):
                break
        listed = ", ".join(f"{name} = {value}" for name, value in sorted(cells.items()))
        text = (
            f"The cells of a spreadsheet: {listed}. Write a formula whose value is {target}. It "
            "begins with =, uses each of the four cells exactly once, and besides them only +, -, "
            "* and brackets; no numbers. Reply with the formula alone, in one line."
        )
        data = Sheet(tuple(sorted(cells.items())), target, f"={formula}")
        return Task(key, (Message("user", text),), data)

    def value(self, formula: str, cells: Mapping[str, int]) -> int | None:
        """Return the value of a formula without its =, or None if it is none."""
        if len(formula) > 60 or not re.fullmatch(r"(?:[A-F][1-4]|[-+*() ])+", formula, re.ASCII):
            return None
        try:
            return self.walk(ast.parse(formula.strip(" "), mode="eval").body, cells)
        except (SyntaxError, ValueError, KeyError):
            return None

    def walk(self, node: ast.expr, cells: Mapping[str, int]) -> int:
        """Return the value of a tree of sums, differences, products and cells."""
        if isinstance(node, ast.Name):
            return cells[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            left, right = self.walk(node.left, cells), self.walk(node.right, cells)
            return OPERATIONS[type(node.op)](left, right)
        raise ValueError(type(node).__name__)

    def verify(self, task: Task[Sheet], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        cells = dict(task.data.cells)
        used = Counter(re.findall(r"[A-F][1-4]", answer))
        right = (
            answer.startswith("=")
            and used == Counter(list(cells))
            and self.value(answer[1:], cells) == task.data.target
        )
        return verdict(right, answer)

    def reference(self, task: Task[Sheet]) -> str:
        return task.data.formula


# The people below somebody -----------------------------------------------------------------------

STAFF: Sequence[str] = re.findall(
    r"\w+",
    "Abe Bea Cal Dot Eli Fay Gus Hal Ida Jay Kit Lea Max Nan Oli Pam Quin Ray Sue Tom Una Val Wes "
    "Xia Yan Zoe Ari Bo Cleo Dan Eve Flo Gil Hugo Ines Jo Kai Liv Moe Nell",
)


class PeopleBelow(Environment[int]):
    """Asks how many people stand below somebody; the last line of the reply says it."""

    max_new_tokens = 200
    thinking: ClassVar[str] = "Think first if you like"

    def task(self, key: TaskKey) -> Task[int]:
        rng, size = key.rng(), 14 + round(8 * key.level)
        while True:
            names = rng.sample(STAFF, size)
            boss = {
                name: names[rng.randrange(max(0, i - 4), i)] for i, name in enumerate(names) if i
            }
            below = {name: self.count_below(name, boss) for name in names}
            wish = rng.randint(2, 11)
            asked = [name for name, number in below.items() if number == wish]
            lines = [f"{name} reports to {boss[name]}." for name in boss]
            rng.shuffle(lines)
            if asked and wanted(f"{' '.join(lines)} {asked[0]} {wish}", key):
                break
        shown = {name: self.shown(name) for name in names}
        told = [" ".join(shown.get(w, w) for w in re.findall(r"\w+", line)) + "." for line in lines]
        text = (
            f"{' '.join(told)} How many people stand below {shown[asked[0]]}, those who report "
            f"through others included? {self.thinking}; the last line of your reply must read "
            '"Answer: N", with N in digits.'
        )
        return Task(key, (Message("user", text),), wish)

    def count_below(self, name: str, boss: Mapping[str, str]) -> int:
        """Return how many people report to somebody, directly or not."""
        own = [other for other, over in boss.items() if over == name]
        return len(own) + sum(self.count_below(other, boss) for other in own)

    def shown(self, name: str) -> str:
        """Return how the prompt calls somebody."""
        return name

    def number_of(self, text: str) -> int | None:
        """Return the number that the last line names, or None."""
        if len(text) > LONGEST or text.count("Answer:") != 1:
            return None
        line = text.strip(WHITE).rpartition("\n")[2].strip(WHITE)
        match = re.fullmatch(r"Answer: (0|[1-9][0-9]{0,2})", line, re.ASCII)
        return int(match[1]) if match else None

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        number = self.number_of(rollout.text)
        return verdict(number == task.data, str(number))

    def reference(self, task: Task[int]) -> str:
        return f"Answer: {task.data}"


# An invoice with tax -----------------------------------------------------------------------------

GOODS = ("chairs", "lamps", "desks", "shelves", "rugs", "stools", "mirrors", "clocks")


@dataclass(frozen=True, slots=True)
class Bill:
    """Holds the quantities and the net prices in cents, and the rate of the tax."""

    lines: tuple[tuple[int, int], ...]
    percent: int

    @property
    def gross(self) -> int:
        """Return the total with tax in cents, half a cent rounded up."""
        net = sum(quantity * price for quantity, price in self.lines)
        return (net * (100 + self.percent) + 50) // 100


class GrossTotal(Environment[Bill]):
    """Asks for the total of an invoice with tax, as an amount with two decimals."""

    max_new_tokens = 24

    def task(self, key: TaskKey) -> Task[Bill]:
        rng, size = key.rng(), 2 + round(3 * key.level)
        while True:
            lines = tuple((rng.randint(1, 12), rng.randint(250, 9999)) for _ in range(size))
            bill = Bill(lines, rng.choice((5, 7, 10, 19, 21)))
            if wanted(str(bill), key):
                break
        listed = "; ".join(
            f"{quantity} {good} at {price // 100}.{price % 100:02} EUR"
            for (quantity, price), good in zip(lines, rng.sample(GOODS, size), strict=True)
        )
        text = (
            f"An invoice without tax: {listed}. The tax on the sum is {bill.percent} %. What is "
            "the total with tax, rounded to whole cents, half a cent upwards? Reply with the "
            "amount alone, with two decimals and without a currency, as in 12.30."
        )
        return Task(key, (Message("user", text),), bill)

    def cents_of(self, text: str) -> int | None:
        """Return the amount that is the whole reply, in cents, or None."""
        match = re.fullmatch(
            r"(0|[1-9][0-9]{0,6})\.([0-9]{2})", text[:LONGEST].strip(WHITE), re.ASCII
        )
        return int(match[1] + match[2]) if match else None

    def verify(self, task: Task[Bill], rollout: Rollout) -> Verdict:
        cents = self.cents_of(rollout.text)
        return verdict(cents == self.total(task.data), rollout.text)

    def total(self, bill: Bill) -> int:
        """Return what the bill comes to, in cents."""
        return bill.gross

    def reference(self, task: Task[Bill]) -> str:
        return f"{task.data.gross // 100}.{task.data.gross % 100:02}"


# A way over a terrain ----------------------------------------------------------------------------

STEPS: Mapping[str, tuple[int, int]] = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Terrain:
    """Holds the heights row by row, and where a way begins and ends."""

    rows: tuple[str, ...]
    start: Place
    goal: Place

    def around(self, place: Place) -> dict[str, Place]:
        """Return the places that one step leads to, by direction."""
        height, places = int(self.rows[place[0]][place[1]]), {}
        for letter, (down, right) in STEPS.items():
            row, column = place[0] + down, place[1] + right
            inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0])
            if inside and abs(int(self.rows[row][column]) - height) <= 1:
                places[letter] = (row, column)
        return places

    def ways_from(self, start: Place) -> dict[Place, str]:
        """Return a shortest way to each place that can be reached."""
        ways, ahead = {start: ""}, deque([start])
        while ahead:
            place = ahead.popleft()
            for letter, other in self.around(place).items():
                if other not in ways:
                    ways[other] = ways[place] + letter
                    ahead.append(other)
        return ways


class ShortestHike(Environment[Terrain]):
    """Asks for a shortest way over a terrain; every shortest one is right."""

    max_new_tokens = 40

    def task(self, key: TaskKey) -> Task[Terrain]:
        rng, side = key.rng(), 7 + round(3 * key.level)
        while True:
            rows = tuple("".join(rng.choices("1223", k=side)) for _ in range(side))
            start, goal = self.corner(rng, side), self.corner(rng, side)
            terrain = Terrain(rows, start, goal)
            way = terrain.ways_from(start).get(goal, "")
            if 5 <= len(way) <= 12 and wanted(f"{rows} {start} to {goal}", key):
                break
        listed = "\n".join(rows)
        text = (
            f"Heights, north at the top:\n{listed}\nA hiker may step to a neighbour in the north, "
            "east, south or west whose height differs by at most 1. What is a shortest way from "
            f"row {start[0] + 1}, column {start[1] + 1} to row {goal[0] + 1}, column "
            f"{goal[1] + 1}? Reply with its steps as letters N, E, S, W in one word, as in NNEE."
        )
        return Task(key, (Message("user", text),), terrain)

    def corner(self, rng: random.Random, side: int) -> Place:
        """Return a place."""
        return rng.randrange(side), rng.randrange(side)

    def verify(self, task: Task[Terrain], rollout: Rollout) -> Verdict:
        answer, terrain = rollout.text[:100].strip(WHITE), task.data
        place: Place | None = terrain.start
        for letter in answer:
            place = None if place is None else terrain.around(place).get(letter)
        right = place == terrain.goal and len(answer) == self.length(task)
        return verdict(right, answer)

    def length(self, task: Task[Terrain]) -> int:
        """Return the number of steps of a shortest way."""
        return len(task.data.ways_from(task.data.start)[task.data.goal])

    def reference(self, task: Task[Terrain]) -> str:
        return task.data.ways_from(task.data.start)[task.data.goal]
