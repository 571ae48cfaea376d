"""Sound environments from which the second fresh half is made by changing one thing."""

from __future__ import annotations

import ipaddress
import json
import random
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from math import prod
from typing import Any, ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import is_text, parse_decimal, parse_integer, parse_json
from grpo_core.protocol.judge import JudgeRequest

SPACE = " \t\r\n"
PEOPLE = tuple(
    first + last
    for first in ("Ar", "Be", "Cor", "Dal", "El", "Fin", "Gor", "Hul")
    for last in ("ado", "bert", "cia", "dine", "fan", "gard", "lis", "mund")
)
PRIMES = tuple(n for n in range(2, 98) if all(n % d for d in range(2, n)))


class Quiz(Environment[Any]):
    """Asks one question: a subclass says what is drawn, how it is asked and what is right."""

    timeout_seconds = 2.0
    max_new_tokens = 64

    def task(self, key: TaskKey) -> Task[Any]:
        return self.asked(key, *self.fitting(key, self.generator(key)))

    def generator(self, key: TaskKey) -> random.Random:
        return key.rng()

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        """Return content of the key's split."""
        while True:
            content = self.drawn(key, rng)
            if held_out(repr(content)) == (key.split == "eval"):
                return content

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        raise NotImplementedError

    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        return Task(key, (Message("user", self.question(*content)),), self.solved(*content))

    def question(self, *content: Any) -> str:
        raise NotImplementedError

    def solved(self, *content: Any) -> Any:
        raise NotImplementedError

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return self.judged(task, self.read(rollout.text))

    def read(self, text: str) -> Any:
        """Return the answer, None if there is none."""
        raise NotImplementedError

    def accepts(self, truth: Any, answer: Any) -> bool:
        return answer is not None and bool(answer == truth)

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        right = self.accepts(task.data, answer)
        shown = None if answer is None else str(answer)[:100]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=shown)

    def reference(self, task: Task[Any]) -> str:
        return str(task.data)


class Spelled(Quiz):
    """The reply is one text of a certain form and nothing else."""

    form: ClassVar[str] = r"\w+"

    def read(self, text: str) -> str | None:
        text = text.strip(SPACE)
        return text if len(text) <= 40 and re.fullmatch(self.form, text, re.ASCII) else None


class DayAfter(Spelled):
    """Which date is some days after another one? The answer is a date."""

    form = r"\d{4}-\d\d-\d\d"

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        start = date(2030, 1, 1) + timedelta(rng.randrange(5000))
        return start, rng.randint(20, 90 + round(3000 * key.level))

    def question(self, start: date, days: int) -> str:
        return f"Which date is {days} days after {start}? Reply with the date only, as YYYY-MM-DD."

    def solved(self, start: date, days: int) -> str:
        return str(start + timedelta(days))


class FractionSum(Spelled):
    """Add two fractions; the answer is a fraction in lowest terms."""

    form = r"\d{1,6}/\d{1,6}"

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        most = 20 + round(75 * key.level)
        while True:
            one, two = rng.randint(3, most), rng.randint(3, most)
            content = rng.randrange(1, one), one, rng.randrange(1, two), two
            if (Fraction(*content[:2]) + Fraction(*content[2:])).denominator > 1:
                return content

    def question(self, a: int, b: int, c: int, d: int) -> str:
        return f"What is {a}/{b} + {c}/{d}? Reply with a fraction in lowest terms, such as 22/7."

    def solved(self, a: int, b: int, c: int, d: int) -> str:
        total = Fraction(a, b) + Fraction(c, d)
        return f"{total.numerator}/{total.denominator}"


class ColumnName(Spelled):
    """Which letters stand over a column of a spreadsheet? The answer is a word of capitals."""

    form = r"[A-Z]{1,6}"

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randint(100, 20_000 + round(5_000_000 * key.level)),)

    def question(self, number: int) -> str:
        return (
            "The columns of a spreadsheet are A to Z, then AA, AB and so on. "
            f"Which letters has column {number}? Reply with the letters only."
        )

    def solved(self, number: int) -> str:
        letters = ""
        while number:
            number, rest = divmod(number - 1, 26)
            letters = chr(ord("A") + rest) + letters
        return letters


class NetworkOf(Spelled):
    """Which network does an address belong to? Odd prefixes are more frequent at higher levels."""

    form = r"(\d{1,3}\.){3}\d{1,3}"

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            prefix = rng.choice((16, 24)) if rng.random() > key.level else rng.randint(9, 30)
            address = str(ipaddress.IPv4Address(rng.randrange(2**24, 223 * 2**24)))
            if self.solved(address, prefix) != address:
                return address, prefix

    def question(self, address: str, prefix: int) -> str:
        return f"What is the network address of {address}/{prefix}? Reply with that address only."

    def solved(self, address: str, prefix: int) -> str:
        return str(ipaddress.ip_interface(f"{address}/{prefix}").network.network_address)


