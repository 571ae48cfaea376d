"""Sound environments: truth tables, beds, products, triage, grids, knitting, crates, flights."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

from bases_g_fresh10 import WHITE, Asked, Draft, LastLine, Tagged, judged, wanted

from grpo_core import Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_json

INPUTS = tuple(product((0, 1), repeat=3))


def draw_circuit(rng: random.Random, depth: int) -> tuple[str, tuple[int, ...]]:
    """Return an expression of a, b and c, and its outputs for all eight inputs."""
    if depth == 0:
        place = rng.randrange(3)
        return "abc"[place], tuple(bits[place] for bits in INPUTS)
    gate = rng.choice(("AND", "OR", "XOR", "NAND", "NOR"))
    (left, firsts), (right, seconds) = (draw_circuit(rng, depth - 1) for _ in range(2))
    outputs = []
    for one, two in zip(firsts, seconds, strict=True):
        value = {"A": one & two, "O": one | two, "X": one ^ two}
        outputs.append(value.get(gate[0], 1 - (one & two if gate == "NAND" else one | two)))
    return f"{gate}({left}, {right})", tuple(outputs)


class CircuitChoice(LastLine):
    """Asks which of four circuits has the given outputs; the last line names its letter."""

    max_new_tokens = 200
    rules = "Exactly one circuit fits. End with the line 'Choice: X', X being its letter."
    mark = "Choice: "
    form = "[A-D]"

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        options = [draw_circuit(rng, 2 + (level >= 0.5)) for _ in range(4)]
        if len({outputs for _, outputs in options}) < 4:
            return None
        place = rng.randrange(4)
        bits = "".join(map(str, options[place][1]))
        lines = "\n".join(f"{x}) {text}" for x, (text, _) in zip("ABCD", options, strict=True))
        question = f"For abc = 000, 001, ... 111 the outputs are {bits}.\n{lines}"
        return Draft(question, "ABCD"[place])


CROPS = (
    "carrots onions peas beans leeks tomatoes potatoes lettuce radishes spinach beetroot fennel "
    "cabbage celery garlic pumpkins"
)


@dataclass(frozen=True)
class Garden:
    """Holds the crops, and those that must not be neighbours."""

    crops: tuple[str, ...]
    enemies: tuple[tuple[str, str], ...]


def is_peaceful(order: Sequence[str], garden: Garden) -> bool:
    """Return whether no neighbours are enemies."""
    enemies = {frozenset(pair) for pair in garden.enemies}
    return not any(frozenset(pair) in enemies for pair in pairwise(order))


class GardenBeds(Asked):
    """Asks for a plan of beds in which no enemies are neighbours; several plans are right."""

    max_new_tokens = 96
    rules = (
        "The beds lie in a row. Put each crop into one bed so that no enemies are neighbours. "
        "Reply with one line for each bed, in order, such as '1: peas'."
    )

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        crops = tuple(rng.sample(CROPS.split(), 4 + round(2 * level)))
        pairs = [(a, b) for i, a in enumerate(crops) for b in crops[i + 1 :]]
        garden = Garden(crops, tuple(rng.sample(pairs, len(crops) - 1)))
        enemies = "; ".join(f"{a} and {b}" for a, b in garden.enemies)
        solved = any(is_peaceful(order, garden) for order in permutations(crops))
        question = f"Crops: {', '.join(crops)}.\nEnemies: {enemies}."
        return Draft(question, garden) if solved and not is_peaceful(crops, garden) else None

    def verify(self, task: Task[Garden], rollout: Rollout) -> Verdict:
        lines = rollout.text[:2000].strip(WHITE).split("\n")
        plan = []
        for number, line in enumerate(lines, 1):
            match = re.fullmatch(f"{number}: ([a-z]+)", line.strip(WHITE), re.ASCII)
            plan.append(match.group(1) if match else "")
        right = sorted(plan) == sorted(task.data.crops) and is_peaceful(plan, task.data)
        return judged(right, ", ".join(plan)[:200])

    def reference(self, task: Task[Garden]) -> str:
        orders = permutations(task.data.crops)
        plan = next(order for order in orders if is_peaceful(order, task.data))
        return "\n".join(f"{number}: {crop}" for number, crop in enumerate(plan, 1))


def polynomial(coefficients: Sequence[int]) -> str:
    """Return a polynomial as it is written, such as 2x^2 - x + 3."""
    text = ""
    for place, value in enumerate(coefficients):
        power = len(coefficients) - 1 - place
        if not value:
            continue
        size = "" if abs(value) == 1 and power else str(abs(value))
        sign = (" - " if value < 0 else " + ") if text else ("-" if value < 0 else "")
        text += sign + size + ("", "x")[power > 0] + (f"^{power}" if power > 1 else "")
    return text


class ExpandedProduct(Asked):
    """Asks to expand a product of linear factors; the last line is the polynomial."""

    max_new_tokens = 160
    rules = (
        "Expand the product and collect like terms. Your last line is the polynomial, the highest "
        "power first, such as 2x^2 - x + 3."
    )

    def draw(self, rng: random.Random, level: float) -> Draft:
        factors = [
            (rng.randint(1, 9), rng.choice((-1, 1)) * rng.randint(1, 9))
            for _ in range(2 + (level >= 0.5))
        ]
        total = [1]
        for a, b in factors:
            pairs = zip([*total, 0], [0, *total], strict=True)
            total = [a * high + b * low for high, low in pairs]
        text = "".join(f"({polynomial(factor)})" for factor in factors)
        return Draft(text, total, str(sorted(factors)))

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        line = rollout.text.strip(WHITE).rpartition("\n")[2][:200]
        right = polynomial(task.data).replace(" ", "")
        return judged(line.strip(WHITE).replace(" ", "") == right, line)

    def right(self, data: list[int]) -> str:
        return polynomial(data)


COLOURS = ("blue", "green", "yellow", "orange", "red")


class TriageColour(Asked):
    """Asks for the colour of a patient by a table of points; the reply is the colour alone."""

    max_new_tokens = 16
    rules = (
        "Points: pulse above 110: 1, above 130: 2. Breaths above 20: 1, above 28: 2. Temperature "
        "above 38.5: 1, above 39.5: 2. Sum 0: blue; 1: green; 2: yellow; 3 or 4: orange; 5 or "
        "more: red. Reply with the colour alone."
    )
    shown = 20

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        colour = rng.choice(COLOURS)
        while True:
            pulse, breaths = rng.randint(60, 160), rng.randint(10, 40)
            tenths = rng.randint(362, 412)
            points = (pulse > 110) + (pulse > 130) + (breaths > 20) + (breaths > 28)
            points += (tenths > 385) + (tenths > 395)
            readings = [f"pulse {pulse}", f"{breaths} breaths", f"{tenths / 10:.1f} degrees"]
            if key.level >= 0.5:
                rng.shuffle(readings)
                readings.append(f"pressure {rng.randint(90, 180)}")
            question = f"A patient of {rng.randint(18, 95)} years: {', '.join(readings)}."
            if COLOURS[(0, 1, 2, 3, 3, 4, 4)[points]] == colour and wanted(key, question):
                return self.made(key, question, colour)


class TileTurns(Asked):
    """Asks what a mosaic tile looks like after some turns; the reply is a JSON list of rows."""

    max_new_tokens = 96
    rules = "Turn the tile. Reply with a JSON list of its rows, from top to bottom."

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        size = 3 + round(2 * level)
        rows = ["".join(rng.choice("RGBY") for _ in range(size)) for _ in range(size)]
        quarters = rng.randint(1, 3)
        turned = rows
        for _ in range(quarters):
            turned = ["".join(column) for column in zip(*turned[::-1], strict=True)]
        shown = "\n".join(rows)
        question = f"{shown}\nTurn it clockwise by {90 * quarters} degrees."
        return None if turned == rows else Draft(question, turned)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        found = parse_json(rollout.text.strip(WHITE), max_chars=400)
        return judged(found is not None and found.value == task.data, rollout.text[:100])

    def right(self, data: list[str]) -> str:
        return json.dumps(data)


class KnittingCounts(LastLine):
    """Asks for the stitches after some rounds of knitting; the last line gives the number."""

    max_new_tokens = 120
    rules = "Count the stitches. End with the line 'Stitches: N'."
    mark = "Stitches: "
    form = "[1-9][0-9]{0,4}"

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        stitches = rng.choice((48, 60, 72, 80, 84, 90, 96, 108, 120))
        lines = [f"Cast on {stitches} stitches."]
        for number in range(1, 4 + round(3 * level)):
            line, stitches = self.round(rng, stitches)
            lines.append(f"Round {number}: {line}")
        return Draft("\n".join(lines), stitches) if 10 < stitches < 400 else None

    def round(self, rng: random.Random, stitches: int) -> tuple[str, int]:
        """Return what is done in a round, and the stitches after it."""
        if rng.random() < 0.5:
            more = rng.randint(2, 11)
            return f"make {more} new stitches, knit the rest.", stitches + more
        every = rng.choice([n for n in self.intervals(stitches) if stitches % n == 0])
        return f"knit the last 2 of every {every} together.", stitches - stitches // every

    def intervals(self, stitches: int) -> Sequence[int]:
        """Return how many stitches may lie between decreases."""
        return range(3, stitches + 1)


class CrateStacks(Tagged):
    """Asks which crates lie on top after a crane's moves; the answer stands in <top>."""

    max_new_tokens = 64
    rules = "The crane moves one crate at a time. Reply with <top>XYZ...</top>, stack by stack."
    tag = "top"

    def moves(self, level: float) -> int:
        """Return the number of moves of a level."""
        return 3 + round(6 * level)

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        letters = rng.sample("ABCDEFGHJKLMNPRSTUVWXYZ", 12)
        stacks = [letters[3 * i : 3 * i + 3] for i in range(4)]
        lines = [f"Stack {i} from the bottom: {' '.join(s)}" for i, s in enumerate(stacks, 1)]
        for _ in range(self.moves(level)):
            source = rng.choice([i for i, stack in enumerate(stacks) if stack])
            target = rng.choice([i for i in range(4) if i != source])
            stacks[target].append(stacks[source].pop())
            lines.append(f"Move one from {source + 1} to {target + 1}.")
        return Draft("\n".join(lines), "".join(s[-1] for s in stacks)) if all(stacks) else None
