"""Sound environments of the fourth fresh part: episodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, ClassVar

from bases_tools_fresh4 import call

from grpo_core import (
    Environment,
    Episode,
    Limits,
    Message,
    Reward,
    Rollout,
    Sandbox,
    Services,
    Session,
    Task,
    TaskKey,
    ToolEpisode,
    Verdict,
    held_out,
    tool,
    tools_of,
)
from grpo_core.extract import fenced_code, parse_integer
from grpo_sandbox.auto import Auto


def pressed(lamps: str, place: int) -> str:
    """Return a row of lamps after a switch, which turns a lamp and its neighbours."""
    turned = {place - 1, place, place + 1}
    return "".join(
        lamp if at not in turned else "1" if lamp == "0" else "0" for at, lamp in enumerate(lamps)
    )


def solution(lamps: str) -> list[int] | None:
    """Return the switches that turn all lamps on, by trying both ways for the first one."""
    for first in (False, True):
        row, switches = lamps, list[int]()
        if first:
            row, switches = pressed(row, 0), [0]
        for place in range(1, len(lamps)):
            if row[place - 1] == "0":
                row, switches = pressed(row, place), [*switches, place]
        if "0" not in row:
            return switches
    return None


class PanelEpisode(Episode):
    """A row of lamps with switches."""

    def __init__(self, task: Task[str]) -> None:
        self.task, self.lamps, self.heard = task, task.data, 0

    async def open(self) -> Sequence[Message]:
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.heard += 1
        self.press(messages[-1].content)
        if "0" not in self.lamps:
            return None
        return (Message("user", self.told()),)

    def press(self, text: str) -> None:
        found = re.fullmatch(r"press ([1-9][0-9]?)", text.strip(), re.ASCII)
        if found is not None and int(found[1]) <= len(self.lamps):
            self.lamps = pressed(self.lamps, int(found[1]) - 1)

    def told(self) -> str:
        return f"Lamps: {self.lamps}"

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = [message.content for message in rollout.messages if message.role == "assistant"]
        for text in turns[self.heard :]:
            self.press(text)
        self.heard = len(turns)
        return self.judged("0" not in self.lamps)

    def judged(self, right: bool) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=self.lamps)


class Panel(Environment[str]):
    """An episode: turn all lamps of a row on by switches that turn three of them."""

    max_turns = 16
    max_new_tokens = 16
    timeout_seconds = 2.0
    replayable = True

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            lamps = "".join(rng.choice("01") for _ in range(10 + round(2 * key.level)))
            switches = solution(lamps)
            if switches and held_out(lamps) == (key.split == "eval"):
                rules = "Switch N turns lamp N and its neighbours. Turn all on (1), by: press 3"
                return Task(key, (Message("user", f"Lamps: {lamps}\n{rules}"),), lamps)

    def episode(self, task: Task[str]) -> Episode:
        return PanelEpisode(task)

    def reference(self, task: Task[str]) -> Any:
        return tuple(f"press {place + 1}" for place in solution(task.data) or ())


Things = dict[str, int]
GEAR = tuple(
    " ".join(pair)
    for pair in product(
        ("red", "old", "small", "heavy"),
        ("tent", "stove", "rope", "lamp", "map", "axe", "kettle", "blanket", "radio", "saw", "pan"),
    )
)


class Packing(ToolEpisode[tuple[Things, int]]):
    """A backpack that is being packed."""

    def __init__(self, task: Task[tuple[Things, int]]) -> None:
        super().__init__(task)
        self.packed: set[str] = set()

    @tool
    def pack(self, thing: str) -> str:
        """Put a thing into the backpack."""
        if thing not in self.task.data[0]:
            raise ValueError("there is no such thing")
        self.packed.add(thing)
        return self.content()

    @tool
    def unpack(self, thing: str) -> str:
        """Take a thing out of the backpack."""
        self.packed.discard(thing)
        return self.content()

    def content(self) -> str:
        return f"packed: {', '.join(sorted(self.packed)) or 'nothing'}"

    async def verdict(self, rollout: Rollout) -> Verdict:
        return self.judged(sum(self.task.data[0][thing] for thing in self.packed))

    def judged(self, weight: int) -> Verdict:
        right = weight == self.task.data[1]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=f"{weight} g")


class Backpack(Environment[tuple[Things, int]]):
    """An episode with tools: pack things that weigh exactly so much."""

    max_turns = 8
    max_new_tokens = 256
    replayable = True

    def task(self, key: TaskKey) -> Task[tuple[Things, int]]:
        rng = key.rng()
        while True:
            things = {thing: rng.randint(101, 1999) for thing in rng.sample(GEAR, 9)}
            weight = sum(things[thing] for thing in list(things)[: 3 + round(2 * key.level)])
            shown = ", ".join(f"{thing} {things[thing]} g" for thing in sorted(things))
            prompt = f"Pack exactly {weight} g of these, and then say that you are done: {shown}."
            if held_out(prompt) == (key.split == "eval"):
                return Task(key, (Message("user", prompt),), (things, weight))

    def tools(self) -> Sequence[Callable[..., object]]:
        return tools_of(Packing)

    def episode(self, task: Task[tuple[Things, int]]) -> Episode:
        return Packing(task)

    def reference(self, task: Task[tuple[Things, int]]) -> Any:
        things, weight = task.data
        count = next(n for n in range(10) if sum(list(things.values())[:n]) == weight)
        return (*(call("pack", thing=thing) for thing in list(things)[:count]), "I am done.")


def with_sandbox(environment: Callable[..., Environment[Any]]) -> Environment[Any]:
    """Return the environment with a sandbox in which commands run."""
    return environment(services=Services(sandboxes={"default": Auto()}))


class WorkshopEpisode(Episode):
    """A shell in a folder."""

    def __init__(self, task: Task[Any], sandbox: Sandbox) -> None:
        self.task, self.sandbox, self.heard = task, sandbox, 0
        self.session: Session | None = None

    async def open(self) -> Sequence[Message]:
        limits = Limits(total_seconds=30.0)
        self.session = await self.sandbox.session(self.files(), limits=limits)
        return ()

    def files(self) -> dict[str, str | bytes]:
        rows = "".join(f"{name},{amount}\n" for name, amount in self.task.data["rows"])
        return {"sales.csv": "name,amount\n" + rows}

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.heard += 1
        said = await self.run(messages[-1].content)
        return None if said is None else (Message("user", said),)

    async def run(self, text: str) -> str | None:
        """Run the block of a turn, and return what it prints; None if there is no block."""
        block = fenced_code(text, languages=("sh", ""))
        if block is None or self.session is None:
            return None
        result = await self.session.exec(block.content)
        return (result.stdout + result.stderr)[:800] or "[nothing printed]"

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = [message.content for message in rollout.messages if message.role == "assistant"]
        for text in turns[self.heard :]:
            await self.run(text)
        self.heard = len(turns)
        right = await self.done()
        return Verdict({"reward": Reward(float(right))}, passed=right)

    async def done(self) -> bool:
        if self.session is None:
            return False
        found = await self.session.read("total.txt", limit=100)
        text = (found or b"").decode(errors="replace")
        return parse_integer(text.strip(), max_digits=12) == int(self.task.data["total"])

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()


class Workshop(Environment[Any]):
    """An episode with a sandbox: add up a column of a file, for some of its rows."""

    needs = frozenset({"sandbox"})
    max_turns = 4
    max_new_tokens = 128
    timeout_seconds = 60.0
    replayable = True
    attempt: ClassVar[type[WorkshopEpisode]] = WorkshopEpisode

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            towns = rng.sample(("Ulm", "Bonn", "Graz", "Linz", "Bern", "Basel", "Kiel"), 3)
            count = 12 + round(60 * key.level)
            rows = [(rng.choice(towns), rng.randint(101, 9999)) for _ in range(count)]
            prompt = (
                f"The {count} rows of sales.csv are sales. Write the sum of those of {towns[0]} to "
                f"total.txt. A ```sh block is run; reply without one when you are done. "
                f"The first sale is {rows[0][1]}, the last one {rows[-1][1]}."
            )
            total = sum(amount for town, amount in rows if town == towns[0])
            if total and held_out(prompt) == (key.split == "eval"):
                data = {"rows": rows, "total": total}
                return Task(key, (Message("user", prompt),), data)

    def episode(self, task: Task[Any]) -> Episode:
        return self.attempt(task, self.services.sandbox())

    def reference(self, task: Task[Any]) -> Any:
        return f"```sh\necho {task.data['total']} > total.txt\n```", "Done."
