"""Sound environments whose attempts are episodes."""

import asyncio
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from bases_h_fresh10 import BLANK, ask, draw, paid

from grpo_core import Environment, Episode, Message, Reward, Rollout, Task, TaskKey, Verdict


def said(text: str) -> Sequence[Message]:
    """Return one message of the environment."""
    return (Message("user", text),)


class Attempt(Episode):
    """Takes each turn of the policy once, also the last one that gets no reply."""

    def __init__(self, task: Task[Any]) -> None:
        self.task = task
        self.heard = 0

    def take(self, text: str) -> str | None:
        """Change the state by a turn and return the answer; None ends the attempt."""
        raise NotImplementedError

    def judged(self) -> Verdict:
        """Return the verdict on the state."""
        raise NotImplementedError

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.heard += 1
        answer = self.take(messages[-1].content.strip(BLANK))
        return None if answer is None else said(answer)

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = [m.content for m in rollout.messages if m.role == "assistant"]
        for text in turns[self.heard :]:
            self.heard += 1
            self.take(text.strip(BLANK))
        return self.judged()


class LeakSearch(Attempt):
    """Answers probes of a pipe, and remembers the first place that is dug up."""

    def __init__(self, task: Task[int]) -> None:
        super().__init__(task)
        self.dug: list[int] = []

    def take(self, text: str) -> str | None:
        match = re.fullmatch("(probe|dig) ([1-9][0-9]?)", text, re.ASCII)
        if match is None:
            return "Write `probe N` or `dig N`."
        place = int(match[2])
        if match[1] == "dig":
            self.dug.append(place)
            return None
        return self.answer("flows" if place < self.task.data else "is dry", place)

    def answer(self, state: str, place: int) -> str:
        """Return what the engineer hears on a probe."""
        return f"At {place} the pipe {state}."

    def judged(self) -> Verdict:
        return paid(self.dug[:1] == [self.task.data], str(self.dug[:1]))


class LeakyMain(Environment[int]):
    """Has a policy find the leak of a water main by probing, and dig there."""

    levels = False
    replayable: ClassVar[bool] = True
    max_turns: ClassVar[int] = 8
    max_new_tokens = 8
    attempt: ClassVar[type[LeakSearch]] = LeakSearch

    def task(self, key: TaskKey) -> Task[int]:
        street = draw(key, lambda rng: rng.randint(10000, 99999), str)
        leak = key.rng("leak").randint(2, 62)
        prompt = (
            f"Water main {street} has a leak between manholes 1 and 63. `probe N` "
            "tells whether water flows at manhole N: it flows before the leak, and the leak's own "
            "manhole and all behind it are dry. Then `dig N` at the leak, once. One command a turn."
        )
        return ask(key, prompt, leak)

    def episode(self, task: Task[int]) -> Episode:
        return self.attempt(task)

    def reference(self, task: Task[int]) -> list[str]:
        low, high, turns = 1, 63, []
        while high - low > 1:
            middle = (low + high) // 2
            turns.append(f"probe {middle}")
            low, high = (middle, high) if middle < task.data else (low, middle)
        return [*turns, f"dig {task.data}"]


STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


