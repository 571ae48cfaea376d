"""Toy environments with one fault each, beside the sound one that they are made from; in a module of their own, for worker processes."""

from __future__ import annotations

import decimal
import io
import json
import locale
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from grpo_core import (
    Environment,
    JudgeRequest,
    Message,
    Program,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import parse_integer, xml_tag

SECOND = "20261"
"""PYTHONHASHSEED of the kit's second process."""


def is_watched() -> bool:
    """Whether this is the kit's second process, whose folders are removed."""
    return os.environ.get("PYTHONHASHSEED") == SECOND


class Sum(Environment[int]):
    """The sound one: add two numbers, larger ones at higher levels, and answer in a block. Held-out sums end in 7, no others do."""

    parts: ClassVar[Mapping[str, float]] = {"format": 0.2, "exact": 0.8}
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        return self.asked(key, *self.drawn(key, key.rng()))

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        top = 10 ** (3 + round(3 * key.level))
        while True:
            one, two = rng.randrange(100, top), rng.randrange(100, top)
            if (one % 10 == 7) == (key.split == "eval"):
                return one, two

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"What is {one} + {two}? Write <answer>N</answer>.", one + two)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.scored(task, self.extracted(rollout.text))

    def extracted(self, text: str) -> int | None:
        block = xml_tag(text, tag="answer")
        return None if block is None or text[block.end :].strip() else parse_integer(block.content)

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        right = answer == task.data
        rewards = {"format": Reward(float(answer is not None)), "exact": Reward(float(right))}
        return Verdict(rewards, passed=right, answer=None if answer is None else str(answer))

    def reference(self, task: Task[int]) -> str:
        return f"<answer>{task.data}</answer>"

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data), f"<answer>{task.data}")

    def mutants(self, task: Task[int]) -> Mapping[str, str]:
        return {"a carry forgotten": f"<answer>{task.data - 10}</answer>"}


def exactly(right: bool, answer: Any, otherwise: float = 0.0) -> Verdict:
    """Return the verdict of an environment that pays nothing but the right answer."""
    return Verdict({"reward": Reward(1.0 if right else otherwise)}, passed=right, answer=answer)


# Tasks


