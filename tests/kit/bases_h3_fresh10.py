"""Sound dialogues without state."""

import re
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

from bases_h_fresh10 import BLANK, ask, draw, paid

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict


def policy_turns(messages: Sequence[Message]) -> list[str]:
    """Return what the policy said, turn by turn."""
    return [m.content.strip(BLANK) for m in messages if m.role == "assistant"]


class BoilerOnTheLine(Environment[dict[str, Any]]):
    """Has a policy read gauges of a boiler, one a turn, and then name the broken part."""

    levels = False
    max_turns: ClassVar[int] = 8
    max_new_tokens = 16
    gauges: ClassVar[tuple[str, ...]] = ("pump", "valve", "burner", "flue", "thermostat", "fan")

    def task(self, key: TaskKey) -> Task[dict[str, Any]]:
        ranges, broken, readings = draw(key, self.boiler, lambda made: str(made[0]))
        listed = ", ".join(f"{name} {low} to {high}" for name, (low, high) in ranges.items())
        prompt = (
            f"One part of a boiler is out of its range. Ranges: {listed}. `test NAME` reads the "
            "gauge of a part. When you know the broken part, write `FAULT: NAME`; the first such "
            "line counts. One command a turn."
        )
        return ask(key, prompt, {"broken": broken, "readings": readings})

    def boiler(self, rng: Random) -> tuple[dict[str, tuple[int, int]], str, dict[str, int]]:
        """Return ranges, the broken part and what the gauges read."""
        lows = {name: rng.randint(10, 80) for name in self.gauges}
        ranges = {name: (low, low + rng.randint(6, 15)) for name, low in lows.items()}
        broken = rng.choice(self.gauges)
        readings = {name: rng.randint(*ranges[name]) for name in self.gauges}
        readings[broken] = ranges[broken][1] + rng.randint(3, 12)
        return ranges, broken, readings

    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        text = messages[-1].content.strip(BLANK)
        if self.named(text) is not None:
            return self.closing(task)
        name = text.removeprefix("test ")
        if text.startswith("test ") and name in self.gauges:
            return (Message("user", f"{name} reads {task.data['readings'][name]}"),)
        return (Message("user", "No such command."),)

    def closing(self, task: Task[dict[str, Any]]) -> Sequence[Message] | None:
        """Return what is said when the policy has named a part."""
        return None

    def named(self, text: str) -> str | None:
        """Return the part that a turn names, or None."""
        match = re.fullmatch("FAULT: ([a-z]{1,12})", text, re.ASCII)
        return match[1] if match else None

    def verify(self, task: Task[dict[str, Any]], rollout: Rollout) -> Verdict:
        names = [self.named(text) for text in policy_turns(rollout.messages)]
        first = next((name for name in names if name is not None), None)
        return paid(first == task.data["broken"], first)

    def reference(self, task: Task[dict[str, Any]]) -> list[str]:
        tests = [f"test {name}" for name in self.gauges]
        return [*tests, f"FAULT: {task.data['broken']}"]


class StoneOnTheBench(Environment[dict[str, Any]]):
    """Has a policy ask for properties of a stone, and then name it by a table in the prompt."""

    levels = False
    max_turns: ClassVar[int] = 6
    max_new_tokens = 16
    parts: ClassVar[dict[str, float]] = {"named": 0.7, "asked": 0.3}
    stones: ClassVar[tuple[str, ...]] = (
        "augite", "barite", "calcite", "dolomite", "epidote", "fluorite", "galena", "halite",
    )  # fmt: skip
    orders: ClassVar[str] = "When you have asked for all three, write `STONE: NAME`, once."
    properties: ClassVar[dict[str, tuple[str, ...]]] = {
        "streak": ("white", "grey", "brown"),
        "lustre": ("glassy", "waxy", "metallic"),
        "cleavage": ("cubic", "basal", "none"),
    }

    def task(self, key: TaskKey) -> Task[dict[str, Any]]:
        table, stone = draw(key, self.bench, str)
        rows = "; ".join(
            f"{name}: " + ", ".join(f"{which} {value}" for which, value in row.items())
            for name, row in table.items()
        )
        prompt = (
            f"A stone is one of these. {rows}. Ask for `streak`, `lustre` and `cleavage`, one word "
            f"a turn. {self.orders}"
        )
        return ask(key, prompt, {"stone": stone, "row": table[stone]})

    def bench(self, rng: Random) -> tuple[dict[str, dict[str, str]], str]:
        """Return a table of stones that differ, and the one on the bench."""
        while True:
            names = rng.sample(self.stones, 6)
            table = {
                name: {which: rng.choice(values) for which, values in self.properties.items()}
                for name in names
            }
            if len({str(row) for row in table.values()}) == len(names):
                return table, rng.choice(names)

    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        text = messages[-1].content.strip(BLANK)
        if text.startswith("STONE: "):
            return None
        value = task.data["row"].get(text, "cannot be measured")
        return (Message("user", f"It is {value}." if text in self.properties else "Ask again."),)

    def asked(self, turns: Sequence[str]) -> float:
        """Return the share of the properties that were asked for."""
        return len(set(turns) & set(self.properties)) / len(self.properties)

    def verify(self, task: Task[dict[str, Any]], rollout: Rollout) -> Verdict:
        turns = policy_turns(rollout.messages)
        named = [text for text in turns if text.startswith("STONE: ")]
        right = named == [f"STONE: {task.data['stone']}"]
        rewards = {"named": Reward(right), "asked": Reward(self.asked(turns))}
        return Verdict(rewards, passed=right, answer=named[0][:40] if named else None)

    def reference(self, task: Task[dict[str, Any]]) -> list[str]:
        return [*self.properties, f"STONE: {task.data['stone']}"]
