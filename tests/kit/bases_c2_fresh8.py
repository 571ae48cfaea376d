"""Sound environments: stamps, rotas, versions, settings, curves, stock, a library, cheques."""

from __future__ import annotations

import importlib
import random
import re
from typing import Any, ClassVar

from bases_c_fresh8 import WHITE, chat, chosen, marked

from grpo_core import Environment, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_json, xml_tag


def lines_of(text: str, most: int = 60) -> list[str]:
    """Return the lines of a reply without white space around them; [] if there are too many."""
    lines = [line.strip(WHITE) for line in text.strip(WHITE).split("\n")]
    return lines if len(lines) <= most and len(text) < 5000 else []


class StampGaps(Environment[list[int]]):
    """Asks which stamps a collector lacks; the reply lists their numbers with commas."""

    max_new_tokens = 64

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[int]]:
        """Return what the album holds, and the gaps."""
        first, count = rng.randint(100, 900), 10 + round(20 * level)
        gaps = sorted(rng.sample(range(first, first + count), rng.randint(3, 5 + round(3 * level))))
        owned = [n for n in range(first, first + count) if n not in gaps]
        rng.shuffle(owned)
        return (
            f"The series has the numbers {first} to {first + count - 1}. The album holds "
            f"{', '.join(map(str, owned))}. Which are missing?",
            gaps,
        )

    def task(self, key: TaskKey) -> Task[list[int]]:
        text, gaps = chosen(key, self.draw)
        return chat(key, "Reply with the missing numbers, in any order, with commas.", text, gaps)

    @staticmethod
    def numbers(text: str) -> list[int]:
        """Return the numbers of a reply; [] if it holds something else."""
        parts = [part.strip(WHITE) for part in text.split(",")] if len(text) < 400 else []
        if not all(re.fullmatch("[1-9][0-9]{0,4}", part, re.ASCII) for part in parts):
            return []
        return [int(part) for part in parts]

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        return marked(sorted(self.numbers(rollout.text)) == task.data, rollout.text)

    def reference(self, task: Task[list[int]]) -> str:
        return ", ".join(map(str, task.data))


PEOPLE = [
    "Ada",
    "Bo",
    "Cem",
    "Dora",
    "Eli",
    "Fay",
    "Gus",
    "Hana",
    "Ivo",
    "Jana",
    "Kai",
    "Lea",
    "Mio",
    "Nia",
    "Otto",
    "Pia",
]


class RotaTable(Environment[list[list[str]]]):
    """Asks for a week's hours as a table of comma-separated values."""

    max_new_tokens = 96

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[list[str]]]:
        """Return the shifts, and the rows of the table."""
        names = rng.sample(PEOPLE, 2 + round(5 * level))
        total = dict.fromkeys(names, 0)
        told = []
        for name in names * 2:
            start, hours = rng.randint(5, 14), rng.randint(3, 9)
            day = rng.choice(("Mon", "Tue", "Wed", "Thu", "Fri"))
            told.append(f"{name}, {day}: {start:02}:00 to {start + hours:02}:00")
            total[name] += hours
        rng.shuffle(told)
        rows = [["name", "hours"], *([name, str(total[name])] for name in sorted(names))]
        return "Shifts:\n" + "\n".join(told), rows

    def task(self, key: TaskKey) -> Task[list[list[str]]]:
        text, rows = chosen(key, self.draw)
        rules = "Reply with CSV alone: the line name,hours and then each person once, by name."
        return chat(key, rules, text, rows)

    def table(self, task: Task[list[list[str]]], text: str) -> list[list[str]]:
        """Return the cells of a reply."""
        return [line.split(",") for line in lines_of(text)]

    def verify(self, task: Task[list[list[str]]], rollout: Rollout) -> Verdict:
        return marked(self.table(task, rollout.text) == task.data, rollout.text)

    def reference(self, task: Task[list[list[str]]]) -> str:
        return "\n".join(",".join(row) for row in task.data)


class ReleaseSort(Environment[list[str]]):
    """Asks to sort the releases of a program; the reply has one on each line."""

    max_new_tokens = 128

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[str]]:
        """Return the releases, in no order, and sorted."""
        major, count = rng.randint(1, 30), 4 + round(6 * level)
        found: set[tuple[int, int, int]] = set()
        while len(found) < count:
            found.add((major, rng.randint(0, 12), rng.randint(0, 120)))
        right = [".".join(map(str, release)) for release in sorted(found)]
        mixed = right
        while mixed == right:
            mixed = rng.sample(right, count)
        return "Sort these releases, the oldest first: " + " ".join(mixed), right

    def task(self, key: TaskKey) -> Task[list[str]]:
        text, releases = chosen(key, self.draw)
        return chat(key, "Reply with one release on each line.", text, releases)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        return marked(lines_of(rollout.text) == task.data, rollout.text)

    def reference(self, task: Task[list[str]]) -> str:
        return "\n".join(task.data)


