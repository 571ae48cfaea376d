"""Sound environments of the sixth fresh part: tools and episodes."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from bases_desk_fresh6 import MEMBERS, SPACE, Desk, marked

from grpo_core import (
    Environment,
    Episode,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    ToolEpisode,
    Verdict,
    held_out,
    tool,
    tools_of,
)
from grpo_core.extract import parse_integer, xml_tag

STOPS = ("Abbey", "Bridge", "Castle", "Docks", "Exchange", "Fair", "Grove", "Hall", "Inn", "Jetty")


@cache
def rides() -> Mapping[tuple[str, str], int]:
    """Return how many minutes a ride takes between each two stops, in the order of their names."""
    rng = random.Random("rides of the sixth part")
    return {(a, b): rng.randint(4, 58) for a in STOPS for b in STOPS if a < b}


def minutes_of(start: str, end: str) -> int:
    """Return the minutes of a ride."""
    found = rides().get((min(start, end), max(start, end)))
    if found is None:
        raise ValueError(f"rides go between two of {', '.join(STOPS)}")
    return found


def call(named: str, /, **arguments: Any) -> str:
    """Return a turn with a call of a tool."""
    return f"<tool_call>{json.dumps({'name': named, 'arguments': arguments})}</tool_call>"


class Riders(Desk):
    """How long does a trip take? A tool knows each ride; the answer is a number in a block."""

    max_turns = 8
    max_new_tokens = 160

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        stops = rng.sample(STOPS, 3 + round(3 * level))
        waits = [rng.randint(2, 19) for _ in stops[1:-1]]
        told = ", then ".join(
            f"{wait} minutes at {stop}" for stop, wait in zip(stops[1:-1], waits, strict=True)
        )
        words = (
            f"Somebody rides from {stops[0]} to {stops[-1]}, and waits {told} on the way, with a "
            "ride between each stop and the next one. How many minutes does it take? Look the "
            "rides up, and end with the number, as in <minutes>310</minutes>."
        )
        return words, {"stops": stops, "waits": waits}

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.ride,)

    def ride(self, start: str, end: str) -> object:
        """Return how many minutes a ride takes from one stop to another."""
        return {"minutes": minutes_of(start, end)}

    def minutes(self, data: Any) -> int:
        pairs = zip(data["stops"], data["stops"][1:], strict=False)
        waits: list[int] = data["waits"]
        return sum(minutes_of(*pair) for pair in pairs) + sum(waits)

    def answer(self, data: Any) -> str:
        return f"<minutes>{self.minutes(data)}</minutes>"

    def marks(self, data: Any, text: str) -> float:
        block = xml_tag(text, tag="minutes")
        if block is None or text[block.end :].strip(SPACE):
            return 0.0
        return float(block.content.strip(SPACE) == str(self.minutes(data)))

    def calls(self, data: Any) -> Sequence[str]:
        pairs = zip(data["stops"], data["stops"][1:], strict=False)
        return [call("ride", start=start, end=end) for start, end in pairs]

    def reference(self, task: Task[Any]) -> Any:
        return *self.calls(task.data), self.answer(task.data)


class Staged(Environment[Any]):
    """An environment with episodes."""

    max_turns = 8
    max_new_tokens = 160
    timeout_seconds = 3.0
    replayable = True

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            words, data = self.posed(rng, key.level)
            if held_out(words) == (key.split == "eval"):
                return Task(key, (Message("user", words),), data)

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        """Return the words of a question, and the data of its task."""
        raise NotImplementedError


WARES = ("tea", "rice", "soap", "wool", "nuts", "milk", "figs", "salt")


class Bench(ToolEpisode[Any]):
    """A folder with bills."""

    folder: Path

    async def open(self) -> Sequence[Message]:
        self.folder = Path(tempfile.mkdtemp(prefix="bills-"))
        for name, lines in self.task.data["bills"].items():
            text = "".join(f"{ware}: {cents} ct\n" for ware, cents in lines)
            (self.folder / name).write_text(text)
        return ()

    def place(self, name: str) -> Path:
        """Return where a file is, which has to be in the folder itself."""
        if name != Path(name).name or not name.replace("-", "").replace(".", "").isalnum():
            raise ValueError("a name has letters, digits, dots and hyphens only")
        return self.folder / name

    @tool
    def files(self) -> str:
        """Return the names of the files in the folder."""
        return ", ".join(sorted(path.name for path in self.folder.iterdir()))

    @tool
    def read(self, name: str) -> str:
        """Return the beginning of a file."""
        with self.place(name).open(encoding="utf-8") as file:
            return file.read(1000) or "(empty)"

    @tool
    def write(self, name: str, text: str) -> str:
        """Write a file of at most 1000 characters."""
        self.place(name).write_text(text[:1000].encode(errors="replace").decode())
        return f"{len(text[:1000])} characters are in {name}"

    async def verdict(self, rollout: Rollout) -> Verdict:
        path = self.folder / "total.txt"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return marked(float(self.right(text)), text)

    def right(self, text: str) -> bool:
        return text.strip(SPACE) == str(self.task.data["total"])

    async def close(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


class Bills(Staged):
    """An episode with tools: add up what a ware costs in the files of a folder."""

    attempt: ClassVar[type[Bench]] = Bench

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        numbers = rng.sample(range(1000, 9999), 2 + round(3 * level))
        bills = {
            f"bill-{number}.txt": [(ware, rng.randint(101, 999)) for ware in rng.sample(WARES, 6)]
            for number in numbers
        }
        for lines in bills.values():
            lines.append(("bread", rng.randint(101, 999)))
            rng.shuffle(lines)
        off = rng.randint(11, 99)
        words = (
            f"Bread is on each of the bills {', '.join(bills)}. Read them, add up what it costs, "
            f"take {off} ct off, and write the number alone, in ct, into total.txt. Then say done."
        )
        total = sum(dict(lines)["bread"] for lines in bills.values()) - off
        return words, {"total": total, "bills": bills}

    def tools(self) -> Sequence[Callable[..., object]]:
        return tools_of(self.attempt)

    def episode(self, task: Task[Any]) -> Episode:
        return self.attempt(task)

    def reference(self, task: Task[Any]) -> Any:
        turns = (call("read", name=name) for name in task.data["bills"])
        return *turns, call("write", name="total.txt", text=str(task.data["total"])), "done"


class QuizEpisode(Episode):
    """Asks one question after the other."""

    def __init__(self, task: Task[Any]) -> None:
        self.task, self.number = task, 0

    async def open(self) -> Sequence[Message]:
        return (self.asked(),)

    def asked(self) -> Message:
        return Message("user", f"How much is {self.task.data['asked'][self.number]}?")

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.number += 1
        return (self.asked(),) if self.number < len(self.task.data["asked"]) else None

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = [message.content for message in rollout.messages if message.role == "assistant"]
        right = [
            parse_integer(text, max_digits=6) == answer
            for text, answer in zip(turns, self.task.data["answers"], strict=False)
        ]
        return self.judged(right, turns)

    def judged(self, right: Sequence[bool], turns: Sequence[str]) -> Verdict:
        count = len(self.task.data["answers"])
        earned = [one / count for one in right]
        reward = Reward(turns=tuple(earned)) if earned else Reward(0.0)
        passed = len(right) == count and all(right)
        return Verdict({"reward": reward}, passed=passed, answer=" ".join(turns)[:80])


class Quiz(Staged):
    """An episode: sums of people's points, asked one after the other; each turn is paid."""

    max_turns = 6
    max_new_tokens = 8
    attempt: ClassVar[type[QuizEpisode]] = QuizEpisode

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        points = {name: rng.randint(101, 999) for name in rng.sample(MEMBERS, 5)}
        asked, answers = list[str](), list[int]()
        for _ in range(3 + round(3 * level)):
            one, other = rng.sample(list(points), 2)
            times = rng.randint(2, 9)
            asked.append(f"{one} and {times} times {other}")
            answers.append(points[one] + times * points[other])
        told = ", ".join(f"{name} has {number}" for name, number in points.items())
        words = (
            f"Points: {told}. I ask {len(asked)} times what some have together. Reply with the "
            "number alone each time."
        )
        return words, {"asked": asked, "answers": answers}

    def episode(self, task: Task[Any]) -> Episode:
        return self.attempt(task)

    def reference(self, task: Task[Any]) -> Any:
        return tuple(map(str, task.data["answers"]))
