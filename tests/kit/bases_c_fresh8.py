"""Sound environments: infusions, menus, wagons, logs, tunes, tides, workshops, plotters."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_integer, parse_json, xml_tag

WHITE = " \t\r\n"
Maker = Callable[[random.Random, float], tuple[str, Any]]


def chosen(key: TaskKey, make: Maker) -> tuple[str, Any]:
    """Return the first question of the key's side with its data, as `make` draws them."""
    rng = key.rng()
    while True:
        text, data = make(rng, key.level)
        if held_out(text) == (key.split == "eval"):
            return text, data


def chat(key: TaskKey, rules: str, text: str, data: Any) -> Task[Any]:
    """Return a task of a system message and a question."""
    return Task(key, (Message("system", rules), Message("user", text)), data)


def marked(right: bool, answer: str = "") -> Verdict:
    """Return a verdict of all or nothing."""
    return Verdict({"reward": Reward(float(right))}, passed=right, answer=answer[:100])


class InfusionRates(Environment[int]):
    """Asks for the drops per minute of an infusion; the reply is the number."""

    max_new_tokens = 12
    RULES: ClassVar[str] = "You help on a ward. Reply with a whole number and nothing else."

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, int]:
        """Return the text of an order and its drops per minute."""
        drops = rng.randint(5, 60 + round(150 * level))
        hours = rng.randint(1, 6 + round(18 * level))
        factor = rng.choice((10, 15, 20, 60))
        volume, given = drops * hours * 60 // factor, 25 * rng.randint(0, 8 + round(32 * level))
        so_far = f", of which {given} ml are through already," if given else ""
        return (
            f"A bag of {volume + given} ml{so_far} has to run in within {hours} h. The set gives "
            f"{factor} drops per ml. How many drops per minute?",
            drops,
        )

    def task(self, key: TaskKey) -> Task[int]:
        text, drops = chosen(key, self.draw)
        return chat(key, self.RULES, text, drops)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return marked(parse_integer(rollout.text, max_digits=6) == task.data, rollout.text)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


DISHES = [
    "Laksa",
    "Goulash",
    "Moussaka",
    "Pierogi",
    "Biryani",
    "Ceviche",
    "Risotto",
    "Tagine",
    "Ramen",
    "Falafel",
    "Borscht",
    "Paella",
    "Poutine",
    "Bibimbap",
    "Feijoada",
    "Haggis",
    "Jambalaya",
    "Kibbeh",
    "Lasagne",
    "Okonomiyaki",
    "Pho",
    "Ratatouille",
    "Spanakopita",
    "Tamales",
]
FOODS = ["egg", "milk", "peanut", "wheat", "soy", "celery", "mustard", "sesame", "lupin", "fish"]


class AllergenMenu(Environment[list[str]]):
    """Asks which dishes of a menu contain something; the reply lists them with commas."""

    max_new_tokens = 64
    answer_in_prompt = True

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[str]]:
        """Return a menu with a question, and the dishes that are meant."""
        names = rng.sample(DISHES, 5 + round(6 * level))
        food = rng.choice(FOODS)
        with_it = set(rng.sample(names, rng.randint(2, len(names) - 2)))
        others = [other for other in FOODS if other != food]
        lines = []
        for name in names:
            holds = rng.sample(others, 2) + [food] * (name in with_it)
            lines.append(f"{name}: {', '.join(rng.sample(holds, len(holds)))}")
        menu = "\n".join(lines)
        return f"{menu}\nWhich dishes contain {food}?", [n for n in names if n in with_it]

    def task(self, key: TaskKey) -> Task[list[str]]:
        text, dishes = chosen(key, self.draw)
        rules = "Reply with the names of the dishes, separated by commas, in any order."
        return chat(key, rules, text, dishes)

    @staticmethod
    def named(text: str) -> list[str]:
        """Return the names in a reply; [] if it is too long."""
        return [name.strip(WHITE) for name in text.split(",")] if len(text) < 1000 else []

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        return marked(sorted(self.named(rollout.text)) == sorted(task.data), rollout.text)

    def reference(self, task: Task[list[str]]) -> str:
        return ", ".join(task.data)


class WagonWeights(Environment[int]):
    """Asks for the weight of a train; the reply has it in <kg>."""

    max_new_tokens = 200

    @staticmethod
    def wagons(level: float) -> int:
        """Return the number of wagons."""
        return 2 + round(6 * level)

    def draw(self, rng: random.Random, level: float) -> tuple[str, int]:
        """Return the list of wagons and the weight of all."""
        count = self.wagons(level)
        loads = [(rng.randint(9500, 29900), rng.randint(0, 61000)) for _ in range(count)]
        lines = [
            f"wagon {number}: empty {tare} kg, load {load} kg"
            for number, (tare, load) in enumerate(loads, 1)
        ]
        text = "\n".join([*lines, "What does the train weigh without its engine, in kg?"])
        return text, sum(map(sum, loads))

    def task(self, key: TaskKey) -> Task[int]:
        text, weight = chosen(key, self.draw)
        return chat(key, "Add up as you like, then write <kg>NUMBER</kg> once.", text, weight)

    @staticmethod
    def weighed(text: str) -> str:
        """Return the number in the tag as it is written, or "" if there is none."""
        block = xml_tag(text, tag="kg")
        inner = block.content.strip(WHITE) if block else ""
        return inner if re.fullmatch("[1-9][0-9]{0,8}", inner, re.ASCII) else ""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        given = self.weighed(rollout.text)
        return marked(given == str(task.data), given)

    def reference(self, task: Task[int]) -> str:
        return f"<kg>{task.data}</kg>"


