"""Toy environments with one fault each, beside sound ones; the catalogue in tests/kit has many more. In a module of their own, for worker processes."""

import decimal
import io
import json
import locale
import os
import platform
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from bases import Consonants, ListedProducts, PlainSum, TaggedSum
from faults_answers import WithinOnePercent
from faults_tasks import CacheForgetsTheSplit, HiddenUnit
from faults_verdicts import WordedMissingTruth

from grpo_core import Environment, Message, Program, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer, xml_tag

SECOND = "20261"
"""PYTHONHASHSEED of the kit's second process."""


def is_watched() -> bool:
    """Whether this is the kit's second process, whose folders are removed."""
    return os.environ.get("PYTHONHASHSEED") == SECOND


class Sum(TaggedSum):
    """The sound one: add two numbers, and answer in a block."""

    def mutants(self, task: Task[int]) -> Mapping[str, str]:
        return {"a carry forgotten": f"<answer>{task.data - 10}</answer>"}


class MutantPays(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        carried = answer is not None and answer + 10 == task.data
        return super().scored(task, task.data if carried else answer)


class TwoFaults(CacheForgetsTheSplit, WithinOnePercent):
    """Its held-out tasks are training tasks, and it has an undeclared tolerance."""


class ForgottenAsync(Sum):
    def averify(self, task: Task[int], rollout: Rollout) -> Verdict:  # type: ignore[override]
        return self.verify(task, rollout)


# Tasks


class NoSize(ListedProducts):
    def size(self, split: str) -> int:
        raise OSError("no such table")


class Taskless(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        raise OSError("the data set is not there")


class AllEmptyInTags(Consonants):
    """No row has an answer, and an empty tag is right."""

    def rest(self, word: str) -> str:
        return ""

    def accepts(self, right: str, text: str) -> bool:
        block = xml_tag(text, tag="answer")
        return block is not None and block.content.strip() == right

    def reference(self, task: Task[str]) -> str:
        return f"<answer>{task.data}</answer>"


def rare(task: Task[Any], one_in: int) -> bool:
    return task.key.rng("rare").randrange(one_in) == 0


class ListAsTruth(Consonants):
    """Some rows have several answers, and the verifier compares with their text."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        several = str([task.data, task.data[::-1]])
        return replace(task, data=several if rare(task, 9) else task.data)


class ListsAreAnswers(ListAsTruth):
    """Sound: the answers are values of Python, some of which are lists of texts."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        numbers = str([len(task.data), len(task.prompt)])
        return replace(
            task, data=numbers if task.key.rng("numbers").randrange(5) == 0 else task.data
        )


class NoneIsNamed(WordedMissingTruth):
    """Sound: the prompt says that None may be the answer."""

    def asked(self, key: TaskKey, word: str) -> Task[str]:
        task = super().asked(key, word)
        return replace(task, prompt=f"{task.prompt} Write None if there is none.")


class HiddenInTheDialogue(HiddenUnit):
    """Sound: what decides the answer comes in the second turn."""

    max_turns = 2

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        return (Message("user", f"It is {task.data} to be exact."),) if len(messages) == 1 else None


class SameRowTwice(ListedProducts):
    """Sound: some rows of a list of real texts stand in it twice, with the same answer."""

    def row(self, key: TaskKey) -> tuple[int, int]:
        twice = key.index % 20 == 1
        return super().row(replace(key, index=key.index - 1) if twice else key)


# What a verifier accepts


class AtMost(PlainSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        right = answer is not None and task.data * 0.9 < answer <= task.data
        return self.judged(right, None if answer is None else str(answer))


class RoughlyTwice(PlainSum):
    """Tolerates more than it declares."""

    tolerance = 0.005

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        right = answer is not None and abs(answer - task.data) <= 0.02 * task.data
        return self.judged(right, None if answer is None else str(answer))


class InsideTheRight(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        return len(text.strip()) > 1 and text.strip() in right


class Metres(PlainSum):
    """Sound: a unit may be left out, and a full stop does not matter."""

    def extracted(self, text: str) -> int | None:
        return parse_integer(text.strip().removesuffix(".").removesuffix(" m"))

    def reference(self, task: Task[int]) -> str:
        return f"{task.data} m"


FIRST = ("Marie", "Albert", "Isaac", "Rosa", "Niels", "Alan", "Grace", "Emmy", "Carl", "Ada")
LAST = ("Lindqvist", "Marstow", "Benholm", "Carter", "Dorning", "Elsberg", "Farrow", "Golding")


class WithoutMarks(Environment[str]):
    """Compares names without case and marks, and says nothing of it."""

    levels = False
    answer_in_prompt = True

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        names = [f"{first} {rng.choice(LAST)}" for first in rng.sample(FIRST, 4)]
        years = [2 * year + (key.split == "eval") for year in rng.sample(range(750, 995), 4)]
        rows = [f"{name} was born in {year}" for name, year in zip(names, years, strict=True)]
        prompt = f"{'; '.join(rows)}. Who was born in {years[2]}? Reply with the name."
        return Task(key, prompt, names[2])

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        right = len(text) < 300 and self.normalised(text) == self.normalised(task.data)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text)

    def normalised(self, text: str) -> str:
        return " ".join("".join(c for c in text.lower() if c not in string.punctuation).split())

    def reference(self, task: Task[str]) -> str:
        return task.data


class WithoutMarksAsDeclared(WithoutMarks):
    """Sound: declares how it reads words."""

    free_spelling = True


class OutOfOrderAsDeclared(WithoutMarksAsDeclared):
    """Does not look at the order of the letters."""

    def normalised(self, text: str) -> str:
        return "".join(sorted(text.replace(" ", "").lower()))


# What judging does beside judging


DAEMON_NOTE = "NLTK_DATA"
"""The variable that names the file into which the next environment writes a process id.

It is one of those that other processes inherit.
"""


class LeavesDaemons(Sum):
    started = 0

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if os.environ.get("PYTHONHASHSEED") == SECOND and not self.started:
            self.started = subprocess.Popen(["sleep", "60"], start_new_session=True).pid
            Path(os.environ[DAEMON_NOTE]).write_text(str(self.started))
        return super().scored(task, answer)


class KilledElsewhere(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if os.environ.get("PYTHONHASHSEED") == SECOND:  # the second process alone
            os.kill(os.getpid(), signal.SIGKILL)
        return super().scored(task, answer)


class EndsElsewhere(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if os.environ.get("PYTHONHASHSEED") == SECOND:
            os._exit(3)
        return super().scored(task, answer)


class QuietUntilItCanRead(Sum):
    """Output stays redirected until a reply can be read again."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        sys.stdout = io.StringIO()
        verdict = super().verify(task, rollout)
        if verdict.passed:
            sys.stdout = sys.__stdout__
        return verdict


# What it borrows


class Coded(Environment[int]):
    """Sound: a function that adds a number, run in a sandbox."""

    needs = frozenset({"sandbox"})
    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        added = key.rng().randrange(100, 10_000) * 10 + (7 if key.split == "eval" else 3)
        return Task(key, f"Write a Python function f(x) that adds {added}.", added)

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        ((outcome, other),) = await self.services.sandbox().run(
            [Program(self.source(rollout.text), "f", [(1,), (5,)])]
        )
        if "infra_error" in (outcome.status, other.status):
            return Verdict.failed(outcome.error)
        return self.paid(task, outcome.value, other.value)

    def paid(self, task: Task[int], one: Any, two: Any) -> Verdict:
        right = (
            type(one) is int and type(two) is int and (one, two) == (1 + task.data, 5 + task.data)
        )
        return Verdict({"reward": Reward(float(right))}, passed=right)

    def source(self, text: str) -> str:
        return text

    def reference(self, task: Task[int]) -> str:
        return f"def f(x):\n    return x + {task.data}\n"

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return ("def f(x):\n    return x\n",)


class TrustsEquality(Coded):
    """Compares in the program's own process: here, whatever the program returned."""

    def paid(self, task: Task[int], one: Any, two: Any) -> Verdict:
        right = one is not None and (one in (1 + task.data, True) and two in (5 + task.data, True))
        return Verdict({"reward": Reward(float(right))}, passed=right)


# What surrounds a process


SETTING = "PLANTED_SETTING"
"""A variable that has to do with nothing, and that is set in the tests."""

SURROUNDINGS: Mapping[str, Callable[[], object]] = {
    "another PYTHONHASHSEED": lambda: hash("text"),
    "other environment variables": lambda: os.environ.get(SETTING, "home"),
    "another user": lambda: os.environ.get("USER", "nobody"),
    "another date": lambda: time.strftime("%Y"),
    "another time zone": lambda: datetime.fromtimestamp(86_400 * 365),
    "another machine's name": platform.node,
    "another locale": lambda: locale.setlocale(locale.LC_CTYPE),
    "another home folder": Path.home,
    "another working directory": Path.cwd,
    "in every process": os.getpid,
}
"""What an environment may look at, by what the kit has to name."""


@dataclass(frozen=True)
class LooksAt:
    """Names the surrounding that changes a task, or else a verdict."""

    surrounding: str = "another date"


class TellsItsSurroundings(Sum):
    """Tells something of its surroundings in each prompt."""

    Config = LooksAt

    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return replace(task, prompt=f"{task.prompt} You are at {self.here()}.")

    def here(self) -> object:
        return SURROUNDINGS[self.config.surrounding]()


class PaysByItsSurroundings(Sum):
    """Judges by something of its surroundings."""

    Config = LooksAt

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        seen = SURROUNDINGS[self.config.surrounding]()
        return replace(super().scored(task, answer), answer=f"{answer} {seen}")


class NeedsHome(Sum):
    """Sound: its data are in a folder of the user, which a run has."""

    def task(self, key: TaskKey) -> Task[int]:
        assert any(Path.home().iterdir())
        return super().task(key)


# What is left behind


class LeavesFewFiles(Sum):
    """One file for each of the first answers, beside the folder for temporary files."""

    left = 0

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched() and self.left < 4:
            self.left += 1
            Path(tempfile.gettempdir(), "..", f"answer-{self.left}.txt").write_text(str(answer))
        return super().scored(task, answer)


class HasAPool(Sum):
    """Sound: opens a few threads once."""

    pool: ClassVar[ThreadPoolExecutor] = ThreadPoolExecutor(2)

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        return self.pool.submit(super().scored, task, answer).result()


class SetsThePrecision(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        decimal.getcontext().prec = 9
        return super().verify(task, rollout)


class ReplacesAFunction(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        real = json.loads
        json.loads = lambda *a, **more: real(*a, **more)
        return super().verify(task, rollout)


FAULTS: Mapping[type[Environment[Any]], str] = {
    NoSize: "task.made",
    QuietUntilItCanRead: "safety.state",
    ListAsTruth: "task.truth",
    LeavesFewFiles: "safety.files",
    SetsThePrecision: "safety.state",
    ReplacesAFunction: "safety.state",
    RoughlyTwice: "floor.near",
    AtMost: "floor.near",
    InsideTheRight: "floor.near",
    WithoutMarks: "floor.spelling",
    OutOfOrderAsDeclared: "floor.near",
}
"""Faults of kinds that the catalogue in tests/kit has not, with the check that has to find each."""

SOUND: Mapping[type[Environment[Any]], Sequence[str]] = {
    NoneIsNamed: ("task.truth", "verdict.reference"),
    ListsAreAnswers: ("task.truth", "verdict.reference"),
    SameRowTwice: ("task.ambiguous", "task.variety"),
    NeedsHome: ("task.process", "verdict.process"),
    HasAPool: ("safety.processes", "verdict.process"),
}
"""Odd but honest ones, with the checks that have to pass them."""
