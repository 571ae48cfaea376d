"""Planted faults of the sixth fresh part: episodes."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from bases_state_fresh5 import Jugs, JugsEpisode
from bases_state_fresh6 import Bench, Bills, Quiz, QuizEpisode
from catalogue import fault

from grpo_core import Episode, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer


class WaitingJugs(JugsEpisode):
    """Measures how long the first order takes, in ticks."""

    ticks = 0

    async def open(self) -> Sequence[Message]:
        self.ticker = asyncio.create_task(self.tick())
        return ()

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.ticks += 1

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.ticker.cancel()
        return await super().reply(messages)


@fault("a task of the event loop is left without a turn", "episode.close")
class JugsWithATicker(Jugs):
    """The ticker is stopped by the first order only."""

    attempt = WaitingJugs


NOTES: dict[TaskKey, list[bool]] = defaultdict(list)


class StrictQuiz(QuizEpisode):
    """Ends after two mistakes."""

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        answer, notes = self.task.data["answers"][self.number], NOTES[self.task.key]
        notes.append(messages[-1].content.strip() == str(answer))
        said = await super().reply(messages)
        return said if notes.count(False) < 2 else None


@fault("attempts at the same task share a state", "episode.apart", "episode.replay")
class QuizWithNotes(Quiz):
    """Notes of what was right are found by the key of the task, which other attempts have, too."""

    attempt = StrictQuiz


class DumpedBench(Bench):
    """Keeps the task next to the bills."""

    async def open(self) -> Sequence[Message]:
        said = await super().open()
        about = {"key": str(self.task.key), **self.task.data}
        (self.folder / ".task.json").write_text(json.dumps(about))
        return said


@fault("the folder holds the answer", "episode.files", "tool.secret")
class BillsWithTheirTask(Bills):
    """What a task is made of is written into its folder, for those who look for faults."""

    attempt = DumpedBench


class CountedQuiz(QuizEpisode):
    """Counts right answers while they come in."""

    def __init__(self, task: Task[Any], env: CountsOnItself) -> None:
        super().__init__(task)
        self.env = env

    async def open(self) -> Sequence[Message]:
        self.env.right = []
        return await super().open()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.note(messages[-1].content)
        return await super().reply(messages)

    def note(self, text: str) -> None:
        answer = self.task.data["answers"][self.number]
        self.env.right.append(text.strip() == str(answer))

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = [message.content for message in rollout.messages if message.role == "assistant"]
        if self.number < len(turns):
            self.note(turns[-1])
            self.number += 1
        return self.judged(self.env.right[: len(turns)], turns)


@fault("the state of an attempt is kept on the environment", "episode.apart")
class CountsOnItself(Quiz):
    """What was right so far is in a list of the environment, which an attempt empties first."""

    right: list[bool]

    def episode(self, task: Task[Any]) -> Episode:
        return CountedQuiz(task, self)


class RuledBench(Bench):
    """Reads by a file how a total has to be written."""

    async def open(self) -> Sequence[Message]:
        said = await super().open()
        (self.folder / "rules.json").write_text('{"within": 0}')
        return said

    def right(self, text: str) -> bool:
        total = parse_integer(text, max_digits=6)
        try:
            within = float(json.loads((self.folder / "rules.json").read_text())["within"])
        except (ValueError, KeyError, TypeError, OSError, OverflowError, RecursionError):
            return False
        return total is not None and abs(total - self.task.data["total"]) <= within


@fault("the verifier's file is in the folder from the start", "episode.files")
class BillsWithRules(Bills):
    """How far a total may be off is read from a file, which can be written as any other one."""

    attempt = RuledBench


class BonusQuiz(QuizEpisode):
    def judged(self, right: Sequence[bool], turns: Sequence[str]) -> Verdict:
        count = len(self.task.data["answers"])
        passed = len(right) == count and all(right)
        bonus = 0.2 / count if passed else 0.0
        earned = tuple(0.8 * one / count + bonus for one in right)
        reward = Reward(turns=earned) if earned else Reward(0.0)
        return Verdict({"reward": reward}, passed=passed, answer=" ".join(turns)[:80])


@fault("turns share what came later", "episode.turns")
class QuizWithABonus(Quiz):
    """Whoever makes no mistake gets a fifth more, for all turns alike."""

    attempt = BonusQuiz
