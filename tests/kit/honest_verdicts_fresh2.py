"""Honest designs: verdicts that look odd and are right (the second fresh half)."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

from bases_fresh2 import (
    SPACE,
    ColumnName,
    DayAfter,
    FractionSum,
    Invoice,
    Jsonic,
    KilnSwing,
    MostCoins,
    NetworkOf,
    OrdersQuery,
    PrimeFactors,
    Quiz,
    Seconds,
    SummitSentence,
    same_fact,
)
from catalogue import honest

from grpo_core import Message, Reward, Rollout, Rubric, Task, TaskKey, Verdict
from grpo_core.extract import parse_decimal, xml_tag
from grpo_core.protocol.environment import Alarm, Services
from grpo_core.protocol.types import Group
from grpo_core.testing import FakeJudge

COINS = (1, 2, 5, 10, 20, 50, 100, 200)


@honest("a query is run in a database in memory that it can only read, on rows of each step")
class ReadOnlyOrders(OrdersQuery):
    pass


@honest(
    "a judge that compares a sentence with the truth is all that scores",
    build=lambda: JudgedSummit(services=Services(judges={"default": FakeJudge(same_fact)})),
)
class JudgedSummit(SummitSentence):
    pass


@honest("things worth more than half of the best choice are paid by their worth, and the best pass")
class Knapsack(Jsonic):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        count = 5 + round(5 * key.level)
        things = tuple((rng.randint(11, 99), rng.randint(101, 999)) for _ in range(count))
        return things, sum(weight for weight, _ in things) // 2

    def question(self, things: tuple[Any, ...], limit: int) -> str:
        table = "\n".join(
            f"{number}: {weight} kg, worth {worth}"
            for number, (weight, worth) in enumerate(things, 1)
        )
        return (
            f"{table}\nChoose things of at most {limit} kg that are worth as much as possible. "
            "Reply with a JSON list of their numbers, in any order."
        )

    def solved(self, things: tuple[Any, ...], limit: int) -> Any:
        choices = product((False, True), repeat=len(things))
        best = max(choices, key=lambda choice: self.worth(things, limit, choice))
        numbers = [number for number, chosen in enumerate(best, 1) if chosen]
        return things, limit, numbers

    def worth(self, things: tuple[Any, ...], limit: int, choice: Sequence[bool]) -> int:
        chosen = [thing for thing, taken in zip(things, choice, strict=True) if taken]
        fits = sum(weight for weight, _ in chosen) <= limit
        return sum(worth for _, worth in chosen) if fits else 0

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        things, limit, best = task.data
        taken = self.choice(len(things), answer)
        most = self.worth(things, limit, self.choice(len(things), best))
        share = self.worth(things, limit, taken) / most
        rewards = {"reward": Reward(max(0.0, 2 * share - 1))}
        return Verdict(rewards, passed=share == 1, answer=json.dumps(answer)[:100])

    def choice(self, count: int, answer: Any) -> list[bool]:
        """Return which things are taken: none of them where the answer is not well formed."""
        if not isinstance(answer, list) or any(type(item) is not int for item in answer):
            return [False] * count
        if len(set(answer)) < len(answer) or not set(answer) <= set(range(1, count + 1)):
            return [False] * count
        return [number in answer for number in range(1, count + 1)]

    def reference(self, task: Task[Any]) -> str:
        return json.dumps(task.data[2])


@honest("an absolute tolerance is declared as the largest relative one that it comes to")
class RoughSwing(KilnSwing):
    tolerance = 0.05

    def question(self, readings: tuple[str, ...]) -> str:
        return f"{super().question(readings)} An error of 0.05 is allowed."

    def accepts(self, truth: Any, answer: Any) -> bool:
        return answer is not None and abs(answer - truth) <= Decimal("0.05")


@honest("what has no form costs a half, and a wrong number nothing, as the range says")
class HalfPenalty(Seconds):
    reward_range = (-0.5, 1.0)
    floor = -0.5

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        value = -0.5 if answer is None else float(verdict.passed)
        return replace(verdict, rewards={"reward": Reward(value)})

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return "", f"{task.data} or {task.data + 1}", f"= {task.data}"


@honest("equal replies of a group are judged once, and each gets its verdict")
class SharedVerdicts(PrimeFactors):
    async def verify_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        results = []
        for group in groups:
            texts = sorted({rollout.text for rollout in group.rollouts})
            found = {text: self.judged(group.task, self.read(text)) for text in texts}
            results.append([found[rollout.text] for rollout in group.rollouts])
        return results


@honest("many verdicts are waited for at once, and share nothing")
class GatheredVerdicts(MostCoins):
    async def verify_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        async def one(task: Task[Any], rollout: Rollout) -> Verdict:
            await asyncio.sleep(0.001 * (len(rollout.text) % 3))
            return self.judged(task, self.read(rollout.text))

        return [
            await asyncio.gather(*(one(group.task, rollout) for rollout in group.rollouts))
            for group in groups
        ]


@honest("decimals are computed with many digits, in a context that ends")
class ExactSwing(KilnSwing):
    def accepts(self, truth: Any, answer: Any) -> bool:
        with localcontext() as context:
            context.prec = 60
            return answer is not None and Decimal(answer) - truth == 0


@honest("the time zone is set while a date is read, and set back whatever happens")
class ZonedDay(DayAfter):
    def accepts(self, truth: Any, answer: Any) -> bool:
        before = os.environ.get("TZ")
        try:
            os.environ["TZ"] = "UTC"
            time.tzset()
            return answer is not None and self.noon(answer) == self.noon(truth)
        finally:
            if before is None:
                del os.environ["TZ"]
            else:
                os.environ["TZ"] = before
            time.tzset()

    def noon(self, text: str) -> float | None:
        try:
            return datetime.fromisoformat(f"{text}T12:00").timestamp()
        except (ValueError, OverflowError):
            return None


@honest("the answer is a table in CSV, with quotes or without")
class QuotedTable(Quiz):
    max_new_tokens = 200

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        count = 3 + round(5 * key.level)
        return (tuple((rng.randint(100, 999), rng.randint(100, 999)) for _ in range(count)),)

    def question(self, pairs: tuple[Any, ...]) -> str:
        told = "; ".join(f"{one} and {two}" for one, two in pairs)
        return (
            f"Pairs: {told}. Reply with CSV of three columns and without a header, a line for "
            "each pair in this order: the first number, the second one, and their sum."
        )

    def solved(self, pairs: tuple[Any, ...]) -> list[list[str]]:
        return [[str(one), str(two), str(one + two)] for one, two in pairs]

    def read(self, text: str) -> Any:
        if len(text) > 1000 or "\0" in text:
            return None
        try:
            return list(csv.reader(io.StringIO(text.strip(SPACE)), strict=True))
        except csv.Error:
            return None

    def reference(self, task: Task[Any]) -> str:
        return "\n".join(map(",".join, task.data))


@honest("a date may be written in two ways, as the prompt says")
class TwoDates(DayAfter):
    form = r"\d{4}-\d\d-\d\d|\d\d\.\d\d\.\d{4}"

    def question(self, start: date, days: int) -> str:
        ask = f"Which date is {days} days after {start}? Reply with the date only"
        return f"{ask}, either as YYYY-MM-DD or as DD.MM.YYYY."

    def accepts(self, truth: Any, answer: Any) -> bool:
        year, month, day = truth.split("-")
        return answer in (truth, f"{day}.{month}.{year}")


@honest("any equal fraction is right, and a decimal number that ends, as the prompt says")
class AnyFraction(FractionSum):
    def question(self, a: int, b: int, c: int, d: int) -> str:
        return (
            f"What is {a}/{b} + {c}/{d}? Reply with the exact value only: a fraction p/q, "
            "which need not be in lowest terms, or a decimal number."
        )

    def read(self, text: str) -> Any:
        found = super().read(text)
        if found is not None:
            over, _, under = found.partition("/")
            return Fraction(int(over), int(under)) if int(under) else None
        number = parse_decimal(text)
        return None if number is None else Fraction(number)

    def accepts(self, truth: Any, answer: Any) -> bool:
        return answer is not None and answer == Fraction(truth)


@honest("any coins that make up the amount are right, the fewest or not, as the prompt says")
class AnyCoins(Jsonic):
    max_new_tokens = 256

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.sample(COINS[2:], 3)), rng.randint(400, 900 + round(3000 * key.level))

    def question(self, rare: tuple[int, ...], amount: int) -> str:
        return (
            f"Pay {amount} cents with coins of {', '.join(map(str, COINS))} cents, with at least "
            f"one of {rare[0]}, {rare[1]} and {rare[2]} cents each, and at most 60 coins. "
            "Reply with a JSON list of the coins, in any order."
        )

    def solved(self, rare: tuple[int, ...], amount: int) -> Any:
        coins, rest = list(rare), amount - sum(rare)
        for coin in reversed(COINS):
            coins += [coin] * (rest // coin)
            rest %= coin
        return list(rare), amount, coins

    def accepts(self, truth: Any, answer: Any) -> bool:
        rare, amount, _ = truth
        if not isinstance(answer, list) or len(answer) > 60:
            return False
        if any(type(coin) is not int or coin not in COINS for coin in answer):
            return False
        return sum(answer) == amount and not Counter(rare) - Counter(answer)

    def reference(self, task: Task[Any]) -> str:
        return json.dumps(task.data[2])


@honest("tasks that cannot be done have data that no reply can equal")
class ImpossibleColumn(ColumnName):
    def canaries(self) -> Sequence[Task[Any]]:
        prompt = (Message("user", "Which letters has the column before column 1?"),)
        return (Task(TaskKey("columns", "eval", 0), prompt, "no column"),)


@honest("an audit is stricter than the verdict, and is never paid for")
class AuditedNetwork(NetworkOf):
    def audit(self, task: Task[Any], rollout: Rollout) -> float:
        return float(rollout.text == task.data)


@honest("metrics, details and an alarm go with each verdict, and decide nothing")
class WatchedFraction(FractionSum):
    alarms = (Alarm("reply/letters", 60.0, "replies have {value:.0f} letters; look at some"),)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        found = re.findall("[0-9]+", rollout.text[:200])[:3]
        metrics = {"reply/letters": float(len(rollout.text)), "reply/numbers": float(len(found))}
        return replace(verdict, metrics=metrics, detail={"numbers": found, "limit": None})


@honest("three parts whose weights have no exact sum, and one of them decides what passes")
class WeighedInvoice(Invoice):
    parts: ClassVar[Mapping[str, float]] = {"total": 0.7, "keys": 0.1, "tax": 0.2}

    @cached_property
    def rubric(self) -> Any:
        return Rubric(
            {"total": self.all_right, "keys": self.keys_right, "tax": self.tax_right},
            weights=self.parts,
            passed="total",
        )

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict: Verdict = self.rubric(task.data, answer)
        return replace(verdict, answer=json.dumps(answer)[:100])

    def all_right(self, truth: Any, answer: Any) -> bool:
        return self.accepts(truth, answer)

    def keys_right(self, truth: Any, answer: Any) -> bool:
        return isinstance(answer, dict) and set(answer) == set(truth)

    def tax_right(self, truth: Any, answer: Any) -> tuple[bool, str]:
        given = answer.get("tax") if self.keys_right(truth, answer) else None
        return type(given) is int and given == truth["tax"], f"expected {truth['tax']}"


@honest("the reference is a sequence of one turn")
class ListedReference(ColumnName):
    def reference(self, task: Task[Any]) -> Any:
        return (task.data,)


@honest("it is fast, bounded and trusted, so it may run in the trainer's process")
class TrustedSeconds(Seconds):
    trusted = True
    timeout_seconds = 0.5


@honest("what the verifier prints while it reads is caught, and set back")
class CaughtPrint(PrimeFactors):
    def accepts(self, truth: Any, answer: Any) -> bool:
        with redirect_stdout(io.StringIO()):
            print("compared:", len(truth))
            return super().accepts(truth, answer)


@honest("thoughts of any kind come first, and the only block ends the reply")
class BlockedNetwork(NetworkOf):
    max_new_tokens = 200

    def question(self, address: str, prefix: int) -> str:
        ask = super().question(address, prefix).partition(" Reply")[0]
        return f"{ask} Think first if you like, then end with <net>the address</net>."

    def read(self, text: str) -> str | None:
        block = xml_tag(text, tag="net")
        if block is None or text[block.end :].strip(SPACE):
            return None
        return super().read(block.content)

    def reference(self, task: Task[Any]) -> str:
        return f"The bits behind the prefix become 0.\n<net>{task.data}</net>"
