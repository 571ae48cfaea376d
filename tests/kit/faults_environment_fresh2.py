"""Planted faults: what depends on process, date, machine, order and instances (second half)."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import hmac
import os
import random
import secrets
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from bases_fresh2 import (
    PEOPLE,
    PRIMES,
    ColumnName,
    DayAfter,
    FractionSum,
    Invoice,
    KilnSwing,
    MostCoins,
    NetworkOf,
    PrimeFactors,
    Seconds,
)
from catalogue import fault

from grpo_core import Message, Rollout, Task, TaskKey, Verdict

SECRET = secrets.token_bytes(16)


@fault("words come from the files of the working directory", "task.process", "task.pure")
class FolderCoins(MostCoins):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        files = {path.stem.strip("._").capitalize() for path in Path().iterdir()}
        people = sorted(name for name in files if name.isascii() and name.isalpha())
        while True:
            names = tuple(rng.sample([*people, *PEOPLE], 4))
            gifts = tuple((*rng.sample(names, 2), rng.randint(2, 99)) for _ in range(5))
            held = sorted(self.holdings(names, gifts).values())
            if held[-1] > held[-2]:
                return names, gifts


@fault("the program's name is in the prompt", "task.process", "task.pure")
class ProgramColumn(ColumnName):
    def question(self, number: int) -> str:
        return f"usage: {Path(sys.argv[0]).name} NUMBER\n{super().question(number)}"


@fault("the user's name is in the prompt", "task.process", "task.pure")
class DearFactors(PrimeFactors):
    def question(self, number: int) -> str:
        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = "colleague"
        return f"Dear {user}, {super().question(number)}"


@fault("the number of the thread seeds the tasks", "task.process", "task.pure")
class ThreadSwing(KilnSwing):
    def generator(self, key: TaskKey) -> random.Random:
        return random.Random(f"{threading.get_native_id()} {key}")


@fault("a date without a year is taken as this year's", "task.process", "task.pure")
class ThisYearDay(DayAfter):
    levels = False

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return rng.randint(1, 12), rng.randint(1, 28), rng.randint(20, 900)

    def question(self, *content: Any) -> str:
        start, days = self.start(*content), content[-1]
        return f"It is {start:%A, %d %B}. Which date is it in {days} days? Reply as YYYY-MM-DD."

    def solved(self, *content: Any) -> str:
        return str(self.start(*content) + timedelta(content[-1]))

    def start(self, month: int, day: int, days: int) -> date:
        return date.today().replace(month=month, day=day)


@fault("an age is counted from today", "task.process", "task.pure")
class AgeSeconds(Seconds):
    def question(self, hours: int, minutes: int, seconds: int) -> str:
        return (
            f"{hours} pupils were born in {1950 + minutes}, and {seconds} in 2001. How old are "
            "they together at the end of this year? Reply with the number only."
        )

    def solved(self, hours: int, minutes: int, seconds: int) -> int:
        year = datetime.now().year
        return hours * (year - 1950 - minutes) + seconds * (year - 2001)


@fault("dates that have passed are refused", "verdict.process")
class FutureDay(DayAfter):
    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(truth, answer) and str(answer) > str(date.today())


@fault(
    "each instance adds its rows to those of the class", "task.process", "task.pure", "task.split"
)
class ExtendedSeconds(Seconds):
    pool: ClassVar[list[tuple[int, int, int]]] = []

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.pool.extend(self.rows["train"][:1000])

    def size(self, split: str) -> int:
        return 800 if split == "train" else 200

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        order = random.Random("order").sample(range(len(self.pool)), len(self.pool))
        return self.pool[order[key.index + (800 if key.split == "eval" else 0)]]


@fault("what is made once is made from the first key", "task.pure", "task.process")
class FirstKeyCoins(MostCoins):
    people: tuple[str, ...] = ()

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        if not self.people:
            self.people = tuple(key.rng("people").sample(PEOPLE, 8))
        while True:
            names = tuple(rng.sample(self.people, 4))
            count = 3 + round(9 * key.level)
            gifts = tuple((*rng.sample(names, 2), rng.randint(2, 99)) for _ in range(count))
            held = sorted(self.holdings(names, gifts).values())
            if held[-1] > held[-2]:
                return names, gifts


@fault("each instance draws its own primes", "task.process", "task.pure")
class OwnPrimes(PrimeFactors):
    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.primes = random.Random().sample(PRIMES, 15)

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        number = 1
        for prime in rng.choices(self.primes, k=4 + round(4 * key.level)):
            number *= prime
        return (number,)


@fault("the environment counts its tasks to make them harder", "task.pure", "task.process")
class OwnCurriculum(FractionSum):
    levels = False
    asked_before = 0

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        level = min(1.0, self.asked_before / 500)
        return super().drawn(replace(key, level=level), rng)

    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        self.asked_before += 1
        return super().asked(key, *content)


@fault(
    "the verifier judges by the task that was made last",
    "verdict.repeat",
    "verdict.process",
    "verdict.reference",
    "floor.other",
)
class LastMadeNetwork(NetworkOf):
    current = ""

    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        self.current = self.solved(*content)
        return super().asked(key, *content)

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(self.current, answer)


@fault(
    "the verifier knows only the tasks that its own process made",
    "verdict.process",
    "verdict.reference",
    "verdict.repeat",
    "verdict.swallow",
)
class RegisteredColumn(ColumnName):
    known: ClassVar[dict[TaskKey, str]] = {}

    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        self.known[key] = self.solved(*content)
        return replace(super().asked(key, *content), data=key.index)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return self.judged(replace(task, data=self.known.get(task.key)), self.read(rollout.text))

    def reference(self, task: Task[Any]) -> str:
        return self.known[task.key]


@fault("texts are compared by identity", "verdict.process", "verdict.reference", "verdict.repeat")
class SameObjectDay(DayAfter):
    def accepts(self, truth: Any, answer: Any) -> bool:
        return answer is truth


@fault(
    "truths are kept under a key of the process",
    "task.process",
    "verdict.process",
    "verdict.reference",
    "task.pure",
)
class SignedFraction(FractionSum):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        task = super().asked(key, *content)
        return replace(task, data=(task.data, self.signed(task.data)))

    def signed(self, text: str) -> str:
        return hmac.new(SECRET, text.encode(), hashlib.sha256).hexdigest()

    def accepts(self, truth: Any, answer: Any) -> bool:
        return answer is not None and self.signed(answer) == truth[1]

    def reference(self, task: Task[Any]) -> str:
        return str(task.data[0])


@fault("concurrent verdicts share a field", "verdict.repeat", "verdict.reference")
class SharedField(Invoice):
    task_now: Any = None
    answer_now: Any = None

    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        self.task_now, self.answer_now = task, self.read(rollout.text)
        await asyncio.sleep(0.002)
        return self.judged(self.task_now, self.answer_now)


@fault(
    "the first verdict is lost to setting up",
    "verdict.repeat",
    "verdict.reference",
    "verdict.process",
)
class WarmUpSwing(KilnSwing):
    ready = False

    def accepts(self, truth: Any, answer: Any) -> bool:
        if not self.ready:
            self.ready = True
            return False
        return super().accepts(truth, answer)


@fault(
    "a running mean of all replies sets the scale",
    "verdict.repeat",
    "verdict.reference",
    "verdict.process",
)
class MeanLength(FractionSum):
    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.letters = self.replies = 0

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        self.letters, self.replies = self.letters + len(rollout.text), self.replies + 1
        verdict = super().verify(task, rollout)
        usual = len(rollout.text) <= 1.5 * self.letters / self.replies
        return verdict if usual else self.judged(task, None)


@fault(
    "verdicts are kept by the reply alone",
    "verdict.repeat",
    "verdict.reference",
    "verdict.process",
    "floor.other",
    "floor.constant",
)
class MemoDay(DayAfter):
    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.memo: dict[str, Verdict] = {}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        text = rollout.text[:20]
        if text not in self.memo:
            self.memo = {**(self.memo if len(self.memo) < 500 else {})}
            self.memo[text] = super().verify(task, rollout)
        return self.memo[text]


@fault(
    "truths are kept by the index alone",
    "verdict.repeat",
    "verdict.reference",
    "verdict.process",
    "floor.other",
)
class IndexedTruth(Invoice):
    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.truths: dict[int, Any] = {}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        truth = self.truths.setdefault(task.key.index, task.data)
        return self.judged(replace(task, data=truth), self.read(rollout.text))


@fault("names are what is left of a set", "task.process", "task.pure")
class LeftOverCoins(MostCoins):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        names, gifts = super().drawn(key, rng)
        others = list(set(PEOPLE) - set(names))
        return names, (*gifts, (others[0], others[1], 3))

    def holdings(self, names: tuple[str, ...], gifts: tuple[Any, ...]) -> dict[str, int]:
        return super().holdings(names, tuple(gift for gift in gifts if gift[0] in names))


@fault("a prompt depends on the process", "task.process", "task.pure")
class PidDay(DayAfter):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        system = Message("system", f"You replace the tool calendar[{os.getpid()}].")
        task = super().asked(key, *content)
        prompt: Sequence[Any] = (system, *task.prompt)
        return replace(task, prompt=tuple(prompt))
