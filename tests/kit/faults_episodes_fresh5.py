"""Planted faults of the fifth fresh part: episodes."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from bases_asked_fresh5 import judged
from bases_state_fresh5 import Baking, Bowl, Held, Jugs, JugsEpisode, handled
from catalogue import fault

from grpo_core import Episode, Message, Reward, Rollout, Task, Verdict, tool
from grpo_core.protocol.tools import calls_of


class JugsWithAServant(JugsEpisode):
    """A task of the event loop carries out the orders, one after another."""

    async def open(self) -> Sequence[Message]:
        self.orders: asyncio.Queue[str] = asyncio.Queue()
        self.servant = asyncio.create_task(self.serve())
        return ()

    async def serve(self) -> None:
        while True:
            self.carry_out(await self.orders.get())
            self.orders.task_done()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.orders.put_nowait(messages[-1].content)
        await self.orders.join()
        return None if self.done() else (Message("user", self.told()),)

    async def close(self) -> None:
        if self.heard:
            self.servant.cancel()
            await asyncio.wait([self.servant])


@fault("a task of the event loop is left without a turn", "episode.close")
class ServantWithoutAnOrder(Jugs):
    """Who was given no order is not sent home."""

    attempt = JugsWithAServant


class BowlOfTheLastTurn(Bowl):
    """The last turn of all gets no reply, so that the verdict makes its calls."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        if rollout.messages and calls_of(rollout.messages[-1]):
            await self.reply(rollout.messages)
        return await super().verdict(rollout)


@fault("a verdict carries out the last turn again", "episode.repeat")
class WeighsTheLastAgain(Baking):
    """A last turn that got its reply is not told from one that got none."""

    attempt = BowlOfTheLastTurn


class JugsOfThePool(JugsEpisode):
    """Goes back into the pool when it is closed."""

    def __init__(self, task: Task[Any], pool: list[JugsOfThePool]) -> None:
        super().__init__(task)
        self.pool = pool

    def restart(self, task: Task[Any]) -> JugsOfThePool:
        self.task, self.held, self.heard = task, self.start(task), 0
        return self

    async def close(self) -> None:
        self.pool.append(self)


@fault("a verdict depends on the episodes before", "episode.replay", "verdict.repeat")
class RinsedJugs(Jugs):
    """Episodes are used again, and their count of fills goes on."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.pool: list[JugsOfThePool] = []

    def episode(self, task: Task[Any]) -> Episode:
        return self.pool.pop().restart(task) if self.pool else JugsOfThePool(task, self.pool)


class BowlWithATape(Bowl):
    """A tape has what was weighed, in order."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task)
        self.tape: deque[tuple[str, int]] = deque()

    def put(self, food: str, grams: int) -> None:
        super().put(food, grams)
        self.tape.append((food, grams))

    @tool
    def remove(self, food: str) -> str:
        """Take a food out of the bowl, all of it."""
        self.tape = deque(entry for entry in self.tape if entry[0] != food)
        return super().remove(food)

    async def verdict(self, rollout: Rollout) -> Verdict:
        weighed = dict[str, int]()
        while self.tape:
            food, grams = self.tape.popleft()
            weighed[food] = weighed.get(food, 0) + grams
        return judged(weighed == self.task.data, str(weighed))


@fault("a verdict uses up what it needs", "episode.repeat")
class TearsOffTheTape(Baking):
    attempt = BowlWithATape


@cache
def row(sizes: Held) -> list[int]:
    """Return empty jugs of these sizes."""
    return [0 for _ in sizes]


class JugsOfTheirSize(JugsEpisode):
    """The jugs are a list, in which an order changes the numbers."""

    def start(self, task: Task[Any]) -> Any:
        return row(task.data["sizes"])

    def carry_out(self, text: str) -> None:
        self.heard += 1
        self.fills += text.strip().startswith("fill ")
        jugs: Any = self.held
        jugs[:] = handled(self.task.data["sizes"], tuple(jugs), text)


@fault("attempts at the same task share a state", "episode.apart", "episode.replay")
class JugsFromTheCache(Jugs):
    attempt = JugsOfTheirSize


class SavedJugs(JugsEpisode):
    """After each order it is saved what the jugs hold, and taken up again from there."""

    saved = Path(tempfile.gettempdir()) / "jugs-of-the-fifth-part.json"

    async def open(self) -> Sequence[Message]:
        self.saved.write_text(json.dumps(self.held))
        return ()

    def carry_out(self, text: str) -> None:
        if self.saved.exists():
            self.held = tuple(json.loads(self.saved.read_text()))
        super().carry_out(text)
        self.saved.write_text(json.dumps(self.held))

    async def close(self) -> None:
        self.saved.unlink(missing_ok=True)


@fault("the state of an attempt is kept in a file with a fixed name", "episode.apart")
class GoesOnFromTheFile(Jugs):
    attempt = SavedJugs


class DiscountedJugs(JugsEpisode):
    """Pays orders the more, the closer they were to the end of an attempt that came there."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        verdict = await super().verdict(rollout)
        lefts = reversed(range(self.heard))  # how many turns were left after each
        paid = (verdict.total * 0.5 ** min(left + 1, self.heard - 1) for left in lefts)
        rewards = {"reward": Reward(turns=tuple(paid))}
        return Verdict(rewards, passed=verdict.passed, answer=verdict.answer)


@fault("turns share what came later", "episode.turns")
class DiscountedFromTheEnd(Jugs):
    attempt = DiscountedJugs