class MostCoins(Spelled):
    """Who has the most coins after some gifts? The answer is a name of the prompt."""

    form = r"[A-Z][a-z]+"
    answer_in_prompt = True

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            names = rng.sample(PEOPLE, 4)
            gifts = tuple(
                (*rng.sample(names, 2), rng.randint(2, 30)) for _ in range(3 + round(9 * key.level))
            )
            held = sorted(self.holdings(tuple(names), gifts).values())
            if held[-1] > held[-2]:
                return tuple(names), gifts

    def holdings(self, names: tuple[str, ...], gifts: tuple[Any, ...]) -> dict[str, int]:
        held = dict.fromkeys(names, 500)
        for giver, taker, coins in gifts:
            held[giver] -= coins
            held[taker] += coins
        return held

    def question(self, names: tuple[str, ...], gifts: tuple[Any, ...]) -> str:
        told = " ".join(f"{giver} gives {taker} {coins} coins." for giver, taker, coins in gifts)
        return (
            f"{', '.join(names)} have 500 coins each. {told} "
            "Who has the most coins then? Reply with the name only."
        )

    def solved(self, names: tuple[str, ...], gifts: tuple[Any, ...]) -> str:
        held = self.holdings(names, gifts)
        return max(held, key=lambda name: held[name])


class Jsonic(Quiz):
    """The reply is a JSON value."""

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=1000)
        return None if value is None else value.value

    def accepts(self, truth: Any, answer: Any) -> bool:
        return json.dumps(answer, sort_keys=True) == json.dumps(truth, sort_keys=True)

    def reference(self, task: Task[Any]) -> str:
        return json.dumps(task.data)


class Invoice(Jsonic):
    """Net, tax and total of an invoice, in cents; the answer is a JSON object."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        count = 2 + round(4 * key.level)
        lines = tuple((rng.randint(2, 40), rng.randint(101, 9999)) for _ in range(count))
        return lines, rng.choice((7, 19))

    def question(self, lines: tuple[Any, ...], rate: int) -> str:
        table = "\n".join(f"{count} pieces at {price} cents" for count, price in lines)
        return (
            f"{table}\nTax: {rate} % of the net amount, rounded down to a whole cent.\nReply with "
            'JSON and nothing else, in cents: {"net": ..., "tax": ..., "total": ...}'
        )

    def solved(self, lines: tuple[Any, ...], rate: int) -> dict[str, int]:
        net = sum(count * price for count, price in lines)
        return {"net": net, "tax": net * rate // 100, "total": net + net * rate // 100}


class PrimeFactors(Jsonic):
    """The prime factors of a number; the answer is a JSON list."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (prod(rng.choices(PRIMES, k=4 + round(4 * key.level))),)

    def question(self, number: int) -> str:
        return (
            f"Which primes have the product {number}? Reply with a JSON list of them, "
            "the smallest first, each as often as it divides the number."
        )

    def solved(self, number: int) -> list[int]:
        factors = []
        for prime in PRIMES:
            while number % prime == 0:
                number //= prime
                factors.append(prime)
        return factors


class KilnSwing(Quiz):
    """Highest minus lowest of some readings; the answer is marked at the end of a free text."""

    max_new_tokens = 256

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        tenths = rng.sample(range(5000, 10_000), 4 + round(20 * key.level))
        return (tuple(str(Decimal(number) / 10) for number in tenths),)

    def question(self, readings: tuple[str, ...]) -> str:
        return (
            f"A kiln had these temperatures: {', '.join(readings)}. What is the difference between "
            "the highest and the lowest one? You may think first. End with a line 'Answer: N'."
        )

    def solved(self, readings: tuple[str, ...]) -> Decimal:
        values = list(map(Decimal, readings))
        return max(values) - min(values)

    def read(self, text: str) -> Decimal | None:
        mark, last = "Answer: ", text.strip(SPACE).split("\n")[-1]
        if text.count("Answer:") != 1 or not last.startswith(mark):
            return None
        return parse_decimal(last.removeprefix(mark), max_digits=12)

    def reference(self, task: Task[Any]) -> str:
        return f"I compare the highest and the lowest one.\nAnswer: {task.data}"


def spans() -> Mapping[str, list[tuple[int, int, int]]]:
    """Return different times of day for each split."""
    rng = random.Random("spans")
    rows = sorted(
        {(rng.randint(1, 23), rng.randrange(60), rng.randrange(60)) for _ in range(12_000)}
    )
    rng.shuffle(rows)
    return {
        "train": [row for row in rows if not held_out(repr(row))],
        "eval": [row for row in rows if held_out(repr(row))],
    }


