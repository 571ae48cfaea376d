"""Honest tasks that look odd."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from bases_fresh import LETTERS, Arrival, Asks, Basket, Binary, Initials, Shifted, scrambled
from catalogue import honest

from grpo_core import Environment, Group, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_decimal, parse_integer, parse_json, xml_tag

# What is asked


@honest("the answer is a time, and may be after midnight")
class NightTrains(Arrival):
    pass


@honest("higher levels have shorter prompts, because a table of help is missing")
class TableFadesOut(Shifted):
    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        _, steps = content
        shown = round(26 * (1 - key.level))
        table = ", ".join(
            f"{LETTERS[(place + steps) % 26]} stands for {LETTERS[place]}" for place in range(shown)
        )
        text = f"{self.question(*content)} Reply with the text only. {table}".strip()
        return Task(key, (Message("user", text),), self.solution(*content))


@honest("the level is in the content alone: the greatest divisor takes more steps of Euclid")
class MoreStepsOfEuclid(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            one, two = (divisor := rng.randrange(13, 400)), 0
            for _ in range(3 + round(7 * key.level)):
                one, two = one * rng.randrange(1, 4) + two, one
            if str(divisor) not in f"{one} {two}":
                return one, two

    def question(self, *content: Any) -> str:
        return "What is the greatest common divisor of {} and {}? Digits only.".format(*content)

    def solution(self, *content: Any) -> str:
        return str(math.gcd(*content))


@lru_cache(maxsize=64)
def next_prime(number: int) -> int:
    """Return the next prime above a number."""
    number += 1
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number


@honest("a pure function is cached, for 64 arguments at most")
class PrimesAreCached(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (rng.randrange(400, 2000 + round(200_000 * key.level)),)

    def question(self, *content: Any) -> str:
        return f"Which is the smallest prime above {content[0]}? Digits only."

    def solution(self, *content: Any) -> str:
        return str(next_prime(content[0]))


@honest("a system message has the rules")
class RulesFirst(Binary):
    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        prompt = (
            Message("system", "You convert numbers. You reply with digits and nothing else."),
            Message("user", f"{content[0]:b}"),
        )
        return Task(key, prompt, self.solution(*content))


@honest("two fixed examples stand before the question, larger than any that is asked")
class TwoExamples(Basket):
    examples = (
        (("gold", 99_999), ("silver", 77_777)),
        (("ruby", 12_121), ("pearl", 23_232), ("opal", 34_343)),
    )

    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        turns: list[Message] = []
        for example in self.examples:
            turns += (Message("user", self.question(*example)),)
            turns += (Message("assistant", self.solution(*example)),)
        prompt = (*turns, Message("user", self.question(*content)))
        return Task(key, prompt, self.solution(*content))


@honest("prompts are logs of up to some hundred lines")
class LongLogs(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        names = ("read", "write", "seek", "close", "open")
        lines = 20 + round(300 * key.level)
        drawn = [(rng.choice(names), rng.randrange(100, 1000)) for _ in range(lines)]
        return (*drawn, ("seek", 990), ("seek", 980))

    def question(self, *content: Any) -> str:
        lines = "\n".join(f"op={name} ms={ms}" for name, ms in content)
        return f"{lines}\nHow many ms did all seek operations take? Reply with digits only."

    def solution(self, *content: Any) -> str:
        return str(sum(ms for name, ms in content if name == "seek"))


def _river_rows() -> list[tuple[str, int, int]]:
    rng = random.Random("rivers")
    return [
        (scrambled(rng, 5).capitalize(), rng.randrange(1001, 4000), rng.randrange(3, 30))
        for _ in range(300)
    ]


@honest("a list of rows in memory, with an integer size()")
class RowsInMemory(Asks):
    levels = False
    rows = _river_rows()

    def size(self, split: str) -> int:
        return 240 if split == "train" else 60

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        if not 0 <= key.index < self.size(key.split):
            raise IndexError(key.index)
        return self.rows[key.index + (240 if key.split == "eval" else 0)]

    def question(self, *content: Any) -> str:
        river, metres, hours = content
        return f"The {river} flows {metres} m in an hour. How many m in {hours} hours? Digits only."

    def solution(self, *content: Any) -> str:
        return str(content[1] * content[2])


@honest("dates come from the key, and not from the clock")
class DatesOfTheKey(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        first = date(1901, 1, 1) + timedelta(days=rng.randrange(60_000))
        return (first, first + timedelta(days=rng.randrange(400, 700 + round(20_000 * key.level))))

    def question(self, *content: Any) -> str:
        return "How many days after {} is {}? Reply with digits only.".format(*content)

    def solution(self, *content: Any) -> str:
        return str((content[1] - content[0]).days)


@honest("the answer stands in the prompt, as is declared")
class LastInTheAlphabet(Asks):
    answer_in_prompt = True

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        start = scrambled(rng, round(3 * key.level))
        return tuple(start + scrambled(rng, 4) for _ in range(4 + round(6 * key.level)))

    def question(self, *content: Any) -> str:
        return f"Which comes last in the alphabet? {' '.join(content)}"

    def solution(self, *content: Any) -> str:
        return str(max(content))


@honest("the prompt is raw text, for base models")
class RawTextPrompt(Arrival):
    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        text = f"Question: {self.question(*content)}\nAnswer:"
        return Task(key, text, self.solution(*content))


@honest("there are few tasks, because there are no more signs, and the check is waived")
class AllOfMorse(Asks):
    levels = False
    waived: ClassVar[Mapping[str, str]] = {"task.variety": "there are 26 letters and no more"}
    signs = (
        *(".-", "-...", "-.-.", "-..", ".", "..-.", "--.", "....", "..", ".---", "-.-", ".-.."),
        *("--", "-.", "---", ".--.", "--.-", ".-.", "...", "-", "..-", "...-", ".--", "-..-"),
        *("-.--", "--.."),
    )
    held = "bkqx"

    def size(self, split: str) -> int:
        return 22 if split == "train" else 4

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        letters = [one for one in LETTERS if (one in self.held) == (key.split == "eval")]
        return (letters[key.index],)

    def question(self, *content: Any) -> str:
        sign = self.signs[LETTERS.index(content[0])]
        return f"MORSE: {sign} IS WHICH LETTER? TYPE IT IN LOWER CASE, THREE TIMES"

    def solution(self, *content: Any) -> str:
        return 3 * str(content[0])


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of ConfiguredSums."""

    most: int = 4
    """How many numbers the hardest sum has."""