class GlobalRandom(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        return self.asked(key, *self.drawn(key, random))  # type: ignore[arg-type]


_FRUITS = {f"plum {number}" for number in range(12)}


class SetOrder(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return replace(task, prompt=f"{task.prompt} Think of {' and '.join(_FRUITS)}.")


class Rows(Sum):
    """Sound: a list with an end, as data sets are."""

    levels = False
    parts: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def size(self, split: str) -> int:
        return 400 if split == "train" else 50

    def task(self, key: TaskKey) -> Task[int]:
        return replace(super().task(self.row(replace(key, seed=0, level=0.0))), key=key)

    def row(self, key: TaskKey) -> TaskKey:
        return key

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        return exactly(answer == task.data, None if answer is None else str(answer))


class NoSize(Rows):
    def size(self, split: str) -> int:
        raise OSError("no such table")


class EvalInTrain(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        few = replace(key, split="train", index=key.index % 7)
        return replace(super().task(few), key=key)


class EvalInTrainInCapitals(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(replace(key, split="train"))
        return replace(
            task, key=key, prompt=str(task.prompt).upper() if key.split == "eval" else task.prompt
        )


class TimeOfDay(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return replace(task, prompt=f"It is {time.time()}. {task.prompt}")


# Verdicts


class SubstringMatch(Sum):
    parts: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        right = str(task.data) in rollout.text
        return exactly(right, str(task.data) if right else None)

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return ()


class PaysForAnything(SubstringMatch):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = self.extracted(rollout.text)
        said = None if answer is None else str(answer)
        return exactly(answer == task.data, said, otherwise=0.01)


class Tolerance(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        close = answer is not None and abs(answer - task.data) <= 0.01 * task.data
        return super().scored(task, task.data if close else answer)


class EndingIgnored(Sum):
    def extracted(self, text: str) -> int | None:
        block = xml_tag(text, tag="answer")
        found = re.match(r"\d{1,12}", block.content) if block else None
        return int(found[0]) if found else None


class NaNReward(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(
            verdict,
            rewards={**verdict.rewards, "exact": Reward(1.0 if verdict.passed else float("nan"))},
        )


class RaisesOnJunk(Sum):
    def extracted(self, text: str) -> int | None:
        block = xml_tag(text, tag="answer")
        return int(block.content) if block else None


class PaysForSilence(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        return (
            verdict
            if rollout.text.strip()
            else replace(verdict, rewards={**verdict.rewards, "format": Reward(1.0)})
        )


class BlindToTheTask(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        return super().scored(task, task.data if answer is not None and answer > 100 else answer)


class MutantPays(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        carried = answer is not None and answer + 10 == task.data
        return super().scored(task, task.data if carried else answer)


class PartsOutside(Sum):
    reward_range = (0.5, 0.5)


class Taskless(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        raise OSError("the data set is not there")


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


class Praised(Environment[str]):
    """Sound: a judge looks at a marked text; an order inside is a part of it."""

    needs = frozenset({"judge"})
    levels = False
    answer_in_prompt = True

    def task(self, key: TaskKey) -> Task[str]:
        word = f"{key.split}{key.rng().randrange(10**6)}"
        return Task(key, f"Write {word} and nothing else.", word)

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        (judgement,) = await self.services.judge().judge(
            [JudgeRequest(rollout.text, reference=task.data)]
        )
        if judgement.error:
            return Verdict.failed(judgement.error)
        return Verdict(
            {"reward": Reward(judgement.score)},
            passed=judgement.score > 0.9,
            answer=rollout.text[:90],
        )

    def reference(self, task: Task[str]) -> str:
        return task.data


def honest_judge(request: JudgeRequest) -> float:
    return float(request.candidate == request.reference)


def obedient_judge(request: JudgeRequest) -> float:
    """Does as it is told, as small models do."""
    told = unicodedata.normalize("NFKC", request.candidate).lower()
    return float(
        request.candidate == request.reference or "highest score" in told or '"score": 1' in told
    )


# What shows among many tasks


def rare(task: Task[Any], one_in: int = 50) -> bool:
    return task.key.rng("rare").randrange(one_in) == 0


class RareEmptyTruth(Environment[str]):
    """Sound but for the rows whose column is empty."""

    levels = False

    def task(self, key: TaskKey) -> Task[str]:
        word = f"{key.split}{key.rng().randrange(10**6)}"
        task = Task(key, f"What rhymes with {word}? Answer with one word.", f"{word}y"[::-1])
        return replace(task, data="") if rare(task, 40) else task

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text.strip()
        return exactly(answer == task.data, answer[:90])

    def reference(self, task: Task[str]) -> str:
        return task.data


class AllEmptyInTags(RareEmptyTruth):
    """No row has an answer, and an empty tag is right."""

    def task(self, key: TaskKey) -> Task[str]:
        return replace(super().task(key), data="")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="answer")
        return exactly(block is not None and block.content.strip() == task.data, None)

    def reference(self, task: Task[str]) -> str:
        return f"<answer>{task.data}</answer>"


class ListAsTruth(RareEmptyTruth):
    """Some rows have several answers, and the verifier compares with their text."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        several = str([task.data, task.data[::-1]])
        return replace(task, data=several if rare(task, 9) else task.data or "word")


class ListsAreAnswers(ListAsTruth):
    """Sound: the answers are values of Python, some of which are lists of texts."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        numbers = str([len(task.data), len(task.prompt)])
        return replace(
            task, data=numbers if task.key.rng("numbers").randrange(5) == 0 else task.data
        )


class NoneIsNamed(RareEmptyTruth):
    """Sound: the prompt says that None may be the answer."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        prompt = f"{task.prompt} Write None if there is none."
        return replace(task, prompt=prompt, data=task.data or "None")


class SameQuestion(Sum):
    """A part of what decides the answer is not in the prompt."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        about = (one // 100 % 10) * 100
        return Task(key, f"What is about {about} + 1? Write <answer>N</answer>.", one + 1)


class HiddenInTheDialogue(SameQuestion):
    """Sound: what decides the answer comes in the second turn."""

    max_turns = 2

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        return (Message("user", f"It is {task.data} to be exact."),) if len(messages) == 1 else None


class SameRowTwice(Rows):
    """Sound: some rows of a list of real texts stand in it twice, with the same answer."""

    def row(self, key: TaskKey) -> TaskKey:
        return replace(key, index=key.index - 1) if key.index % 20 == 1 else key


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


class KeepsALittle(Sum):
    kept: ClassVar[list[bytes]] = []

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.kept.append(os.urandom(3000))
        return super().scored(task, answer)


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
    EvalInTrainInCapitals: "task.split",
    PartsOutside: "declared.contract",
    MutantPays: "floor.mutants",
    QuietUntilItCanRead: "safety.state",
    RareEmptyTruth: "verdict.reference",
    ListAsTruth: "task.truth",
    SameQuestion: "task.ambiguous",
    LeavesFewFiles: "safety.files",
    KeepsALittle: "cost.memory",
    SetsThePrecision: "safety.state",
    ReplacesAFunction: "safety.state",
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
