"""Tasks and verdicts that depend on process, thread, date or history, third fresh part."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import random
import signal
import sqlite3
import threading
from dataclasses import replace
from datetime import datetime
from types import FrameType
from typing import Any

from bases_fresh3 import DAY, Arrival, Initials, Squares, Tally, Walk, squared
from catalogue import fault

from grpo_core import Message, Reward, Rollout, Task, TaskKey, Verdict

JUDGING = ("verdict.form", "verdict.reference", "verdict.process")
OPENINGS = itertools.cycle(("Some people:", "A family:", "A class:", "A choir:", "A team:"))


@fault(
    "wordings are taken in turn from an iterator that all tasks share", "task.pure", "task.process"
)
class WordingsInTurn(Initials):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        prompt = f"{next(OPENINGS)} {self.question(*content)}"
        return Task(key, (Message("user", prompt),), self.solved(*content))


@fault("a digest of a printed set decides the split", "task.process", "task.pure", "task.split")
class DigestOfSet(Initials):
    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            content = self.drawn(key, rng)
            digest = hashlib.sha256(repr(set(content[0])).encode()).digest()
            if (digest[0] < 51) == (key.split == "eval"):
                return content


@fault("the level never falls again", "task.pure", "task.level")
class LevelRatchet(Walk):
    reached = 0.0

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        self.reached = max(self.reached, key.level)
        return super().drawn(replace(key, level=self.reached), rng)


@fault("the pay for the form falls with the number of verdicts", "verdict.repeat")
class FadingForm(Tally):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.judgements = 0

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        self.judgements += 1
        fading = max(0.0, 1 - self.judgements / 200)
        form = max(verdict.rewards["form"].value * fading, verdict.rewards["exact"].value)
        return replace(verdict, rewards={**verdict.rewards, "form": Reward(form)})


@fault("what belongs to a thread is made in the constructor's only", *JUDGING)
class ReaderOfOneThread(Walk):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.local = threading.local()
        self.local.decoder = json.JSONDecoder()

    def accepts(self, truth: Any, answer: Any) -> bool:
        decoded = self.local.decoder.decode(json.dumps(truth))
        return super().accepts(decoded, answer)


@fault("a database's connection is used in another thread than its own", *JUDGING)
class ConnectionOfOneThread(Squares):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.base = sqlite3.connect(":memory:")

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(self.base.execute("SELECT ? = ?", (truth, answer)).fetchone()[0])

    async def close(self) -> None:
        self.base.close()


def out_of_time(_number: int, _frame: FrameType | None) -> None:
    """End a verdict that takes too long."""
    raise TimeoutError


@fault("a deadline is set by a signal, which only the main thread may", *JUDGING)
class AlarmInThread(Walk):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        before = signal.signal(signal.SIGALRM, out_of_time)
        signal.alarm(2)
        try:
            return super().verify(task, rollout)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)


@fault("an event loop is asked for in a thread that has none", *JUDGING)
class LoopInThread(Initials):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return asyncio.get_event_loop().run_until_complete(self.compared(task, rollout.text))

    async def compared(self, task: Task[Any], text: str) -> Verdict:
        return self.judged(task, self.read(text))


@fault("the timetable is that of today's weekday", "task.process")
class TodaysTimetable(Arrival):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        start, minutes = super().drawn(key, rng)
        weekday = datetime.now().weekday()
        return (start + 15 * weekday) % DAY, minutes


@fault("each worker of a cluster takes its share of the rows", "task.process")
class ShareOfRank(Squares):
    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        rank = int(os.environ.get("RANK", "0"))
        rows = squared()[key.split]
        return (rows[(key.index + 97 * rank) % len(rows)],)