@honest("settings decide what is asked")
class ConfiguredSums(Asks):
    Config: ClassVar = Settings

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        count = 2 + round((self.config.most - 2) * key.level)
        return tuple(rng.choice((-1, 1)) * rng.randrange(10, 1000) for _ in range(count))

    def question(self, *content: Any) -> str:
        return f"Add the numbers {', '.join(map(str, content))}, and 8000. Digits only."

    def solution(self, *content: Any) -> str:
        return str(sum(content) + 8000)


@honest("the answer is written in another alphabet")
class GreekLetters(Asks):
    names: ClassVar[dict[str, str]] = {
        "alpha": "α",
        "beta": "β",
        "gamma": "γ",
        "delta": "δ",
        "kappa": "κ",
        "lambda": "λ",
        "mu": "μ",
        "omega": "ω",
        "phi": "φ",
        "pi": "π",
        "rho": "ρ",
        "theta": "θ",
    }

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.choices(sorted(self.names), k=4 + round(8 * key.level)))

    def question(self, *content: Any) -> str:
        return f"Write these letters in Greek, without spaces: {' '.join(content)}"

    def solution(self, *content: Any) -> str:
        return "".join(self.names[name] for name in content)


@honest("the answer has several lines")
class LinesFromLargeToSmall(Asks):
    max_new_tokens = 128

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.sample(range(1000, 10_000), 4 + round(6 * key.level)))

    def question(self, *content: Any) -> str:
        numbers = ", ".join(map(str, content))
        return f"Double each number; write one in a line, the largest first: {numbers}"

    def solution(self, *content: Any) -> str:
        return "\n".join(str(2 * number) for number in sorted(content, reverse=True))


# How it is judged


@honest("a tolerance of 1 % is declared, as for a measurement of an area")
class CircleAreas(Environment[float]):
    tolerance = 0.01
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[float]:
        tenths = 10 * key.rng().randrange(20, 400 + round(9000 * key.level))
        tenths += 3 if key.split == "eval" else key.rng("last").choice((1, 4, 7, 9))
        text = f"What is the area of a circle of radius {tenths / 10} m, to 1 %? In m², a number."
        return Task(key, (Message("user", text),), math.pi * (tenths / 10) ** 2)

    def verify(self, task: Task[float], rollout: Rollout) -> Verdict:
        value = parse_decimal(rollout.text, max_digits=20)
        right = value is not None and abs(float(value) - task.data) <= 0.01 * task.data
        answer = None if value is None else str(value)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=answer)

    def reference(self, task: Task[float]) -> str:
        return f"{task.data:.2f}"


@honest("the policy may think in many words; the last line commits it, as is declared")
class CommitsInTheLastLine(Basket):
    answer_at = "end"
    max_new_tokens = 256

    def question(self, *content: Any) -> str:
        lines = "\n".join(f"{food} {cents}" for food, cents in content)
        return f"Prices in cents:\n{lines}\nThink it over; the last line is 'Total: N'."

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        last = rollout.text.strip().rpartition("\n")[2]
        return self.paid(last == f"Total: {task.data}", last)

    def reference(self, task: Task[str]) -> str:
        return f"I add the prices up.\nTotal: {task.data}"


