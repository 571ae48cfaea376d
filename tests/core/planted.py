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
import socket
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
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


# Tasks


class GlobalRandom(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        return self.asked(key, *self.drawn(key, random))  # type: ignore[arg-type]


_FRUITS = {
    "apples",
    "pears",
    "plums",
    "figs",
    "dates",
    "limes",
    "lemons",
    "melons",
    "kiwis",
    "grapes",
    "cherries",
    "mangoes",
}  # few may keep their order


class SetOrder(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return replace(task, prompt=f"{task.prompt} Think of {' and '.join(_FRUITS)}.")


class EvalFurtherOn(Sum):
    """The same, by fewer indices than a run may take."""

    def task(self, key: TaskKey) -> Task[int]:
        place = key.index + 20_000 * (key.split == "eval")
        return replace(super().task(replace(key, split="train", index=place)), key=key)


class Rows(Sum):
    """Sound: a list with an end, as data sets are."""

    levels = False
    parts: ClassVar[Mapping[str, float]] = {"exact": 1.0}

    def size(self, split: str) -> int:
        return 400 if split == "train" else 50

    def task(self, key: TaskKey) -> Task[int]:
        return replace(super().task(self.row(replace(key, seed=0, level=0.0))), key=key)

    def row(self, key: TaskKey) -> TaskKey:
        return key

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        return Verdict(
            {"exact": Reward(float(answer == task.data))},
            passed=answer == task.data,
            answer=None if answer is None else str(answer),
        )


class NoSize(Rows):
    def size(self, split: str) -> int:
        raise OSError("no such table")


class RaisesOnHeldOut(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        if key.split == "eval":
            raise KeyError("eval")
        return super().task(key)


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
    parts: ClassVar[Mapping[str, float]] = {"exact": 1.0}

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        right = str(task.data) in rollout.text
        return Verdict(
            {"exact": Reward(float(right))}, passed=right, answer=str(task.data) if right else None
        )

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return ()


class Tolerance(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        close = answer is not None and abs(answer - task.data) <= 0.01 * task.data
        return super().scored(task, task.data if close else answer)


class LastNumberWins(Sum):
    def extracted(self, text: str) -> int | None:
        numbers = re.findall(r"\d{1,12}", text[-100:])
        return int(numbers[-1]) if numbers else None

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return ()


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


class AboveRange(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(
            verdict, rewards={**verdict.rewards, "exact": Reward(2.0 if verdict.passed else 0.0)}
        )


class HashOfText(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(verdict, answer=str(hash(f"{answer}") % 1000))


class RaisesOnJunk(Sum):
    def extracted(self, text: str) -> int | None:
        block = xml_tag(text, tag="answer")
        return int(block.content) if block else None


class PaysForAnything(Sum):
    parts: ClassVar[Mapping[str, float]] = {"exact": 1.0}

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        right = answer == task.data
        return Verdict(
            {"exact": Reward(1.0 if right else 0.01)},
            passed=right,
            answer=None if answer is None else str(answer),
        )

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return ()


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


class LeavesFiles(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched():
            Path(f"{time.monotonic_ns()}.txt").write_text(str(answer))
        return super().scored(task, answer)


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


class OutageIsZero(Coded):
    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        try:
            verdict = await super().averify(task, rollout)
        except ConnectionError:
            return Verdict({"reward": Reward(0.0)})
        return verdict


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
        right = rollout.text.strip() == task.data
        return Verdict(
            {"reward": Reward(float(right))}, passed=right, answer=rollout.text.strip()[:90]
        )

    def reference(self, task: Task[str]) -> str:
        return task.data


class ListAsTruth(RareEmptyTruth):
    """Some rows have several answers, and the verifier compares with their text."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        several = str([task.data, task.data[::-1]])
        return replace(task, data=several if rare(task, 9) else task.data or "word")


class EmptyInTags(RareEmptyTruth):
    """A third of the rows have no answer, and an empty tag is right for them."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        return replace(task, data="" if key.index % 3 == 0 else task.data or "word")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="answer")
        right = block is not None and block.content.strip() == task.data
        return Verdict({"reward": Reward(float(right))}, passed=right)

    def reference(self, task: Task[str]) -> str:
        return f"<answer>{task.data}</answer>"


class AllEmptyInTags(EmptyInTags):
    """No row has an answer."""

    def task(self, key: TaskKey) -> Task[str]:
        return replace(super().task(key), data="")


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


# Other spellings of secrets and questions


class WritesCapitals(RareEmptyTruth):
    """Sound: the answer differs from the text only by case, which matters."""

    def task(self, key: TaskKey) -> Task[str]:
        word = f"{key.split}{key.rng().randrange(10**6)}"
        return Task(key, f"Write {word} in capitals and nothing else.", word.upper())


class CapitalsDoNotMatter(WritesCapitals):
    """The answer differs from the text only by case, which does not matter."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return super().verify(
            task, replace(rollout, messages=(Message("assistant", rollout.text.upper()),))
        )


# Levels


# What surrounds a process

SETTING = "PLANTED_SETTING"
"""A variable that has to do with nothing, and that is set in the tests."""


class TellsVariable(Sum):
    """Tells something of its surroundings in each prompt."""

    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return replace(task, prompt=f"{task.prompt} You are at {self.here()}.")

    def here(self) -> str:
        return os.environ.get(SETTING, "home")


class TellsUser(TellsVariable):
    def here(self) -> str:
        return os.environ.get("USER", "nobody") + os.environ.get("TERM", "")


class TellsDate(TellsVariable):
    def here(self) -> str:
        return str(datetime.now(UTC).date())


class TellsYear(TellsVariable):
    def here(self) -> str:
        return time.strftime("%Y")


class TellsTimeZone(TellsVariable):
    def here(self) -> str:
        return str(datetime.fromtimestamp(86_400 * 365))


class TellsMachine(TellsVariable):
    def here(self) -> str:
        return socket.gethostname()


class TellsLocale(TellsVariable):
    def here(self) -> str:
        return f"{locale.setlocale(locale.LC_CTYPE)} {os.environ.get('LANG')}"


class TellsHome(TellsVariable):
    def here(self) -> str:
        return str(Path.home())


class TellsFolder(TellsVariable):
    def here(self) -> str:
        return str(Path.cwd())


class TellsProcess(TellsVariable):
    def here(self) -> str:
        return str(os.getpid())


class PaysByVariable(Sum):
    """Judges by something of its surroundings."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(verdict, answer=f"{verdict.answer} {self.here()}")

    def here(self) -> object:
        return os.environ.get(SETTING)


class PaysByDate(PaysByVariable):
    def here(self) -> object:
        return datetime.now(UTC).year


class PaysByWeekday(PaysByVariable):
    def here(self) -> object:
        return time.localtime().tm_wday


class PaysByMachine(PaysByVariable):
    def here(self) -> object:
        return platform.node()


class PaysByLocale(PaysByVariable):
    def here(self) -> object:
        return os.environ.get("LC_ALL") or os.environ.get("LANG")


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


class ShellLeavesFiles(Sum):
    """Another program writes them."""

    started = 0

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched() and self.started < 40:
            self.started += 1
            subprocess.run(["touch", f"{self.started}.txt"], check=True)
        return super().scored(task, answer)


class CachesInAFile(Sum):
    """Sound: the first verdict writes a table, and the others read it."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        table = Path(tempfile.gettempdir(), "table.json")
        if not table.exists():
            table.write_text("[]")
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


class HidesATerm(Sum):
    """The prompt shows two of three numbers, of which two are seldom the same."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        first, second, third = one % 150, two % 150, key.rng().randrange(2)
        prompt = f"What is {first} + {second} + a number? Write <answer>N</answer>."
        return Task(key, prompt, first + second + third)


class CanaryThatCanBeSolved(Sum):
    def canaries(self) -> Sequence[Task[int]]:
        return (self.task(TaskKey("canary", "eval", 3, 0)),)


class SetsThePrecision(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        decimal.getcontext().prec = 9
        return super().verify(task, rollout)


class ReplacesAFunction(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        real = json.loads
        json.loads = lambda *a, **more: real(*a, **more)
        return super().verify(task, rollout)


class OrphansAProcess(Sum):
    """What the shell leaves behind has no parent any more."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        if is_watched():
            subprocess.run(["sh", "-c", "sleep 6 >/dev/null 2>&1 &"], check=True)
        return super().verify(task, rollout)


FAULTS: Mapping[type[Environment[Any]], str] = {
    GlobalRandom: "task.pure",
    EvalFurtherOn: "task.seed",
    NoSize: "task.made",
    RaisesOnHeldOut: "task.made",
    SetOrder: "task.process",
    TimeOfDay: "task.pure",
    EvalInTrain: "task.split",
    EvalInTrainInCapitals: "task.split",
    PartsOutside: "declared.contract",
    NaNReward: "verdict.form",
    AboveRange: "verdict.form",
    HashOfText: "verdict.process",
    PaysForSilence: "floor.empty",
    PaysForAnything: "floor.junk",
    RaisesOnJunk: "floor.junk",
    BlindToTheTask: "floor.other",
    SubstringMatch: "floor.listed",
    LastNumberWins: "floor.listed",
    EndingIgnored: "floor.suffix",
    Tolerance: "floor.near",
    MutantPays: "floor.mutants",
    QuietUntilItCanRead: "safety.state",
    LeavesFiles: "safety.files",
    RareEmptyTruth: "verdict.reference",
    EmptyInTags: "verdict.reference",
    AllEmptyInTags: "verdict.reference",
    ListAsTruth: "task.truth",
    SameQuestion: "task.ambiguous",
    CapitalsDoNotMatter: "task.secret",
    LeavesFewFiles: "safety.files",
    ShellLeavesFiles: "safety.files",
    KeepsALittle: "cost.memory",
    HidesATerm: "task.ambiguous",
    SetsThePrecision: "safety.state",
    ReplacesAFunction: "safety.state",
    OrphansAProcess: "safety.processes",
    CanaryThatCanBeSolved: "floor.canaries",
}
"""Each fault with the check that has to find it."""

SOUND: Mapping[type[Environment[Any]], Sequence[str]] = {
    NoneIsNamed: ("task.truth", "verdict.reference"),
    ListsAreAnswers: ("task.truth", "verdict.reference"),
    SameRowTwice: ("task.ambiguous", "task.variety"),
    WritesCapitals: ("task.secret",),
    NeedsHome: ("task.process", "verdict.process"),
    CachesInAFile: ("safety.files",),
    HasAPool: ("safety.processes", "verdict.process"),
}
"""Odd but honest ones, with the checks that have to pass them."""

SURROUNDED: Mapping[type[Environment[Any]], str] = {
    SetOrder: "another PYTHONHASHSEED",
    TellsVariable: "other environment variables",
    TellsUser: "another user",
    TellsDate: "another date",
    TellsYear: "another date",
    TellsTimeZone: "another time zone",
    TellsMachine: "another machine's name",
    TellsLocale: "another locale",
    TellsHome: "another home folder",
    TellsFolder: "another working directory",
    TellsProcess: "in every process",
    HashOfText: "another PYTHONHASHSEED",
    PaysByVariable: "other environment variables",
    PaysByDate: "another date",
    PaysByWeekday: "another date",
    PaysByMachine: "another machine's name",
    PaysByLocale: "another locale",
}
"""Those that depend on their surroundings, with what the kit has to name."""