class Seconds(Quiz):
    """A list with an end: how many seconds are some hours, minutes and seconds?"""

    levels = False
    rows: ClassVar[Mapping[str, list[tuple[int, int, int]]]] = spans()

    def size(self, split: str) -> int:
        return len(self.rows[split])

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return self.rows[key.split][key.index]

    def question(self, hours: int, minutes: int, seconds: int) -> str:
        return (
            f"How many seconds are {hours} h {minutes} min {seconds} s? Reply with the number only."
        )

    def solved(self, hours: int, minutes: int, seconds: int) -> int:
        return 3600 * hours + 60 * minutes + seconds

    def read(self, text: str) -> int | None:
        return parse_integer(text, max_digits=9)


class NearColumns(ColumnName):
    """Columns of which there are some hundreds only."""

    levels = False

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randint(100, 350),)


class SummitSentence(Quiz):
    """How far is a summit above a lake? A judge compares a sentence with the truth."""

    needs = frozenset({"judge"})
    levels = False
    max_new_tokens = 100

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        numbers = tuple(rng.sample(range(100, 1000), 3))
        return (numbers,)

    def question(self, numbers: tuple[int, ...]) -> str:
        first, second, third = numbers
        return (
            f"A hut stands {first} m above a lake, a pass {second} m above the hut and a summit "
            f"{third} m above the pass. Say in one sentence how far the summit is above the lake."
        )

    def solved(self, numbers: tuple[int, ...]) -> str:
        return f"The summit is {sum(numbers)} metres above the lake."

    def read(self, text: str) -> str | None:
        return text.strip()[:300] or None

    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        score = 0.0 if answer is None else await self.score(task, answer)
        return Verdict({"reward": Reward(score)}, passed=score == 1, answer=(answer or "")[:100])

    async def score(self, task: Task[Any], answer: str) -> float:
        (judgement,) = await self.services.judge().judge([self.request(task, answer)])
        if judgement.error is not None:
            raise RuntimeError(judgement.error)
        return judgement.score

    def request(self, task: Task[Any], answer: str) -> JudgeRequest:
        return JudgeRequest(answer, rubric="The same fact?", reference=task.data)


def same_fact(request: JudgeRequest) -> float:
    """Score as a judge does that reads exactly."""
    return float(request.candidate == request.reference)


FIELDS = ("amount", "weight", "days")
ABORTED = 20_000  # steps of the virtual machine


class OrdersQuery(Quiz):
    """Asks for a query in SQL, which is run on tables that are drawn for each step."""

    levels = False
    max_new_tokens = 100

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return *rng.sample(FIELDS, 2), rng.randint(100, 9999)

    def question(self, summed: str, field: str, limit: int) -> str:
        return (
            f"A table orders has the whole numbers {', '.join(FIELDS)}. Write one SELECT for "
            f"SQLite that returns the sum of {summed} of all orders with more than {limit} {field}."
        )

    def solved(self, summed: str, field: str, limit: int) -> tuple[str, str, int]:
        return summed, field, limit

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        rng, right = task.rng(), True
        for _ in range(3):
            rows = self.table(task, rng)
            right = right and self.result(rollout.text, rows) == self.total(task, rows)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:200])

    def table(self, task: Task[Any], rng: random.Random) -> list[tuple[int, ...]]:
        """Return rows about the limit: for each column just below, at and above it."""
        near = [task.data[2] + step for step in range(-2, 3)]
        rows = [tuple(rng.choice(near) for _ in FIELDS) for _ in range(12)]
        return rows + [(below, below, below) for below in near]

    def total(self, task: Task[Any], rows: list[tuple[int, ...]]) -> int:
        summed, field = map(FIELDS.index, task.data[:2])
        return sum(row[summed] for row in rows if row[field] > task.data[2])

    def result(self, query: str, rows: list[tuple[int, ...]]) -> int | None:
        """Return what the query finds, in a database in memory that it can only read."""
        if len(query) > 500 or not is_text(query):
            return None
        with closing(sqlite3.connect(":memory:")) as base:
            base.execute(f"CREATE TABLE orders ({', '.join(FIELDS)})")
            base.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
            base.set_authorizer(may_read)
            base.set_progress_handler(lambda: 1, ABORTED)
            try:
                found = base.execute(query).fetchmany(2)
            except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError):
                return None
        if len(found) == 1 and len(found[0]) == 1 and isinstance(found[0][0], int):
            return found[0][0]
        return None

    def reference(self, task: Task[Any]) -> str:
        summed, field, limit = task.data
        return f"SELECT SUM({summed}) FROM orders WHERE {field} > {limit}"


def may_read(action: int, one: str | None, two: str | None, *_: str | None) -> int:
    """Allow what reads the table, and sums."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and two in ("sum", "total", "coalesce"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