class ServerSettings(Environment[dict[str, str]]):
    """Asks for the settings of a server as lines like "port = 8017"."""

    max_new_tokens = 64

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, dict[str, str]]:
        """Return what the settings have to be, and the settings."""
        base, shift = rng.randint(2000, 9000), rng.randint(3, 90)
        cores, each = rng.randint(3, 24), rng.randint(2, 4 + round(5 * level))
        told = [f"port is {shift} above {base}", f"workers is {each} for each of {cores} cores"]
        values = {"port": str(base + shift), "workers": str(cores * each)}
        if level >= 0.5:
            gib, reserve = rng.randint(4, 60), rng.randint(100, 900)
            told.append(f"memory is {gib} GiB in MiB, less {reserve} MiB")
            values["memory"] = str(gib * 1024 - reserve)
        return "Write the settings: " + "; ".join(told) + ".", values

    def task(self, key: TaskKey) -> Task[dict[str, str]]:
        text, values = chosen(key, self.draw)
        rules = "Reply with one line NAME = VALUE for each setting, in any order, and no section."
        return chat(key, rules, text, values)

    @staticmethod
    def settings(lines: list[str]) -> dict[str, str]:
        """Return the settings in lines; {} if a line is none, or a name stands there twice."""
        pairs = [re.fullmatch("([a-z]+) ?= ?([1-9][0-9]{0,8})", line, re.ASCII) for line in lines]
        values = {pair[1]: pair[2] for pair in pairs if pair}
        return values if len(values) == len(lines) else {}

    def verify(self, task: Task[dict[str, str]], rollout: Rollout) -> Verdict:
        return marked(self.settings(lines_of(rollout.text)) == task.data, rollout.text)

    def reference(self, task: Task[dict[str, str]]) -> str:
        return "\n".join(f"{name} = {value}" for name, value in task.data.items())


def value_at(numbers: list[int], x: int) -> int:
    """Return the value of a polynomial, whose constant term is first, at x."""
    return sum(number * x**power for power, number in enumerate(numbers))


class CurveThrough(Environment[list[int]]):
    """Asks for a polynomial through points; the reply is the list of its coefficients."""

    max_new_tokens = 32

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[int]]:
        """Return the points, and the coefficients."""
        numbers = [rng.randint(-20, 20) for _ in range(2 + round(2 * level))] + [rng.randint(1, 9)]
        points = ", ".join(f"({x}, {value_at(numbers, x)})" for x in range(1, len(numbers) + 1))
        return f"Which polynomial of degree {len(numbers) - 1} passes through {points}?", numbers

    def task(self, key: TaskKey) -> Task[list[int]]:
        text, numbers = chosen(key, self.draw)
        rules = "Reply with the integer coefficients as a JSON list, the constant term first."
        return chat(key, rules, text, numbers)

    @staticmethod
    def coefficients(text: str) -> list[int]:
        """Return the list of a reply; [] if it is none."""
        parsed = parse_json(text.strip(WHITE), max_chars=200, max_digits=9)
        value = parsed.value if parsed else None
        good = isinstance(value, list) and all(type(number) is int for number in value)
        return value if good and isinstance(value, list) else []

    def places(self, task: Task[list[int]]) -> list[int]:
        """Return where a curve is compared; more places than a polynomial has roots."""
        return task.rng().sample(range(10, 1000), 8)

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        given = self.coefficients(rollout.text)
        places = self.places(task)
        right = len(given) == len(task.data) and all(
            value_at(given, x) == value_at(task.data, x) for x in places
        )
        return marked(right, rollout.text)

    def reference(self, task: Task[list[int]]) -> str:
        return str(task.data)


GOODS = [
    "anvil",
    "bucket",
    "cable",
    "drum",
    "easel",
    "flask",
    "grate",
    "hinge",
    "ladder",
    "mallet",
    "nozzle",
    "pulley",
]


class StockCount(Environment[dict[str, int]]):
    """Asks for the stock after a day's movements; the reply is an object in <stock>."""

    max_new_tokens = 200
    RULES: ClassVar[str] = (
        'What is there in the evening? End with <stock>{"NAME": COUNT, ...}</stock>.'
    )

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, dict[str, int]]:
        """Return the day, and the stock in the evening."""
        stock = {name: rng.randint(20, 200) for name in rng.sample(GOODS, 2 + round(3 * level))}
        told = ["In the morning: " + ", ".join(f"{count} {name}" for name, count in stock.items())]
        for name in [*stock, *rng.choices([*stock], k=2 + round(5 * level))]:
            change = rng.choice((rng.randint(1, 60), -rng.randint(1, stock[name])))
            change = change if stock[name] + change else 7
            stock[name] += change
            told.append(f"{'delivered' if change > 0 else 'sold'}: {abs(change)} {name}")
        return "\n".join(told), stock

    def task(self, key: TaskKey) -> Task[dict[str, int]]:
        text, stock = chosen(key, self.draw)
        return chat(key, self.RULES, text, stock)

    @staticmethod
    def counted(text: str) -> Any:
        """Return the value in the tag; None if there is none."""
        block = xml_tag(text, tag="stock")
        parsed = parse_json(block.content.strip(WHITE), max_chars=1000) if block else None
        return parsed.value if parsed else None

    def verify(self, task: Task[dict[str, int]], rollout: Rollout) -> Verdict:
        given = self.counted(rollout.text)
        right = isinstance(given, dict) and given == task.data
        return marked(right and all(type(n) is int for n in given.values()), rollout.text)

    def reference(self, task: Task[dict[str, int]]) -> str:
        inner = ", ".join(f'"{name}": {count}' for name, count in task.data.items())
        return f"<stock>{{{inner}}}</stock>"


