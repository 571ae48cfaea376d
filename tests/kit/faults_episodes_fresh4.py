"""Planted faults of the fourth fresh part: episodes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime, time
from typing import Any, ClassVar

from bases_state_fresh4 import (
    Backpack,
    Packing,
    Panel,
    PanelEpisode,
    Things,
    Workshop,
    WorkshopEpisode,
    pressed,
    with_sandbox,
)
from catalogue import fault

from grpo_core import (
    Environment,
    Episode,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
    held_out,
)
from grpo_core.extract import parse_integer


class Timed(PanelEpisode):
    """Measures how long the first turn takes."""

    thinking = 0.0

    async def open(self) -> Sequence[Message]:
        self.begun = asyncio.Event()
        self.watch = asyncio.create_task(self.measure())
        return ()

    async def measure(self) -> None:
        begin = asyncio.get_running_loop().time()
        await self.begun.wait()
        self.thinking = asyncio.get_running_loop().time() - begin

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.begun.set()
        await self.watch
        return await super().reply(messages)


@fault("a task of the event loop is left without a turn", "episode.close")
class FirstTurnMeasured(Panel):
    """What measures waits for the first reply, and goes on to wait if there is none."""

    def episode(self, task: Task[str]) -> Episode:
        return Timed(task)


class LastTurnAgain(PanelEpisode):
    """Carries out the last turn in the verdict, unless the row is done."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        if "0" in self.lamps:  # the last turn gets no reply
            self.press(rollout.text)
        return self.judged("0" not in self.lamps)


@fault(
    "a verdict carries out the last turn again",
    *("episode.repeat", "verdict.repeat", "episode.replay"),
)
class PressedAgain(Panel):
    """It is not looked at whether reply() has seen the turn, or a verdict was asked before."""

    def episode(self, task: Task[str]) -> Episode:
        return LastTurnAgain(task)


class Unpacked(Packing):
    """Weighs the things by taking them out of the backpack."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        weight = 0
        while self.packed:
            weight += self.task.data[0][self.packed.pop()]
        return self.judged(weight)


@fault("a verdict uses up what it needs", "episode.repeat", "verdict.repeat")
class WeighedOneByOne(Backpack):
    """Whoever asks for the verdict again weighs an empty backpack."""

    def episode(self, task: Task[tuple[Things, int]]) -> Episode:
        return Unpacked(task)


class Clocked(PanelEpisode):
    """Says what time it is in the story, in which each press takes four minutes."""

    def told(self) -> str:
        return f"It is {time(8, 4 * self.heard):%H:%M}. {super().told()}"


@fault("an episode fails late in endless talk", "episode.talk", "reply.form", "reply.ends")
class ShiftOfAnHour(Panel):
    """After fifteen presses the minutes are sixty, which no time has."""

    def episode(self, task: Task[str]) -> Episode:
        return Clocked(task)


class Stamped(Packing):
    """Marks each list of what is packed."""

    def content(self) -> str:
        return f"[{datetime.now():%H:%M:%S.%f}] {super().content()}"


@fault("an episode tells the time", "episode.replay", "reply.repeat")
class StampedLists(Backpack):
    """Tools answer with the time at which they were called."""

    def episode(self, task: Task[tuple[Things, int]]) -> Episode:
        return Stamped(task)


class WithMetadata(WorkshopEpisode):
    """Puts the description of the file beside it, as the generator of the rows wrote it."""

    def files(self) -> dict[str, str | bytes]:
        rows, total = self.task.data["rows"], self.task.data["total"]
        described = {"rows": len(rows), "columns": ["name", "amount"], "checksum": total}
        return {**super().files(), ".sales.csv.meta": json.dumps(described)}


@fault("the folder holds the answer", "episode.files", build=lambda: with_sandbox(MetadataBeside))
class MetadataBeside(Workshop):
    """The sum stands in a hidden file."""

    attempt = WithMetadata


class SharedPresses(PanelEpisode):
    """Keeps the presses, from which the row follows."""

    presses: ClassVar[list[int]] = []

    async def open(self) -> Sequence[Message]:
        self.presses.clear()
        return ()

    def press(self, text: str) -> None:
        found = re.fullmatch(r"press ([1-9][0-9]?)", text.strip(), re.ASCII)
        if found is not None and int(found[1]) <= len(self.lamps):
            self.presses.append(int(found[1]) - 1)
        self.lamps = self.task.data
        for place in self.presses:
            self.lamps = pressed(self.lamps, place)


@fault("the state of an attempt is kept on a class", "episode.apart")
class PressesOnTheClass(Panel):
    """A list that the class has is that of all attempts, and is emptied at the start of each."""

    def episode(self, task: Task[str]) -> Episode:
        return SharedPresses(task)


class Borrowed(Packing):
    """Packs into a backpack that the environment has for the task."""

    def __init__(self, task: Task[tuple[Things, int]], packs: dict[TaskKey, set[str]]) -> None:
        super().__init__(task)
        self.packed = packs.setdefault(task.key, set())

    async def close(self) -> None:
        self.packed.clear()


@fault("the state of an attempt is kept on the environment", "episode.apart")
class BackpackOfATask(Backpack):
    """All attempts at a task pack into the same backpack, which each empties at its end."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.packs: dict[TaskKey, set[str]] = {}

    def episode(self, task: Task[tuple[Things, int]]) -> Episode:
        return Borrowed(task, self.packs)


