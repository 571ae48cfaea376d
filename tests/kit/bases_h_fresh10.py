"""Sound environments with numbers and codes as answers."""

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any, ClassVar, TypeVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_decimal, parse_integer, parse_json, xml_tag

Value = TypeVar("Value")
BLANK = " \t\r\n"


def draw(key: TaskKey, make: Callable[[Random], Value], name: Callable[[Value], str]) -> Value:
    """Return the first value of the key's stream that belongs to its split."""
    rng = key.rng()
    while True:
        value = make(rng)
        if held_out(name(value)) == (key.split == "eval"):
            return value


def ask(key: TaskKey, prompt: str, data: Any) -> Task[Any]:
    """Return a task with one message of the user."""
    return Task(key, (Message("user", prompt),), data)


def paid(right: bool, answer: str | None = None) -> Verdict:
    """Return a verdict with the one part `reward`."""
    return Verdict({"reward": Reward(right)}, passed=right, answer=answer)


class PrefixedQuantities(Environment[str]):
    """Asks to write a power of ten with the prefix of the unit, as `47 mW`."""

    levels = False
    max_new_tokens = 16
    prefixes: ClassVar[dict[int, str]] = {
        -12: "p", -9: "n", -3: "m", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P",
    }  # fmt: skip

    def task(self, key: TaskKey) -> Task[str]:
        number, power, unit = draw(
            key,
            lambda rng: (
                rng.randint(2, 999),
                rng.choice(tuple(self.prefixes)),
                rng.choice("WVAJ"),
            ),
            str,
        )
        prompt = (
            f"Write {number}00 x 10^{power - 2} {unit} with an SI prefix, so that the number "
            "before the unit is a whole one from 1 to 999. "
            "Reply with number, space, prefix and unit only, such as `5 uF`."
        )
        return ask(key, prompt, f"{number} {self.prefixes[power]}{unit}")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(BLANK)[:50]
        return paid(self.same(text, task.data), text)

    def same(self, text: str, right: str) -> bool:
        """Return whether a reply is the quantity."""
        return text == right

    def reference(self, task: Task[str]) -> str:
        return task.data