class PickingRound(Attempt):
    """Moves a cart; a turn earns its share if the cart was never so near to the shelf."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task)
        self.place: tuple[int, int] = task.data[0]
        self.earned: list[float] = []
        self.nearest = self.whole = self.distance()

    def distance(self) -> int:
        """Return the steps from the cart to the shelf."""
        return sum(abs(one - two) for one, two in zip(self.place, self.task.data[1], strict=True))

    def take(self, text: str) -> str | None:
        step = STEPS.get(text, (0, 0))
        self.place = (self.place[0] + step[0], self.place[1] + step[1])
        nearer = self.distance() < self.nearest
        self.nearest = min(self.nearest, self.distance())
        self.earned.append(1 / self.whole if nearer else 0.0)
        return None if self.distance() == 0 else f"The cart is at {self.place}."

    def turns(self) -> tuple[float, ...]:
        """Return what each turn earned."""
        return tuple(self.earned)

    def judged(self) -> Verdict:
        reward = Reward(turns=self.turns()) if self.earned else Reward(0.0)
        return Verdict({"reward": reward}, passed=self.distance() == 0)


class CartToTheShelf(Environment[Any]):
    """Has a policy push a cart to a shelf, a step a turn; data are both places."""

    levels = False
    replayable: ClassVar[bool] = True
    max_turns: ClassVar[int] = 8
    max_new_tokens = 8
    attempt: ClassVar[type[PickingRound]] = PickingRound

    def task(self, key: TaskKey) -> Task[Any]:
        start, shift = draw(
            key,
            lambda rng: (
                (rng.randint(10, 60), rng.randint(10, 60)),
                tuple(rng.choice((-1, 1)) * n for n in rng.choice(((1, 3), (2, 2), (3, 1)))),
            ),
            str,
        )
        goal = (start[0] + shift[0], start[1] + shift[1])
        prompt = (
            f"A cart stands at {start} in a warehouse and has to get to the shelf at {goal}. The "
            "first number grows to the east, the second to the north. Reply with one word a turn: "
            "north, south, east or west."
        )
        return ask(key, prompt, (start, goal))

    def episode(self, task: Task[Any]) -> Episode:
        return self.attempt(task)

    def reference(self, task: Task[Any]) -> list[str]:
        (x, y), (to_x, to_y) = task.data
        across = ["east" if to_x > x else "west"] * abs(to_x - x)
        return across + ["north" if to_y > y else "south"] * abs(to_y - y)


def opposed(total: int, goal: int, most: int) -> int:
    """Return what the opponent adds: the winning number if there is one, else some number."""
    return (goal - total) % (most + 1) or min(1 + total % most, goal - total)


class CountingMatch(Attempt):
    """Plays the counting game: whoever says the last number wins."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task)
        self.total, self.goal, self.most = task.data
        self.won = False
        self.over = False
        self.added: list[int] = []

    def take(self, text: str) -> str | None:
        if self.over:
            return None
        added = int(text) if re.fullmatch("[1-9]", text, re.ASCII) else 0
        if not 1 <= added <= min(self.most, self.goal - self.total):
            return f"Add 1 to {self.most}, and no more than is left. We are at {self.total}."
        self.added.append(added)
        self.total += added
        self.won = self.over = self.total == self.goal
        if self.over:
            return None
        mine = opposed(self.total, self.goal, self.most)
        self.total += mine
        self.over = self.total == self.goal
        return None if self.over else f"I add {mine}: {self.total}."

    def judged(self) -> Verdict:
        return paid(self.won, str(self.total))


class CountedTogether(Environment[Any]):
    """Has a policy win a counting game; data are the start, the goal and the largest step."""

    levels = False
    replayable: ClassVar[bool] = True
    max_turns: ClassVar[int] = 10
    max_new_tokens = 8
    attempt: ClassVar[type[CountingMatch]] = CountingMatch

    def task(self, key: TaskKey) -> Task[Any]:
        start, goal, most = draw(key, self.game, str)
        prompt = (
            f"We count from {start} to {goal}. In turn each of us adds a number from 1 to {most}; "
            "whoever gets to the end exactly wins. You begin. Reply with the number that you add."
        )
        return ask(key, prompt, (start, goal, most))

    def game(self, rng: Any) -> tuple[int, int, int]:
        """Return a game that can be won."""
        while True:
            start, most = rng.randint(11, 99), rng.randint(4, 9)
            goal = start + rng.randint(15, 36)
            if (goal - start) % (most + 1):
                return start, goal, most

    def episode(self, task: Task[Any]) -> Episode:
        return self.attempt(task)

    def reference(self, task: Task[Any]) -> list[str]:
        total, goal, most = task.data
        turns = []
        while total < goal:
            step = (goal - total) % (most + 1) or 1
            turns.append(str(step))
            total += step
            total += opposed(total, goal, most) if total < goal else 0
        return turns