MODULES = [
    "ast",
    "base64",
    "bisect",
    "calendar",
    "cmath",
    "colorsys",
    "configparser",
    "csv",
    "dis",
    "fnmatch",
    "fractions",
    "gettext",
    "glob",
    "heapq",
    "html",
    "inspect",
    "ipaddress",
    "json",
    "keyword",
    "linecache",
    "locale",
    "logging",
    "math",
    "mimetypes",
    "operator",
    "pickletools",
    "platform",
    "pprint",
    "quopri",
    "random",
    "secrets",
    "shlex",
    "shutil",
    "statistics",
    "string",
    "struct",
    "sysconfig",
    "tempfile",
    "textwrap",
    "threading",
    "time",
    "tokenize",
    "traceback",
    "types",
    "unicodedata",
    "warnings",
]

OTHERS = [
    "binascii",
    "bz2",
    "codecs",
    "collections",
    "copy",
    "dbm",
    "difflib",
    "fileinput",
    "functools",
    "getopt",
    "getpass",
    "gzip",
    "itertools",
    "lzma",
    "marshal",
    "os",
    "os.path",
    "pickle",
    "plistlib",
    "posixpath",
    "re",
    "sched",
    "select",
    "shelve",
    "signal",
    "site",
    "socket",
    "stat",
    "subprocess",
    "symtable",
    "sys",
    "tarfile",
    "timeit",
    "token",
    "tomllib",
    "tracemalloc",
    "urllib.parse",
    "uuid",
    "wave",
    "zipfile",
    "zlib",
]


def _owners() -> list[tuple[str, str]]:
    """Return public functions that just one of all modules has, at most twelve of a module."""
    others = {name for module in OTHERS for name in dir(importlib.import_module(module))}
    holders: dict[str, list[str]] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for function in sorted(getattr(module, "__all__", None) or dir(module)):
            value = getattr(module, function, None)
            own = getattr(value, "__module__", None) in {name, f"_{name}"}
            if callable(value) and own and not isinstance(value, type) and function[0] != "_":
                holders.setdefault(function, []).append(name)
    rows: list[tuple[str, str]] = []
    for function, names in holders.items():
        alone = len(names) == 1 and function not in others and function != names[0]
        if alone and sum(module == names[0] for _, module in rows) < 12:
            rows.append((function, names[0]))
    return rows


OWNERS = _owners()


class LibraryOwners(Environment[dict[str, str]]):
    """Asks which module of Python's library has a function; the reply is its name."""

    max_new_tokens = 8
    levels = False

    def task(self, key: TaskKey) -> Task[dict[str, str]]:
        rows = [row for row in OWNERS if held_out(row[0]) == (key.split == "eval")]
        function, module = key.rng().choice(rows)
        text = f"Which module of Python's standard library has the function {function}()?"
        data = {"function": function, "module": module}
        return chat(key, "Reply with the module's name and nothing else.", text, data)

    def verify(self, task: Task[dict[str, str]], rollout: Rollout) -> Verdict:
        right = rollout.text.strip(WHITE) == task.data["module"]
        return marked(right, rollout.text)

    def reference(self, task: Task[dict[str, str]]) -> str:
        return task.data["module"]


ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number: int) -> str:
    """Return a number below a million in English words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        rest = f"-{ONES[number % 10]}" if number % 10 else ""
        return TENS[number // 10 - 2] + rest
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = f" {in_words(number % size)}" if number % size else ""
    return f"{in_words(number // size)} {name}{rest}"


class ChequeAmounts(Environment[str]):
    """Has a base model go on with a list of cheques, the amount in words."""

    max_new_tokens = 32

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, str]:
        """Return an amount in figures and in words."""
        number = rng.randint(100, round(10 ** (3.6 + 2.3 * level)))
        return str(number), in_words(number)

    def prompt(self, key: TaskKey, figures: str) -> str:
        """Return the text that the policy goes on with."""
        return f"Figures: 41\nWords: forty-one\n\nFigures: {figures}\nWords:"

    def task(self, key: TaskKey) -> Task[str]:
        figures, words = chosen(key, self.draw)
        return Task(key, self.prompt(key, figures), words)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return marked(rollout.text.strip(WHITE) == task.data, rollout.text)

    def reference(self, task: Task[str]) -> str:
        return f" {task.data}"
