"""Toy environments with one fault each, beside the sound one that they are made from; in a module of their own, for worker processes."""

from __future__ import annotations

import base64
import collections
import decimal
import functools
import io
import json
import locale
import os
import pickle
import platform
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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


class SeedPlusIndex(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        offset = 10**6 if key.split == "eval" else 0
        return self.asked(
            key,
            *self.drawn(replace(key, split="train"), random.Random(key.seed + key.index + offset)),
        )


class GlobalRandom(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        return self.asked(key, *self.drawn(key, random))  # type: ignore[arg-type]


class SeedsGlobalRandom(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        random.seed(repr(key))
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


class SecretInPrompt(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return replace(task, prompt=f"{task.prompt} (solution: {task.data})")


class EvalFarAhead(Sum):
    """Held-out tasks are training tasks of a later index."""

    def task(self, key: TaskKey) -> Task[int]:
        there = replace(key, split="train", index=key.index + 10**6) if key.split == "eval" else key
        return replace(super().task(there), key=key)


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


class Twice(Sum):
    """Sound: a dialogue of two turns, of which the last one counts."""

    max_turns = 2

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        return (
            (Message("user", "Are you sure?"),)
            if sum(message.role == "assistant" for message in messages) == 1
            else None
        )


class LeaksRows(Rows):
    """The last training rows are held out, too."""

    def row(self, key: TaskKey) -> TaskKey:
        return (
            replace(key, split="train", index=390 + key.index)
            if key.split == "eval" and key.index < 10
            else key
        )


class NoSize(Rows):
    def size(self, split: str) -> int:
        raise OSError("no such table")


class RaisesOnHeldOut(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        if key.split == "eval":
            raise KeyError("eval")
        return super().task(key)


class RaisesWhenHard(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        return self.asked(key, 1 // (1 - int(key.level)), 2) if key.level else super().task(key)


class Unpicklable(Sum):
    def task(self, key: TaskKey) -> Task[Any]:
        task = super().task(key)
        return replace(task, data=_Locked(task.data))

    def scored(self, task: Task[Any], answer: int | None) -> Verdict:
        return super().scored(replace(task, data=task.data.value), answer)

    def reference(self, task: Task[Any]) -> str:
        return f"<answer>{task.data.value}</answer>"

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return super().cheats(replace(task, data=task.data.value))


class _Locked:
    def __init__(self, value: int) -> None:
        self.value, self.lock = value, threading.Lock()


class IdenticalLevels(Sum):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=0.5), rng)


class FallingLevels(Sum):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=1 - key.level), rng)


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


class Evaluates(Sum):
    def extracted(self, text: str) -> int | None:
        block = xml_tag(text, tag="answer")
        try:
            value = (
                eval(block.content[:50], {"__builtins__": {}})
                if block and "**" not in block.content
                else None
            )
        except Exception:  # noqa: BLE001 - the fault is another one
            return None
        return value if isinstance(value, int) else None


class PaysAnyNumber(Sum):
    """Only `passed`, which no run maximises, looks at the task."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(
            verdict, rewards={name: Reward(float(answer is not None)) for name in self.parts}
        )


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


class AnyBlockWins(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        right = f"<answer>{task.data}</answer>" in rollout.text
        return self.scored(task, task.data if right else None)


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


class HangsOnAMegabyte(Sum):
    def extracted(self, text: str) -> int | None:
        if sum(a == b for a in text[:20_000] for b in text[:20_000]) < 0:
            return None
        return super().extracted(text)


class ExponentialPattern(Sum):
    def extracted(self, text: str) -> int | None:
        return (
            super().extracted(text)
            if re.match(r"\s*<answer>(\d+\s*)*</answer>\s*$", text)
            else None
        )


class Counts(Sum):
    """State between calls."""

    judged = 0

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.judged += 1
        return super().scored(task, answer if self.judged % 3 else None)


class MutableDefault(Sum):
    def verify(self, task: Task[int], rollout: Rollout, seen: set[str] = set()) -> Verdict:  # noqa: B006 - the fault
        verdict = super().verify(task, rollout)
        if rollout.text in seen:
            return replace(
                verdict, rewards={name: Reward(0.0) for name in verdict.rewards}, passed=False
            )
        seen.add(rollout.text)
        return verdict


class RunningMean(Sum):
    """What is long depends on the mean length of all replies so far."""

    letters = replies = 0

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        self.letters += len(rollout.text)
        self.replies += 1
        verdict = super().verify(task, rollout)
        if len(rollout.text) * self.replies <= 2 * self.letters:
            return verdict
        return replace(
            verdict, rewards={name: Reward(0.0) for name in verdict.rewards}, passed=False
        )


class ChangesTheTask(Sum):
    def task(self, key: TaskKey) -> Task[Any]:
        task = super().task(key)
        return replace(task, data=[task.data])

    def scored(self, task: Task[Any], answer: int | None) -> Verdict:
        verdict = super().scored(replace(task, data=task.data[-1]), answer)
        if answer is not None:
            task.data.append(answer)
        return verdict

    def reference(self, task: Task[Any]) -> str:
        return f"<answer>{task.data[0]}</answer>"

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return (str(task.data[0]),)


class PartMissing(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return (
            verdict
            if verdict.passed
            else replace(verdict, rewards={"format": verdict.rewards["format"]})
        )


class Swallows(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        try:
            return super().verify(task, rollout)
        except Exception:  # noqa: BLE001 - the fault
            return Verdict({"format": Reward(0.0), "exact": Reward(0.0)})


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


class NeedsAMessage(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.scored(task, self.extracted(rollout.messages[-1].content))


class AlwaysForty(Sum):
    """One answer is right nearly everywhere."""

    levels = False

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(
            key,
            f"Is {one} + {two} more than 4? Write <answer>1</answer> for yes, <answer>0</answer> for no.",
            int(one + two > 4),
        )


class BlindToTheTask(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        return super().scored(task, task.data if answer is not None and answer > 100 else answer)


class WrongReference(Sum):
    def reference(self, task: Task[int]) -> str:
        return f"The answer is {task.data}."


class AcceptsNaN(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="answer")
        content = (
            block.content.strip()
            if block is not None and not rollout.text[block.end :].strip()
            else ""
        )
        try:
            value = float(content) if len(content) < 20 and content.isascii() else None
        except ValueError:
            value = None
        right = value is not None and not abs(value - task.data) > 0
        return Verdict(
            {"format": Reward(float(value is not None)), "exact": Reward(float(right))},
            passed=right,
            answer=None if value is None else content,
        )


class RecursesOnNesting(Sum):
    def extracted(self, text: str) -> int | None:
        if "[" in text:
            json.loads(
                text.replace("<answer>", "").replace("</answer>", "")
                if text.count("[") > 100
                else "1"
            )
        return super().extracted(text)


class EncodesStrictly(Sum):
    def extracted(self, text: str) -> int | None:
        return super().extracted(text.encode().decode())


class CheatPays(Sum):
    def extracted(self, text: str) -> int | None:
        return super().extracted(text if "</answer>" in text else f"{text}</answer>")


class MutantPays(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        carried = answer is not None and answer + 10 == task.data
        return super().scored(task, task.data if carried else answer)


class CanaryPays(Sum):
    def canaries(self) -> Sequence[Task[Any]]:
        return (
            Task(TaskKey("sum", "train", 0), "What is the sum? Write <answer>N</answer>.", None),
        )

    def scored(self, task: Task[Any], answer: int | None) -> Verdict:
        return super().scored(
            replace(task, data=answer if task.data is None else task.data), answer
        )


class PartsOutside(Sum):
    reward_range = (0.5, 0.5)


class Echoing(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.scored(
            task, task.data if "What is" in rollout.text else self.extracted(rollout.text)
        )


class Taskless(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        raise OSError("the data set is not there")


# What judging does beside judging


class UsesTheNetwork(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        with socket.socket() as looked_up:
            looked_up.settimeout(0.05)
            looked_up.connect_ex(("127.0.0.1", 9))
        return super().scored(task, answer)


class LeavesProcesses(Sum):
    started = 0

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if (
            os.environ.get("PYTHONHASHSEED") == SECOND and self.started < 40
        ):  # the second process alone is watched, and ended
            self.started += 1
            subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
        return super().scored(task, answer)


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


class SetsAVariable(Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        os.environ["SUMS_LAST"] = rollout.text[:20].replace("\0", "")
        return super().verify(task, rollout)


class QuietUntilItCanRead(Sum):
    """Output stays redirected until a reply can be read again."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        sys.stdout = io.StringIO()
        verdict = super().verify(task, rollout)
        if verdict.passed:
            sys.stdout = sys.__stdout__
        return verdict


class LeavesFilesOpen(Sum):
    kept: ClassVar[list[Any]] = []

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.kept.append(Path(__file__).open())  # noqa: SIM115 - the fault
        return super().scored(task, answer)


class LeavesFilesElsewhere(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        Path(
            tempfile.gettempdir(), f"planted-{time.monotonic_ns()}.txt"
        ).touch()  # each process has a folder of its own for those
        return super().scored(task, answer)


class LeavesFiles(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched():
            Path(f"{time.monotonic_ns()}.txt").write_text(str(answer))
        return super().scored(task, answer)


class KeepsMemory(Sum):
    kept: ClassVar[list[bytes]] = []

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.kept.append(os.urandom(200_000))
        return super().scored(task, answer)


class Slow(Sum):
    """Slow on long texts, within the deadline."""

    def extracted(self, text: str) -> int | None:
        if "777777" in text[:50]:  # 1 MB of digits
            time.sleep(1.3)
        return super().extracted(text)


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


class RareAboveRange(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        top = 3.0 if rare(task) and answer is not None else 1.0
        rewards = {"format": verdict.rewards["format"], "exact": Reward(top * verdict.passed)}
        return replace(verdict, rewards=rewards)


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


class RareNoneAsTruth(RareEmptyTruth):
    """The verifier compares with str(row["answer"])."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        return task if task.data else replace(task, data="None")


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


class NeverEmptyTruth(RareEmptyTruth):
    """Sound."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        return task if task.data else replace(task, data="word")


class RareWrongReference(Sum):
    def reference(self, task: Task[int]) -> str:
        return f"<answer>{task.data + rare(task)}</answer>"


class RareFailure(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return replace(task, data=1 // (not rare(task)) * task.data)


class RareImpurity(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return replace(task, prompt=f"{task.prompt} {random.random()}") if rare(task) else task


class RowsMissing(Rows):
    """size() counts rows that are not there."""

    def task(self, key: TaskKey) -> Task[int]:
        if key.index >= 390:
            raise IndexError("no such row")
        return super().task(key)


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


class FiveTasks(Sum):
    levels = False

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return 100 + 10 * (key.index % 5) + (7 if key.split == "eval" else 0), 200


class RepeatedRows(Rows):
    def row(self, key: TaskKey) -> TaskKey:
        return replace(key, index=key.index % 30)


class LongReferences(Sum):
    max_new_tokens = 64

    def extracted(self, text: str) -> int | None:
        return super().extracted(text.removeprefix("Let us think about it step by step. " * 12))

    def reference(self, task: Task[int]) -> str:
        return "Let us think about it step by step. " * 12 + super().reference(task)


class PassedAtTheFloor(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(verdict, passed=verdict.passed or answer is None)


class TaxesWords(Sum):
    """Words beyond sixty cost something, down to nothing."""

    max_new_tokens = 600

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        left = max(0.0, 1 - max(0, len(rollout.text.split()) - 60) / 120)
        rewards = {
            name: Reward(reward.value * left, reward.weight)
            for name, reward in verdict.rewards.items()
        }
        return replace(verdict, rewards=rewards)


class TopWithoutPassing(Sum):
    """Passes only some of the answers that are paid the most."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(verdict, passed=verdict.passed and not rare(task))


class PartlyPaid(Sum):
    """Sound: an answer that passes need not be paid the most where there is no best one."""

    open_ended = True

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        rewards = {**verdict.rewards, "exact": Reward(0.5 * verdict.passed)}
        return replace(verdict, rewards=rewards)


# Other spellings of secrets and questions


class Whispers(Sum):
    """Adds the answer to the prompt in some spelling."""

    def spelled(self, answer: str) -> str:
        raise NotImplementedError

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        return replace(task, prompt=f"{task.prompt} (ref. {self.spelled(str(task.data))})")


class ZeroPadded(Whispers):
    def spelled(self, answer: str) -> str:
        return answer.zfill(10)


class Base64Secret(Whispers):
    def spelled(self, answer: str) -> str:
        return base64.b64encode(f"answer {answer}".encode()).decode()


class HexSecret(Whispers):
    def spelled(self, answer: str) -> str:
        return hex(int(answer))


class ReversedSecret(Whispers):
    def spelled(self, answer: str) -> str:
        return answer[::-1]


class WritesBackwards(RareEmptyTruth):
    """Sound: the answer stands in the prompt backwards, since that is the task."""

    def task(self, key: TaskKey) -> Task[str]:
        word = f"{key.split}{key.rng().randrange(10**6)}"
        return Task(key, f"Write {word} backwards and nothing else.", word[::-1])


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


class EvalInOtherWords(Sum):
    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(replace(key, split="train"))
        one, two = re.findall(r"\d+", str(task.prompt))
        asked = f"In <answer>N</answer>, write what {one} and {two} is when you add them."
        return replace(task, key=key, prompt=asked if key.split == "eval" else task.prompt)


class SwappedTerms(Sum):
    """The terms of held-out sums are those of training sums, the other way round."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        trained = replace(key, split="train")
        one, two = super().drawn(trained, trained.rng())
        return (max(one, two), min(one, two))[:: -1 if key.split == "eval" else 1]


# Levels


class FlatAboveTheMiddle(Sum):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=min(key.level, 0.5)), rng)


class EasyAndHard(Sum):
    """Sound: two kinds of tasks, which change in the middle."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=float(key.level >= 0.5)), rng)


class HiddenDifficulty(Sum):
    """Sound: carries make sums hard, and no length or size shows them."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        while True:
            one, two = super().drawn(replace(key, level=0.0), rng)
            hard = one % 10 + two % 10 >= 10
            if hard == (rng.random() < key.level):
                return one, two


class FewerHints(Sum):
    """Sound: a prompt of a hard level is shorter."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        hints = "Begin with the ones. Carry the ten. " * round(4 * (1 - key.level))
        return replace(task, prompt=f"{hints}{task.prompt}")

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=0.0), rng)


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


class RareTellsDate(TellsDate):
    def here(self) -> str:
        raise NotImplementedError

    def task(self, key: TaskKey) -> Task[int]:
        task = Sum.task(self, key)
        return replace(task, prompt=f"{task.prompt} {TellsDate.here(self)}") if rare(task) else task


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


class KeepsDates(Sum):
    """Sound: knows a date that is no clock's."""

    def task(self, key: TaskKey) -> Task[Any]:
        task = super().task(key)
        began = datetime(2024, 2, 29, 12, tzinfo=UTC) + timedelta(days=key.index)
        assert isinstance(began, datetime)
        assert pickle.loads(pickle.dumps(began)) == began
        return replace(task, prompt=f"{task.prompt} It is {began!r}, {began:%d %m %Y}.")


# What is left behind


class LeavesFewFiles(Sum):
    """One file for each of the first answers, beside the folder for temporary files."""

    left = 0

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched() and self.left < 4:
            self.left += 1
            Path(tempfile.gettempdir(), "..", f"answer-{self.left}.txt").write_text(str(answer))
        return super().scored(task, answer)


class LeavesOneFile(Sum):
    """Writes every answer to the same file, as all workers do."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched():
            Path(tempfile.gettempdir(), "..", "answer.txt").write_text(str(answer))
        return super().scored(task, answer)


class WritesALog(Sum):
    """Its log was opened before anything was judged."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log = (
            Path(tempfile.gettempdir(), "..", "log.txt").open("a") if is_watched() else None  # noqa: SIM115
        )

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if self.log:
            print(answer, file=self.log, flush=True)
        return super().scored(task, answer)


class LeavesFilesAtHome(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched():
            Path("~").expanduser().joinpath(f"{time.monotonic_ns()}.txt").touch()
        return super().scored(task, answer)


class ShellLeavesFiles(Sum):
    """Another program writes them."""

    started = 0

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched() and self.started < 40:
            self.started += 1
            subprocess.run(["touch", f"{self.started}.txt"], check=True)
        return super().scored(task, answer)


class LeavesFolders(Sum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if is_watched():
            tempfile.mkdtemp()
        return super().scored(task, answer)


class CachesInAFile(Sum):
    """Sound: the first verdict writes a table, and the others read it."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        table = Path(tempfile.gettempdir(), "table.json")
        if not table.exists():
            table.write_text("[]")
        return super().scored(task, answer)


class WritesAndRemoves(Sum):
    """Sound: leaves nothing behind."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "answer.txt").write_text(str(answer))
        return super().scored(task, answer)


class LeavesSomeProcesses(Sum):
    """One for each of fifty verdicts."""

    judged = 0

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.judged += 1
        if is_watched() and self.judged % 50 == 0 and self.judged < 1000:
            subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
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


class KeepsATableForEachTask(Sum):
    """Tables are found by the id of the task, which is kept for as long."""

    tables: ClassVar[dict[int, tuple[Task[int], bytes]]] = {}

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        self.tables.setdefault(id(task), (task, os.urandom(5000)))
        return super().verify(task, rollout)


class KeepsEachAnswer(Sum):
    """A cache without a bound, which grows with every new answer."""

    kept: ClassVar[dict[int | None, list[int]]] = {}

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.kept.setdefault(answer, list(range(10**6, 10**6 + 100)))
        return super().scored(task, answer)


@functools.lru_cache(maxsize=2000)
def costly(answer: int | None) -> bytes:
    return os.urandom(4000)


class CachesInMemory(Sum):
    """Sound: caches have a bound, and are far from it in the kit."""

    last: ClassVar[collections.deque[bytes]] = collections.deque(maxlen=100)

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        self.last.append(os.urandom(3000))
        assert costly(answer)
        assert re.compile(f"{answer}")
        return super().scored(task, answer)


class NumbersWhatItMeets(Sum):
    """Things get their numbers in the order in which they are first met."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._met: dict[int, int] = {}

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        number = self._met.setdefault(one, len(self._met))
        task = super().asked(key, one, two)
        return replace(task, prompt=f"Problem {number}: {task.prompt}")


class HidesATerm(Sum):
    """The prompt shows two of three numbers, of which two are seldom the same."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        first, second, third = one % 150, two % 150, key.rng().randrange(2)
        prompt = f"What is {first} + {second} + a number? Write <answer>N</answer>."
        return Task(key, prompt, first + second + third)


class HeldOutByWording(Sum):
    """The same numbers are asked for in three wordings, of which some are held out."""

    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        while True:
            one, two = rng.randrange(10, 40), rng.randrange(10, 40)
            words = rng.choice(_WORDINGS).format(one=one, two=two)
            if (zlib.crc32(words.encode()) % 4 == 0) == (key.split == "eval"):
                return Task(key, words, one + two)


_WORDINGS = (
    "A farmer has {one} sheep and buys {two} sheep. How many are that? Write <answer>N</answer>.",
    "{two} visitors enter a room of {one}. Count the crowd. Write <answer>N</answer>.",
    "Walking {one} miles today, {two} tomorrow, what distance results? Write <answer>N</answer>.",
)


class TellsLanguage(Sum):
    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        english = os.environ.get("LANG", "").startswith("en")
        return Task(key, f"{'Add' if english else 'Plus'}: {one} {two}", one + two)


class TellsMonth(Sum):
    """Months are named in the language of the user."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        locale.setlocale(locale.LC_ALL, "")
        month = datetime(2020, 1 + one % 12, 1, tzinfo=UTC).strftime("%B")
        return Task(key, f"In {month}: {one} + {two}? Write <answer>N</answer>.", one + two)


class HarderFromTheMiddle(Sum):
    """Nothing changes up to the middle of the levels."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[int, int]:
        return super().drawn(replace(key, level=max(0.0, 2 * key.level - 1)), rng)


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


class KeepsATableForEachKey(Sum):
    """A table is made for each task that was answered well."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._tables: dict[TaskKey, list[float]] = {}

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        if answer == task.data:
            self._tables.setdefault(task.key, [float(n) for n in range(3000)])
        return super().scored(task, answer)


FAULTS: Mapping[type[Environment[Any]], str] = {
    SeedPlusIndex: "task.seed",
    GlobalRandom: "task.pure",
    SeedsGlobalRandom: "task.random",
    EvalFarAhead: "task.seed",
    EvalFurtherOn: "task.seed",
    LeaksRows: "task.split",
    SwappedTerms: "task.split",
    NoSize: "task.made",
    RaisesOnHeldOut: "task.made",
    RaisesWhenHard: "task.made",
    PaysAnyNumber: "floor.other",
    SetOrder: "task.process",
    TimeOfDay: "task.pure",
    SecretInPrompt: "task.secret",
    Unpicklable: "task.pickle",
    IdenticalLevels: "task.level",
    FallingLevels: "task.level",
    EvalInTrain: "task.split",
    EvalInTrainInCapitals: "task.split",
    PartsOutside: "declared.contract",
    NaNReward: "verdict.form",
    AboveRange: "verdict.form",
    PartMissing: "verdict.form",
    WrongReference: "verdict.reference",
    Counts: "verdict.repeat",
    MutableDefault: "verdict.repeat",
    RunningMean: "verdict.repeat",
    ChangesTheTask: "verdict.repeat",
    HashOfText: "verdict.process",
    Swallows: "verdict.swallow",
    PaysForSilence: "floor.empty",
    NeedsAMessage: "floor.empty",
    PaysForAnything: "floor.junk",
    RaisesOnJunk: "floor.junk",
    BlindToTheTask: "floor.other",
    AlwaysForty: "floor.constant",
    SubstringMatch: "floor.listed",
    LastNumberWins: "floor.listed",
    AnyBlockWins: "floor.listed",
    EndingIgnored: "floor.suffix",
    Tolerance: "floor.near",
    AcceptsNaN: "floor.digits",
    EncodesStrictly: "floor.text",
    RecursesOnNesting: "floor.nested",
    HangsOnAMegabyte: "floor.large",
    ExponentialPattern: "floor.large",
    CheatPays: "floor.cheats",
    MutantPays: "floor.mutants",
    CanaryPays: "floor.canaries",
    Evaluates: "safety.eval",
    UsesTheNetwork: "safety.network",
    LeavesProcesses: "safety.processes",
    LeavesFilesOpen: "safety.processes",
    SetsAVariable: "safety.state",
    QuietUntilItCanRead: "safety.state",
    LeavesFiles: "safety.files",
    LeavesFilesElsewhere: "safety.files",
    KeepsMemory: "cost.memory",
    Slow: "cost.time",
    RareAboveRange: "verdict.form",
    RareEmptyTruth: "verdict.reference",
    EmptyInTags: "verdict.reference",
    AllEmptyInTags: "verdict.reference",
    RareNoneAsTruth: "task.truth",
    ListAsTruth: "task.truth",
    RareWrongReference: "verdict.reference",
    RareFailure: "task.made",
    RareImpurity: "task.pure",
    RowsMissing: "task.made",
    SameQuestion: "task.ambiguous",
    FiveTasks: "task.variety",
    RepeatedRows: "task.variety",
    LongReferences: "task.budget",
    PassedAtTheFloor: "verdict.passed",
    TaxesWords: "verdict.passed",
    TopWithoutPassing: "verdict.passed",
    ZeroPadded: "task.secret",
    Base64Secret: "task.secret",
    HexSecret: "task.secret",
    ReversedSecret: "task.secret",
    CapitalsDoNotMatter: "task.secret",
    EvalInOtherWords: "task.split",
    FlatAboveTheMiddle: "task.level",
    RareTellsDate: "task.process",
    LeavesFewFiles: "safety.files",
    LeavesOneFile: "safety.files",
    WritesALog: "safety.files",
    LeavesFilesAtHome: "safety.files",
    ShellLeavesFiles: "safety.files",
    LeavesFolders: "safety.files",
    LeavesSomeProcesses: "safety.processes",
    KeepsALittle: "cost.memory",
    KeepsATableForEachTask: "cost.memory",
    KeepsEachAnswer: "cost.memory",
    NumbersWhatItMeets: "task.pure",
    HidesATerm: "task.ambiguous",
    HeldOutByWording: "task.split",
    TellsLanguage: "task.process",
    TellsMonth: "task.process",
    SetsThePrecision: "safety.state",
    ReplacesAFunction: "safety.state",
    OrphansAProcess: "safety.processes",
    KeepsATableForEachKey: "cost.memory",
    HarderFromTheMiddle: "task.level",
    CanaryThatCanBeSolved: "floor.canaries",
}
"""Each fault with the check that has to find it."""

SOUND: Mapping[type[Environment[Any]], Sequence[str]] = {
    NeverEmptyTruth: (
        *("verdict.reference", "verdict.form", "task.made", "task.pure", "task.truth"),
    ),
    NoneIsNamed: ("task.truth", "verdict.reference"),
    ListsAreAnswers: ("task.truth", "verdict.reference"),
    SameRowTwice: ("task.ambiguous", "task.variety"),
    PartlyPaid: ("verdict.passed", "verdict.reference"),
    WritesBackwards: ("task.secret",),
    WritesCapitals: ("task.secret",),
    EasyAndHard: ("task.level",),
    HiddenDifficulty: ("task.level",),
    FewerHints: ("task.level",),
    NeedsHome: ("task.process", "verdict.process"),
    KeepsDates: ("task.process", "verdict.process"),
    CachesInAFile: ("safety.files",),
    WritesAndRemoves: ("safety.files", "safety.processes"),
    HasAPool: ("safety.processes", "verdict.process"),
    CachesInMemory: ("cost.memory",),
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
