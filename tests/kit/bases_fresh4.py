"""Sound environments from which the fourth fresh part is made by changing one thing."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_integer, parse_json, xml_tag

SPACE = " \t\r\n"
GOODS = (
    *("barley", "butter", "carrots", "celery", "flour", "honey", "leeks", "lentils", "milk"),
    *("onions", "peas", "potatoes", "pumpkin", "rice", "spinach", "sugar", "turnips", "yoghurt"),
)
RUNNERS = (
    *("Abel", "Birte", "Coen", "Dunja", "Esra", "Fiona", "Goran", "Hanne", "Ivo", "Jelle"),
    *("Katja", "Leif", "Marta", "Nadia", "Olga", "Petra", "Rolf", "Selma", "Tariq", "Uwe"),
)


class Puzzle(Environment[Any]):
    """Draws a content, asks about it, and compares what it reads with the solution."""

    max_new_tokens = 64
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Any]:
        return self.posed(key, *self.fitting(key, key.rng()))

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            content = self.drawn(rng, key.level)
            if content and held_out(self.asked(*content)) == (key.split == "eval"):
                return content

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        """Return the content of a task; () if it is not a good one."""
        raise NotImplementedError

    def asked(self, *content: Any) -> str:
        raise NotImplementedError

    def solved(self, *content: Any) -> Any:
        raise NotImplementedError

    def posed(self, key: TaskKey, *content: Any) -> Task[Any]:
        return Task(key, (Message("user", self.asked(*content)),), self.solved(*content))

    def read(self, text: str) -> Any:
        """Return the answer that a reply gives; None if it gives none."""
        return text.strip(SPACE)

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        return self.judged(answer is not None and self.accepts(task.data, answer), answer)

    def judged(self, right: bool, answer: Any) -> Verdict:
        shown = None if answer is None else str(answer)[:100]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=shown)

    def written(self, truth: Any) -> str:
        """Return a reply that gives the right answer."""
        return str(truth)

    def reference(self, task: Task[Any]) -> str:
        return self.written(task.data)


class JsonPuzzle(Puzzle):
    """The whole reply is a JSON value."""

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=1000)
        return None if value is None else value.value

    def accepts(self, truth: Any, answer: Any) -> bool:
        return json.dumps(answer, sort_keys=True) == json.dumps(truth, sort_keys=True)

    def written(self, truth: Any) -> str:
        return json.dumps(truth)


class Portions(JsonPuzzle):
    """How much does a dish take for more guests? The answer is a JSON object."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        names = sorted(rng.sample(GOODS, 2 + round(3 * level)))
        each = tuple((name, rng.randint(11, 99)) for name in names)
        people, guests = rng.sample(range(2, 20), 2)
        return each, people, guests

    def asked(self, each: tuple[tuple[str, int], ...], people: int, guests: int) -> str:
        told = ", ".join(f"{people * grams} g of {name}" for name, grams in each)
        return (
            f"A dish for {people} people takes {told}. How many grams of each does it take for "
            f"{guests} people? Reply with JSON only: whole numbers by the names of the goods."
        )

    def solved(self, each: tuple[tuple[str, int], ...], people: int, guests: int) -> Any:
        return {name: guests * grams for name, grams in each}


COINS = (50, 20, 10, 5, 2, 1)


class Coins(JsonPuzzle):
    """As few coins as possible. The answer is a JSON object, with many zeros and ones."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        prices = tuple(rng.randint(11, 499) for _ in range(1 + round(3 * level)))
        count = rng.randint(2, 19)
        return count, prices

    def asked(self, count: int, prices: tuple[int, ...]) -> str:
        told = " and ".join(f"{count} stamps at {price} cents" for price in prices)
        keys = ", ".join(f'"{coin}": ...' for coin in COINS)
        return (
            f"Somebody buys {told}, and pays with as few coins as possible, of 50, 20, 10, 5, 2 "
            f"and 1 cents. How many of each? Reply with JSON only: {{{keys}}}"
        )

    def solved(self, count: int, prices: tuple[int, ...]) -> Any:
        rest, counts = count * sum(prices), dict[str, int]()
        for coin in COINS:
            counts[str(coin)], rest = divmod(rest, coin)
        return counts


class Parcels(Puzzle):
    """What do parcels weigh? The answer is a number with a unit."""

    form = r"\d{1,4}\.\d\d kg"

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        kinds = 2 + round(3 * level)
        return (tuple((rng.randint(2, 9), 10 * rng.randint(11, 499)) for _ in range(kinds)),)

    def asked(self, parcels: tuple[tuple[int, int], ...]) -> str:
        told = ", ".join(f"{count} parcels of {grams} g each" for count, grams in parcels)
        return (
            f"A van carries {told}. What do they weigh together? Reply with the weight only, in "
            "kg with two decimals, as in: 3.40 kg"
        )

    def solved(self, parcels: tuple[tuple[int, int], ...]) -> str:
        tens = sum(count * grams for count, grams in parcels) // 10
        return f"{tens // 100}.{tens % 100:02d} kg"

    def read(self, text: str) -> Any:
        said = text.strip(SPACE)
        return said if re.fullmatch(self.form, said, re.ASCII) else None


class Largest(Puzzle):
    """Which product is the largest? The answer is a letter of a choice."""

    letters = "ABCDEF"

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        top = 30 + round(900 * level)
        pairs = tuple((rng.randint(top // 2, top), rng.randint(12, 99)) for _ in self.letters)
        products = sorted(one * two for one, two in pairs)
        return (pairs,) if products[-1] > products[-2] else ()

    def asked(self, pairs: tuple[tuple[int, int], ...]) -> str:
        told = "\n".join(
            f"{letter}) {one} * {two}"
            for letter, (one, two) in zip(self.letters, pairs, strict=True)
        )
        return f"Which product is the largest?\n{told}\nReply with its letter only."

    def solved(self, pairs: tuple[tuple[int, int], ...]) -> str:
        products = [one * two for one, two in pairs]
        return self.letters[products.index(max(products))]


class Blend(Puzzle):
    """Add colours up. The answer is a colour as a style sheet has it."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        return (tuple(rng.randrange(256**3) for _ in range(2 + round(3 * level))),)

    def asked(self, colours: tuple[int, ...]) -> str:
        told = ", ".join(f"#{colour:06x}" for colour in colours)
        return (
            f"Add these colours up channel by channel, modulo 256: {told}. Reply with the colour "
            "only, in lower case, as in: #09af00"
        )

    def solved(self, colours: tuple[int, ...]) -> str:
        channels = [sum(colour >> shift & 255 for colour in colours) % 256 for shift in (16, 8, 0)]
        return "#" + "".join(f"{channel:02x}" for channel in channels)