class FailedRequests(Environment[dict[str, list[str]]]):
    """Asks for the ids of failed requests in a log, one on a line; a part of them earns a part."""

    parts: ClassVar[dict[str, float]] = {"found": 0.7, "clean": 0.3}
    max_new_tokens = 96
    answer_in_prompt = True

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, dict[str, list[str]]]:
        """Return a log with the question, and the ids of it."""
        count = 8 + round(10 * level)
        ids = [f"{rng.choice('abcdef')}{number}" for number in rng.sample(range(1000, 9999), count)]
        failed = set(rng.sample(ids, rng.randint(2, count // 3)))
        lines = []
        for name in ids:
            status = rng.choice((500, 502, 503) if name in failed else (200, 201, 304, 404))
            path = rng.choice(("/cart", "/login", "/search", "/item/500", "/stock"))
            lines.append(f"{name} GET {path} {status} {rng.randint(3, 900)} ms")
        text = "\n".join([*lines, "Which requests failed on our side (status 500 and above)?"])
        return text, {"all": ids, "failed": [name for name in ids if name in failed]}

    def task(self, key: TaskKey) -> Task[dict[str, list[str]]]:
        text, data = chosen(key, self.draw)
        return chat(key, "Reply with the ids alone, one on each line.", text, data)

    @staticmethod
    def listed(text: str) -> list[str] | None:
        """Return the ids of a reply; None if it holds something else or one twice."""
        lines = text.strip(WHITE).split("\n") if text.strip(WHITE) else []
        ids = [line.strip(WHITE) for line in lines[:40]]
        good = len(lines) <= 40 and all(re.fullmatch("[a-f][0-9]{4}", i, re.ASCII) for i in ids)
        return ids if good and len(set(ids)) == len(ids) else None

    def scores(self, ids: list[str], failed: list[str]) -> tuple[float, float]:
        """Return what is paid for finding and for not raising false alarms."""
        clean = bool(ids) and set(ids) <= set(failed)
        return (len(ids) / len(failed) if clean else 0.0), float(clean)

    def verify(self, task: Task[dict[str, list[str]]], rollout: Rollout) -> Verdict:
        ids, failed = self.listed(rollout.text), task.data["failed"]
        found, clean = (0.0, 0.0) if ids is None else self.scores(ids, failed)
        right = ids is not None and sorted(ids) == sorted(failed)
        return Verdict({"found": Reward(found), "clean": Reward(clean)}, passed=right)

    def reference(self, task: Task[dict[str, list[str]]]) -> str:
        return "\n".join(task.data["failed"])


NOTES = ["C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B"]


class TransposedTunes(Environment[str]):
    """Asks to transpose a tune; the reply ends with a line "Answer: ..."."""

    max_new_tokens = 300

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, str]:
        """Return a question and the new notes."""
        tune = [rng.randrange(12) for _ in range(4 + round(6 * level))]
        steps = rng.choice([s for s in range(-6, 7) if s])
        way = "up" if steps > 0 else "down"
        new = " ".join(NOTES[(note + steps) % 12] for note in tune)
        old = " ".join(NOTES[note] for note in tune)
        return f"Transpose {way} by {abs(steps)} semitones (sharps only): {old}", new

    def task(self, key: TaskKey) -> Task[str]:
        text, notes = chosen(key, self.draw)
        return chat(key, 'Think if you like. End with one line "Answer: NOTES".', text, notes)

    @staticmethod
    def answers(text: str) -> list[str]:
        """Return what stands in the lines that begin with "Answer:"."""
        lines = [line.strip(WHITE) for line in text[-4000:].strip(WHITE).split("\n")]
        return [line[7:].strip(WHITE) for line in lines if line.startswith("Answer:")]

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        found = self.answers(rollout.text)
        last = rollout.text.strip(WHITE).rpartition("\n")[2].strip(WHITE)
        right = found == [task.data] and last.startswith("Answer:")
        return marked(right, " / ".join(found))

    def reference(self, task: Task[str]) -> str:
        return f"Answer: {task.data}"


class TideGauge(Environment[int]):
    """Asks for the reading of a gauge after rises and falls; the reply is {"level": NUMBER}."""

    max_new_tokens = 24

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, int]:
        """Return the day at the gauge, and its last reading, which is never 0."""
        while True:
            start = rng.randint(-90, 90)
            moves = [rng.choice((-1, 1)) * rng.randint(4, 120) for _ in range(2 + round(5 * level))]
            if start + sum(moves):
                break
        told = ", then ".join(f"{'rises' if m > 0 else 'falls'} by {abs(m)} cm" for m in moves)
        return (
            f"The water stands at {start} cm relative to chart datum. It {told}. What does the "
            "gauge read?",
            start + sum(moves),
        )

    def task(self, key: TaskKey) -> Task[int]:
        text, reading = chosen(key, self.draw)
        return chat(key, 'Reply with JSON: {"level": CENTIMETRES}', text, reading)

    @staticmethod
    def read(text: str) -> int | None:
        """Return the number of a reply."""
        parsed = parse_json(text.strip(WHITE), max_chars=200)
        value = parsed.value if parsed else None
        if not isinstance(value, dict) or set(value) != {"level"}:
            return None
        return value["level"] if type(value["level"]) is int else None

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return marked(self.read(rollout.text) == task.data, rollout.text)

    def reference(self, task: Task[int]) -> str:
        return f'{{"level": {task.data}}}'


STEPS = [
    "saw",
    "sand",
    "glue",
    "clamp",
    "drill",
    "screw",
    "oil",
    "polish",
    "plane",
    "measure",
    "mark",
    "file",
    "varnish",
    "dry",
]


class WorkshopOrder(Environment[list[str]]):
    """Asks for the steps of a job in the order of their times; the reply is the words."""

    max_new_tokens = 64

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[str]]:
        """Return the notes of a job, in no order, and its steps by time."""
        words = rng.sample(STEPS, 4 + round(6 * level))
        times = sorted(rng.sample(range(8 * 60, 18 * 60), len(words)))
        pairs = list(zip(words, times, strict=True))
        while [word for word, _ in pairs] == words:
            rng.shuffle(pairs)
        notes = "\n".join(f"{word} at {time // 60:02}:{time % 60:02}" for word, time in pairs)
        return f"Notes of a job:\n{notes}\nIn which order was it done?", words

    def task(self, key: TaskKey) -> Task[list[str]]:
        text, words = chosen(key, self.draw)
        rules = "Reply with the steps, the earliest first, with spaces between."
        return chat(key, rules, text, words)

    @staticmethod
    def words(text: str) -> list[str]:
        """Return the words of a reply."""
        return re.split("[ \t\r\n]+", text.strip(WHITE)) if len(text) < 1000 else []

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        return marked(self.words(rollout.text) == task.data, rollout.text)

    def reference(self, task: Task[list[str]]) -> str:
        return " ".join(task.data)