class KnittedTriangle(Environment[int]):
    """Asks how many stitches a widening piece of knitting has in all."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[int]:
        most = 30 + round(40 * key.level)
        cast, more, rows = draw(
            key,
            lambda rng: (rng.randint(41, 119), rng.randint(2, 6), rng.randint(20, most)),
            str,
        )
        return ask(key, self.question(cast, more, rows), sum(cast + more * i for i in range(rows)))

    def question(self, cast: int, more: int, rows: int) -> str:
        """Return the prompt."""
        return (
            f"A shawl begins with a row of {cast} stitches. Every later row has {more} stitches "
            f"more than the row before. It has {rows} rows. How many stitches are knitted in all? "
            "Reply with the number only."
        )

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        return paid(answer == task.data, None if answer is None else str(answer))

    def read(self, text: str) -> int | None:
        """Return the number that a reply consists of, or None."""
        return parse_integer(text, max_digits=7)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


class ColumnOfConcrete(Environment[float]):
    """Asks for the concrete in a round column, within one percent."""

    levels = False
    tolerance: ClassVar[float] = 0.01
    max_new_tokens = 32

    def task(self, key: TaskKey) -> Task[float]:
        across, height = draw(key, lambda rng: (rng.randint(21, 89), rng.randint(205, 595)), str)
        prompt = (
            f"A round column is {across} cm across and {height} cm high. How many litres of "
            "concrete fill its form? One percent off is close enough. Reply with the number in "
            "<litres>...</litres>, digits and a decimal point only."
        )
        return ask(key, prompt, math.pi * (across / 2) ** 2 * height / 1000)

    def verify(self, task: Task[float], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="litres")
        text = block.content.strip(BLANK) if block else ""
        return paid(self.near(text, task.data), text[:40])

    def near(self, text: str, right: float) -> bool:
        """Return whether the text is a number close enough to the right one."""
        value = parse_decimal(text, max_digits=12)
        return value is not None and abs(value - Decimal(right)) <= Decimal(right) / 100

    def reference(self, task: Task[float]) -> str:
        return f"<litres>{task.data:.2f}</litres>"


class MarksForShelves(Environment[str]):
    """Asks for the shelf mark of a book, made from subject, author and year."""

    levels = False
    max_new_tokens = 32
    subjects: ClassVar[dict[str, str]] = {
        "botany": "BO", "law": "LW", "music": "MU", "optics": "OP", "chess": "CH", "maps": "MP",
        "weaving": "WV", "fables": "FA", "tides": "TD",
    }  # fmt: skip
    authors: ClassVar[tuple[str, ...]] = (
        "Hofmann", "Okafor", "Lindqvist", "Petrova", "Nakamura", "Duarte", "Brennan", "Szabo",
        "Castellano", "Whitlock", "Ferreira", "Andersson", "Moreau", "Yilmaz", "Kowalski",
    )  # fmt: skip

    def task(self, key: TaskKey) -> Task[str]:
        subject, author, year = draw(
            key,
            lambda rng: (
                rng.choice(tuple(self.subjects)),
                rng.choice(self.authors),
                rng.randint(1901, 1998),
            ),
            str,
        )
        prompt = (
            f"A book on {subject} by {author}, {year}. Its shelf mark has three parts with hyphens "
            "between: the code of the subject, the first three letters of the author in capitals, "
            "the last two digits of the year. Codes: "
            + ", ".join(f"{name} {code}" for name, code in self.subjects.items())
            + ". End with a line `Mark: ` and the mark."
        )
        return ask(key, prompt, f"{self.subjects[subject]}-{author[:3].upper()}-{year % 100:02}")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        mark = self.mark(rollout.text)
        return paid(mark == task.data, mark)

    def mark(self, text: str) -> str | None:
        """Return what follows `Mark: ` in the last line, or None."""
        last = text.strip(BLANK).rpartition("\n")[2].strip(BLANK)
        return last[6:60] if last.startswith("Mark: ") and len(last) <= 60 else None

    def reference(self, task: Task[str]) -> str:
        return f"Mark: {task.data}"


class WorstOfTheServers(Environment[dict[str, Any]]):
    """Asks which server of a log has the most failures, and how many, as JSON."""

    levels = False
    max_new_tokens = 48
    servers: ClassVar[tuple[str, ...]] = (
        "alder", "birch", "cedar", "dogwood", "elder", "fir", "gorse", "hazel", "ivy", "juniper",
    )  # fmt: skip

    def task(self, key: TaskKey) -> Task[dict[str, Any]]:
        lines = draw(key, self.lines, "\n".join)
        counts = self.count(lines)
        worst = max(counts, key=lambda name: counts[name])
        prompt = (
            self.heading()
            + "Which server has the most lines with a status of 500 or above, and how many? Reply "
            'with JSON such as {"server": "oak", "failures": 2}.\n' + "\n".join(lines)
        )
        return ask(key, prompt, {"lines": lines, "server": worst, "failures": counts[worst]})

    def heading(self) -> str:
        """Return what stands above the question."""
        return "Log of the night shift. "

    def lines(self, rng: Random) -> list[str]:
        """Return lines of a log in which one server has the most failures."""
        worst, *others = rng.sample(self.servers, 4)
        most = rng.randint(4, 7)
        names = [worst] * most + [name for name in others for _ in range(rng.randint(1, 3))]
        lines = [f"{name} {rng.choice((500, 502, 503))}" for name in names]
        lines += [f"{rng.choice(others)} {rng.choice((200, 204, 404))}" for _ in range(6)]
        rng.shuffle(lines)
        return lines

    def count(self, lines: list[str]) -> dict[str, int]:
        """Return the number of failures of each server that has any."""
        counts: dict[str, int] = {}
        for line in lines:
            name, status = line.split(" ")
            if int(status) >= 500:
                counts[name] = counts.get(name, 0) + 1
        return counts

    def verify(self, task: Task[dict[str, Any]], rollout: Rollout) -> Verdict:
        value = parse_json(rollout.text.strip(BLANK), max_chars=500)
        return paid(value is not None and self.right(task.data, value.value), rollout.text[:80])

    def right(self, data: dict[str, Any], value: Any) -> bool:
        """Return whether a JSON value names the server and its failures."""
        return (
            isinstance(value, dict)
            and set(value) == {"server", "failures"}
            and type(value["failures"]) is int
            and value == {"server": data["server"], "failures": data["failures"]}
        )

    def reference(self, task: Task[dict[str, Any]]) -> str:
        return json.dumps({"server": task.data["server"], "failures": task.data["failures"]})


class FerryArrives(Environment[str]):
    """Asks when a ferry arrives, as a time of day such as 07:45."""

    levels = False
    max_new_tokens = 16
    ports: ClassVar[tuple[str, ...]] = ("Ullapool", "Stornoway", "Mallaig", "Oban", "Tarbert")

    def task(self, key: TaskKey) -> Task[str]:
        port, start, minutes = draw(
            key,
            lambda rng: (rng.choice(self.ports), rng.randint(0, 1439), rng.randint(35, 640)),
            str,
        )
        end = (start + minutes) % 1440
        prompt = (
            f"{self.notice(key)}A ferry leaves {port} at {start // 60:02}:{start % 60:02} and "
            f"sails for {minutes} minutes. At what time of day does it arrive? Reply with the time "
            "alone, on the clock of 24 hours, as HH:MM."
        )
        return ask(key, prompt, f"{end // 60:02}:{end % 60:02}")

    def notice(self, key: TaskKey) -> str:
        """Return what the board says before the question."""
        return "Caledonian lines. "

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(BLANK)[:40]
        return paid(self.same(text, task.data), text)

    def same(self, text: str, right: str) -> bool:
        """Return whether a reply is the time."""
        return re.fullmatch("[0-9]{2}:[0-9]{2}", text, re.ASCII) is not None and text == right

    def reference(self, task: Task[str]) -> str:
        return task.data