@honest("many answers are right, and better ones earn more")
class FewestCoins(Environment[int]):
    timeout_seconds = 2.0
    coins = (50, 20, 10, 5, 2, 1)

    def task(self, key: TaskKey) -> Task[int]:
        amount = 5 * key.rng().randrange(21, 60 + round(150 * key.level))
        amount += 3 if key.split == "eval" else key.rng("last").choice((1, 2, 4))
        text = f"Pay {amount} by coins of 50, 20, 10, 5, 2, 1, as few as you can: a JSON list."
        return Task(key, (Message("user", text),), amount)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        parsed = parse_json(rollout.text, max_chars=2000)
        coins: Any = None if parsed is None else parsed.value
        paid = isinstance(coins, list) and all(
            type(coin) is int and coin in self.coins for coin in coins
        )
        right = paid and sum(coins) == task.data
        reward = len(self.fewest(task.data)) / len(coins) if right else 0.0
        return Verdict({"reward": Reward(reward)}, passed=right, answer=rollout.text[:80])

    def fewest(self, amount: int) -> list[int]:
        chosen = []
        for coin in self.coins:
            chosen += [coin] * (amount // coin)
            amount %= coin
        return chosen

    def reference(self, task: Task[int]) -> str:
        return json.dumps(self.fewest(task.data))


@honest("two orders of the same answer are right")
class EitherOrder(Asks):
    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.sample(range(11, 90 + round(900 * key.level)), 2))

    def question(self, *content: Any) -> str:
        total, product = sum(content), math.prod(content)
        return f"Two numbers have the sum {total} and the product {product}: a JSON list of both."

    def solution(self, *content: Any) -> str:
        return json.dumps(content)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        parsed = parse_json(rollout.text, max_chars=100)
        value: Any = None if parsed is None else parsed.value
        numbers = isinstance(value, list) and all(type(number) is int for number in value)
        right = numbers and sorted(value) == sorted(json.loads(task.data))
        return self.paid(right, rollout.text)


@honest("a free explanation may stand before the only block, which ends the reply")
class BlockAfterThoughts(Binary):
    parts: ClassVar[Mapping[str, float]] = {"form": 0.1, "right": 0.9}

    def question(self, *content: Any) -> str:
        return f"{super().question(*content)} End with <n>...</n> around it."

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="n")
        alone = block is not None and not rollout.text[block.end :].strip()
        number = parse_integer(block.content, max_digits=9) if block and alone else None
        right = number is not None and str(number) == task.data
        rewards = {"form": Reward(float(number is not None)), "right": Reward(float(right))}
        return Verdict(rewards, passed=right, answer=None if number is None else str(number))

    def reference(self, task: Task[str]) -> str:
        return f"I add the powers of two. <n>{task.data}</n>"


@dataclass(frozen=True, slots=True)
class Field:
    """What the verifier of Fields knows."""

    wide: int
    high: int


@honest("the data are an object of a class of its own")
class Fields(Environment[Field]):
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Field]:
        rng, top = key.rng(), 100 + round(5000 * key.level)
        sides = sorted((rng.randrange(30, top), rng.randrange(30, top)))
        sides[0] = 2 * sides[0] + (key.split == "eval")
        field = Field(sides[0], 2 * sides[1])
        text = f"A field is {field.wide} m wide, {field.high} m high. Its area? Digits only."
        return Task(key, (Message("user", text),), field)

    def verify(self, task: Task[Field], rollout: Rollout) -> Verdict:
        right = parse_integer(rollout.text, max_digits=12) == task.data.wide * task.data.high
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])

    def reference(self, task: Task[Field]) -> str:
        return str(task.data.wide * task.data.high)


@honest("it verifies without blocking, though it asks no service")
class VerifiesLater(Initials):
    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return self.paid(rollout.text.strip() == task.data, rollout.text)


@honest("it verifies whole batches, in another order than they come")
class VerifiesBatches(Shifted):
    async def verify_batch(self, groups: Sequence[Group[str]]) -> list[list[Verdict]]:
        verdicts = [
            [self.verify(group.task, rollout) for rollout in reversed(group.rollouts)]
            for group in reversed(groups)
        ]
        return [group[::-1] for group in verdicts[::-1]]


@honest("a data base in memory is opened and closed for each verdict")
class AsksADataBase(Basket):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        number = parse_integer(rollout.text, max_digits=9)
        with closing(sqlite3.connect(":memory:")) as base:
            base.execute("create table sums (cents integer)")
            base.execute("insert into sums values (?)", (int(task.data),))
            found = base.execute("select 1 from sums where cents = ?", (number,)).fetchone()
        return self.paid(found is not None, rollout.text)


@honest("a temporary folder is used and removed")
class DraftsAreRemoved(Shifted):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        with tempfile.TemporaryDirectory(prefix="draft-") as folder:
            path = Path(folder, "reply")
            path.write_bytes(rollout.text.strip().encode("utf-8", "replace"))
            right = path.read_bytes() == task.data.encode()
        return self.paid(right, rollout.text)