WAYS = {"R": (1, 0), "L": (-1, 0), "U": (0, 1), "D": (0, -1)}


def walked(moves: list[tuple[str, int]]) -> list[tuple[int, int]]:
    """Return the points that a pen comes to, from (0, 0)."""
    points = [(0, 0)]
    for way, length in moves:
        across, up = WAYS[way]
        for _ in range(length):
            points.append((points[-1][0] + across, points[-1][1] + up))
    return points


class PenPlotter(Environment[list[tuple[str, int]]]):
    """Asks for the moves of a plotter's pen from corner to corner; the reply is like "R3 U12"."""

    max_new_tokens = 96

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[tuple[str, int]]]:
        """Return the corners, and the moves."""
        flat = rng.random() < 0.5
        moves: list[tuple[str, int]] = []
        for number in range(3 + round(7 * level)):
            way = rng.choice("RL" if (number % 2 == 0) == flat else "UD")
            moves.append((way, rng.randint(2, 40)))
        corners = [walked(moves[: n + 1])[-1] for n in range(len(moves))]
        told = ", ".join(f"({x}, {y})" for x, y in corners)
        return f"The pen is down at (0, 0). Draw straight lines to {told}, in this order.", moves

    def task(self, key: TaskKey) -> Task[list[tuple[str, int]]]:
        text, moves = chosen(key, self.draw)
        rules = "Reply with moves such as R3 U12 L4 D1: right, up, left, down. x goes right, y up."
        return chat(key, rules, text, moves)

    @staticmethod
    def moves(text: str) -> list[tuple[str, int]]:
        """Return the moves of a reply; [] if it holds something else."""
        words = text.strip(WHITE).split(" ") if len(text) < 400 else []
        if not all(re.fullmatch("[RLUD][1-9][0-9]?", word, re.ASCII) for word in words):
            return []
        return [(word[0], int(word[1:])) for word in words]

    def verify(self, task: Task[list[tuple[str, int]]], rollout: Rollout) -> Verdict:
        moves = self.moves(rollout.text)
        return marked(moves == task.data, rollout.text)

    def reference(self, task: Task[list[tuple[str, int]]]) -> str:
        return " ".join(f"{way}{length}" for way, length in task.data)
