"""Planted faults of the fourth fresh part: what tasks and verdicts depend on."""

from __future__ import annotations

import locale
import os
import random
import resource
import string
from collections.abc import Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from bases_talk_fresh4 import Batch, Heaviest, Registers, Resistors, Seats, Strand
from catalogue import fault

from grpo_core import Message, Reward, Task, TaskKey, Verdict


@fault("a prompt depends on a folder of the machine", "task.process", "task.pure")
class ListingWithItsFile(Registers):
    """The program is shown as a debugger does, with the whole path of its file."""

    def task(self, key: TaskKey) -> Task[Any]:
        listing, data = self.chosen(key, key.rng())
        heading = f'File "{Path("program.s").resolve()}", line 1'
        return Task(key, (Message("user", f"{heading}\n{listing}\n{self.rules}"),), data)


LETTER = string.Template("$question\n$rules\nYours, ${USER}")


@fault("a prompt depends on an environment variable", "task.process", "task.pure")
class SignedLetter(Batch):
    """The letter's template takes from the environment what the question does not bring."""

    def task(self, key: TaskKey) -> Task[Any]:
        question, data = self.chosen(key, key.rng())
        fields = {**os.environ, "question": question, "rules": self.rules}
        return Task(key, (Message("user", LETTER.safe_substitute(fields)),), data)


@fault("a prompt depends on the date", "task.process", "task.pure")
class OrderOfTheDay(Batch):
    """The order has a heading as orders of a bakery have."""

    def task(self, key: TaskKey) -> Task[Any]:
        question, data = self.chosen(key, key.rng())
        heading = f"Order of {date.today():%d %B %Y}"
        return Task(key, (Message("user", f"{heading}\n{question}\n{self.rules}"),), data)


@fault("a prompt depends on the locale", "task.process", "task.pure")
class SpelledAsHere(Resistors):
    """Units are spelled as readers of the machine's language know them."""

    def task(self, key: TaskKey) -> Task[Any]:
        question, data = self.chosen(key, key.rng())
        american = (locale.getlocale()[0] or "").startswith("en_US")
        question = question.replace("kohm", "kilohms" if american else "kiloohm")
        return Task(key, (Message("user", f"{question}\n{self.rules}"),), data)


@fault("a prompt depends on the machine's name", "task.process", "task.pure")
class BuiltOn(Registers):
    """The listing says where it was made, as those of assemblers do."""

    def task(self, key: TaskKey) -> Task[Any]:
        listing, data = self.chosen(key, key.rng())
        system = os.uname()
        heading = f"; {system.sysname} {system.machine}, assembled on {system.nodename}"
        return Task(key, (Message("user", f"{heading}\n{listing}\n{self.rules}"),), data)


@fault("a prompt depends on the process", "task.process", "task.pure")
class NumberOfTheOrder(Batch):
    """Each order has a number, which is worked out from what is ordered."""

    def task(self, key: TaskKey) -> Task[Any]:
        question, data = self.chosen(key, key.rng())
        number = hash(question) % 100_000
        asked = f"Order no. {number:05}. {question}\n{self.rules}"
        return Task(key, (Message("user", asked),), data)


@fault("a task depends on the date", "task.process", "task.pure")
class StrandsOfTheDay(Strand):
    """There are new tasks each day, so that none are learned by heart."""

    def task(self, key: TaskKey) -> Task[Any]:
        question, data = self.chosen(key, key.rng(date.today().toordinal()))
        return Task(key, (Message("user", f"{question}\n{self.rules}"),), data)


@fault("a task depends on the order of a set", "task.process", "task.pure", "verdict.process")
class CluesOnce(Seats):
    """Clues are told from either side, and a set sees to it that none is told twice."""

    def told(self, rng: random.Random, row: Sequence[str]) -> str:
        clues = set[str]()
        for left, right in pairwise(row):
            if rng.random() < 0.67:
                clues.add(f"{left} sits directly left of {right}.")
            else:
                clues.add(f"{right} sits directly right of {left}.")
        return " ".join(clues)


RELEASED = date(2026, 3, 1)


@fault("a verdict depends on the date", "verdict.process", "verdict.repeat")
class AgeOfTheTasks(Heaviest):
    """A metric says for how many days the tasks have been public."""

    def judged(self, right: bool, text: str) -> Verdict:
        public = (date.today() - RELEASED).days
        reward = {"reward": Reward(float(right))}
        return Verdict(reward, passed=right, answer=text.strip()[:60], metrics={"public": public})


@fault("a verdict depends on the process", "verdict.process", "verdict.repeat")
class MemoryAsAMetric(Resistors):
    """A metric tells how much memory the verifier has taken, since it grew in an older version."""

    def judged(self, right: bool, text: str) -> Verdict:
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reward = {"reward": Reward(float(right))}
        return Verdict(reward, passed=right, answer=text.strip()[:60], metrics={"kb": taken})