class CheckedByScript(WorkshopEpisode):
    """Judges by a script in the folder, which knows a digest of the sum."""

    def files(self) -> dict[str, str | bytes]:
        digest = hashlib.sha256(f"{self.task.data['total']}\n".encode()).hexdigest()
        script = f'test "$(sha256sum < total.txt)" = "{digest}  -"\n'
        return {**super().files(), "check.sh": script}

    async def done(self) -> bool:
        if self.session is None:
            return False
        result = await self.session.exec(["sh", "check.sh"])
        return result.status == "ok" and result.exit_code == 0


@fault(
    "the verifier's file is in the folder from the start",
    "episode.files",
    build=lambda: with_sandbox(CheckInTheFolder),
)
class CheckInTheFolder(Workshop):
    """Whoever replaces the script passes."""

    attempt = CheckedByScript


class Interview(Episode):
    """Asks one sum after another until one is wrong."""

    def __init__(self, task: Task[list[list[int]]]) -> None:
        self.task, self.place, self.heard, self.wrong = task, 0, 0, False

    async def open(self) -> Sequence[Message]:
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.take(messages[-1].content)
        if self.wrong or self.place == len(self.task.data):
            return None
        return (Message("user", asked(self.task.data[self.place])),)

    def take(self, text: str) -> None:
        self.heard += 1
        answer = parse_integer(text, max_digits=6)
        if answer is not None and self.place < len(self.task.data):
            self.wrong = self.wrong or answer != sum(self.task.data[self.place])
            self.place += 1

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = [message.content for message in rollout.messages if message.role == "assistant"]
        for text in turns[self.heard :]:
            self.take(text)
        right = self.heard >= len(self.task.data) and not self.wrong
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=rollout.text[:20])


def asked(numbers: Sequence[int]) -> str:
    """Return a question for a sum."""
    return f"What is {' + '.join(map(str, numbers))}? Reply with the number only."


@fault("whoever talks to the end passes", "floor.empty", "floor.junk", "floor.echo", "episode.talk")
class OneMistakeEndsIt(Environment[list[list[int]]]):
    """What is no number is asked again, and is no mistake."""

    max_turns = 6
    max_new_tokens = 16
    replayable = True

    def task(self, key: TaskKey) -> Task[list[list[int]]]:
        rng, count = key.rng(), 2 + round(2 * key.level)
        while True:
            sums = [[rng.randint(101, 999) for _ in range(count)] for _ in range(self.max_turns)]
            rules = "I ask six sums, and a wrong answer ends it."
            prompt = f"{rules} {asked(sums[0])}"
            if held_out(prompt) == (key.split == "eval"):
                return Task(key, (Message("user", prompt),), sums)

    def episode(self, task: Task[list[list[int]]]) -> Episode:
        return Interview(task)

    def reference(self, task: Task[list[list[int]]]) -> Any:
        return tuple(str(sum(numbers)) for numbers in task.data)