class Heavier(Puzzle):
    """Which crates are heavier than a limit? The answer is a list of their codes."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        count = 5 + round(5 * level)
        codes = rng.sample([f"{letter}{n}" for letter in "HKMPT" for n in range(10, 100)], count)
        weights = rng.sample(range(101, 999), count)
        limit = rng.randint(300, 800)
        right = sum(weight > limit for weight in weights)
        return (tuple(zip(codes, weights, strict=True)), limit) if 2 <= right <= count - 2 else ()

    def asked(self, crates: tuple[tuple[str, int], ...], limit: int) -> str:
        told = "; ".join(f"{code} weighs {weight} kg" for code, weight in crates)
        return (
            f"{told}. Which are heavier than {limit} kg? Reply with their codes only, in the order "
            "of the alphabet, commas between them, as in: H12, K77"
        )

    def solved(self, crates: tuple[tuple[str, int], ...], limit: int) -> str:
        return ", ".join(sorted(code for code, weight in crates if weight > limit))


class Finish(Puzzle):
    """In which order do runners come in? The answer is a list of names."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        names = rng.sample(RUNNERS, 4 + round(4 * level))
        times = rng.sample(range(1500, 3500), len(names))
        return (tuple(zip(names, times, strict=True)),) if times != sorted(times) else ()

    def asked(self, runners: tuple[tuple[str, int], ...]) -> str:
        told = ", ".join(f"{name} {s // 60}:{s % 60:02d}" for name, s in runners)
        return (
            f"Times of a race in minutes and seconds: {told}. Reply with the names only, the "
            "fastest first, as in: Zoe, Yann"
        )

    def solved(self, runners: tuple[tuple[str, int], ...]) -> str:
        return ", ".join(name for name, _ in sorted(runners, key=lambda runner: runner[1]))


class Seat(Puzzle):
    """Which seat does a guest get? The answer stands in a block behind any thoughts."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        first, width = rng.randint(1, 40), rng.randint(4, 9)
        return first, width, rng.randint(width, 60 + round(900 * level))

    def asked(self, first: int, width: int, guest: int) -> str:
        last = chr(64 + width)
        return (
            f"A hall has rows of {width} seats, A to {last}. Guests are seated from row {first} "
            f"on, each row from A to {last}, then the next row. Which seat has guest number "
            f"{guest}? End with row and letter as in <seat>7C</seat>."
        )

    def solved(self, first: int, width: int, guest: int) -> str:
        row, place = divmod(guest - 1, width)
        return f"{first + row}{chr(65 + place)}"

    def read(self, text: str) -> Any:
        block = xml_tag(text, tag="seat")
        return None if block is None or text[block.end :].strip() else block.content.strip(SPACE)

    def written(self, truth: Any) -> str:
        return f"<seat>{truth}</seat>"

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return (str(task.data), f"<seat>{task.data} or 1A</seat>")


class Ledger(Puzzle):
    """What is the balance? The answer is a number, maybe a negative one, in the last line."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        moves = tuple(
            rng.choice((-1, 1)) * rng.randint(21, 999) for _ in range(3 + round(5 * level))
        )
        return (moves,) if abs(sum(moves)) > 9 else ()

    def asked(self, moves: tuple[int, ...]) -> str:
        told = ", ".join(f"{'in' if move > 0 else 'out'} {abs(move)}" for move in moves)
        return (
            f"An account is empty, then: {told}. What is its balance? End with a line such as "
            '"Balance: -70".'
        )

    def solved(self, moves: tuple[int, ...]) -> int:
        return sum(moves)

    def read(self, text: str) -> Any:
        label, _, number = text.strip(SPACE).rpartition("\n")[2].partition(": ")
        return parse_integer(number, max_digits=9) if label == "Balance" else None

    def written(self, truth: Any) -> str:
        return f"Balance: {truth}"