class LedgerSession(Attempt):
    """Holds a small database in a folder of its own while an attempt lasts."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task)
        self.folder: Path | None = None
        self.base: sqlite3.Connection | None = None
        self.answer: str | None = None

    async def open(self) -> Sequence[Message]:
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.base = sqlite3.connect(self.folder / "ledger.db", check_same_thread=False)
        self.base.execute("create table debts (name text, amount integer)")
        self.base.executemany("insert into debts values (?, ?)", self.task.data["debts"])
        self.base.commit()
        return ()

    def take(self, text: str) -> str | None:
        if text.startswith("MOST: "):
            self.answer = self.answer or text[6:40]
            return None
        if not text.startswith("sum ") or self.base is None or not text.isascii():
            return "Write `sum NAME` or `MOST: NAME`."
        (total,) = self.base.execute(
            "select sum(amount) from debts where name = ?", (text[4:],)
        ).fetchone()
        return "no such name" if total is None else f"{text[4:]} owes {total}"

    def judged(self) -> Verdict:
        return paid(self.answer == self.task.data["most"], self.answer)

    def release(self) -> None:
        """Close the database and remove its folder."""
        if self.base is not None:
            self.base.close()
            self.base = None
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    async def close(self) -> None:
        self.release()


class WhoOwesMost(Environment[dict[str, Any]]):
    """Has a policy ask a ledger for sums, and name who owes the most."""

    levels = False
    replayable: ClassVar[bool] = True
    max_turns: ClassVar[int] = 6
    max_new_tokens = 16
    names: ClassVar[tuple[str, ...]] = (
        "Ash", "Blythe", "Corin", "Dunstan", "Edda", "Fabian", "Gwen", "Hollis", "Isolde", "Jory",
        "Kester", "Linnet", "Merrick", "Nerys",
    )  # fmt: skip
    attempt: ClassVar[type[LedgerSession]] = LedgerSession

    def task(self, key: TaskKey) -> Task[dict[str, Any]]:
        shop, names = draw(key, lambda rng: (rng.randint(100, 999), rng.sample(self.names, 4)), str)
        rng = key.rng("amounts")
        sums = dict(zip(names, rng.sample(range(300, 900), 4), strict=True))
        debts = [row for name in names for row in self.split(rng, name, sums[name])]
        prompt = (
            f"In the ledger of shop {shop} four people have debts: {', '.join(names)}. `sum NAME` "
            "adds up the debts of one. Who owes the most? Write `MOST: NAME`, once. One command a "
            "turn."
        )
        return ask(key, prompt, {"debts": debts, "most": max(sums, key=lambda name: sums[name])})

    def split(self, rng: Any, name: str, total: int) -> list[tuple[str, int]]:
        """Return two debts that add up to a sum."""
        part = rng.randint(20, 250)
        return [(name, part), (name, total - part)]

    def episode(self, task: Task[dict[str, Any]]) -> Episode:
        return self.attempt(task)

    def reference(self, task: Task[dict[str, Any]]) -> list[str]:
        names = dict.fromkeys(name for name, _ in task.data["debts"])
        return [*(f"sum {name}" for name in names), f"MOST: {task.data['most']}"]


MODEL = """
import sys, time
degrees, watts, rate = map(int, sys.stdin.readline().split())
time.sleep(0.3)
print(degrees + watts // rate, flush=True)
time.sleep(12)
"""
"""Computes the air of a greenhouse, and waits for more until it is stopped."""


class Greenhouse(Episode):
    """Has a process compute how warm a greenhouse gets."""

    def __init__(self, task: Task[Any]) -> None:
        self.task = task
        self.degrees: int = task.data[0]

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content.strip(BLANK) == "done":
            return None
        match = re.fullmatch("heat ([1-9][0-9]{0,4})", messages[-1].content.strip(BLANK), re.ASCII)
        if match is None:
            return said("Write `heat WATTS` or `done`.")
        self.degrees = await self.computed(int(match[1]))
        return said(f"It is {self.degrees} degrees.")

    async def start(self) -> asyncio.subprocess.Process:
        """Start the model."""
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", MODEL,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def exchanged(self, model: asyncio.subprocess.Process, watts: int) -> int:
        """Send the state to the model, and return the degrees that it computes."""
        assert model.stdin is not None
        assert model.stdout is not None
        model.stdin.write(f"{self.degrees} {watts} {self.task.data[2]}\n".encode())
        await model.stdin.drain()
        return int(await model.stdout.readline())

    async def computed(self, watts: int) -> int:
        """Return the degrees after heating."""
        model = await self.start()
        try:
            return await self.exchanged(model, watts)
        finally:
            model.kill()
            await model.wait()

    async def verdict(self, rollout: Rollout) -> Verdict:
        return paid(self.degrees == self.task.data[1], str(self.degrees))
