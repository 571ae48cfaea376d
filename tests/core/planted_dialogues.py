"""Toy dialogues and tools with one fault each, beside the sound ones that they are made from."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from grpo_core import Environment, JudgeRequest, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer

Reply = Sequence[Message] | None


class Number(Environment[int]):
    """Passes the number that is said last."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=6)
        right = answer == task.data
        said = None if answer is None else str(answer)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=said)


class Guess(Number):
    """The sound dialogue: guess a number, hear "higher" or "lower", say it last."""

    max_turns = 6
    levels = False
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        low = 10 * rng.randrange(20, 900) + (5 if key.split == "eval" else 0)
        prompt = (
            Message("user", f"I think of a number from {low} on, below {low + 40}. Guess it."),
        )
        return Task(key, prompt, low + rng.randrange(1, 40))

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return self.said(task, messages)

    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        guess = parse_integer(messages[-1].content, max_digits=6)
        if guess == task.data:
            return None
        hint = "one number" if guess is None else "higher" if guess < task.data else "lower"
        return (Message("user", hint),)

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data - 1), str(task.data))

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (f"{task.data} or {task.data + 1}", ("1", f"{task.data}?"))


class NumbersAsReference(Guess):
    def reference(self, task: Task[int]) -> Any:
        return (task.data - 1, task.data)


class TooManyTurns(Guess):
    max_turns = 1


class Raises(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return [Message("user", {"a": "b"}[messages[-1].content])]


class Sum(Number):
    """Sound: a single turn."""

    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        one, two = rng.randrange(100, 9000), rng.randrange(100, 9000)
        two += (two + one) % 2 != (key.split == "eval")
        return Task(key, f"What is {one} + {two}?", one + two)

    def reference(self, task: Task[int]) -> str | Sequence[str]:
        return str(task.data)

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (f"{task.data}?",)


class Blocks(Guess):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        time.sleep(30)  # noqa: ASYNC251 - the fault
        return None


class BlocksTrusted(Blocks):
    trusted = True


class Exits(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        if not messages[-1].content:
            raise SystemExit(1)
        return super().said(task, messages)


class RandomWords(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        word = random.choice(["Sorry,", "No,", "Hm,"])
        return reply and [Message("user", f"{word} {reply[0].content}")]


# Sound dialogues, some of them odd


class Critic(Guess):
    """A judge comments on each guess."""

    needs: ClassVar[frozenset[Any]] = frozenset({"judge"})
    verify = Environment.verify  # type: ignore[assignment]

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return Number.verify(self, task, rollout)

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        request = JudgeRequest(messages[-1].content, context="", reference="")
        (judgement,) = await self.services.judge().judge([request])
        if judgement.error:
            raise ConnectionError(judgement.error)
        reply = self.said(task, messages)
        return reply and [*reply, Message("user", f"form: {judgement.score:g}")]


# Tools


PRICES: Mapping[str, int] = {f"part-{n}": 137 * n % 1009 + 11 for n in range(2000)}


def add(a: int, b: Annotated[int, Field(description="the second number", ge=0)] = 0) -> int:
    """Add two numbers."""
    return a + b


def price(part: str, currency: Literal["EUR", "USD"] = "EUR") -> str:
    """Look up the price of a part."""
    return f"{part} costs {PRICES[part]} {currency}"


class Shop(Number):
    """The sound one with tools: what do two parts cost together?"""

    max_turns = 4
    levels = False
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        one, two = (2 * rng.randrange(1000) + (key.split == "eval") for _ in range(2))
        prompt = f"What do part-{one} and part-{two} cost together, in EUR?"
        return Task(key, (Message("user", prompt),), PRICES[f"part-{one}"] + PRICES[f"part-{two}"])

    def tools(self) -> Sequence[Callable[..., object]]:
        return (add, price)

    def reference(self, task: Task[int]) -> Sequence[str]:
        assert not isinstance(task.prompt, str)
        parts = re.findall(r"part-\d+", task.prompt[0].content)
        calls = [json.dumps({"name": "price", "arguments": {"part": part}}) for part in parts]
        return ("".join(f"<tool_call>{call}</tool_call>" for call in calls), str(task.data))

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (f"{task.data}?",)


class With(Shop):
    """The shop with one more tool."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), self.further)

    further: Callable[..., object]


class BrokenTool(With):
    @staticmethod
    def further(part: str) -> str:
        """Say how long the name of a part is."""
        return "length: " + len(part)  # type: ignore[operator]


class OwnCalls(Shop):
    """Sound: it reads calls by itself."""

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return self.called(messages[-1].content[:100_000])

    def called(self, text: str) -> Reply:
        if "<tool_call>" not in text:
            return None
        try:
            return [Message("tool", str(self.result(text)))]
        except Exception as error:  # noqa: BLE001 - the policy is told
            return [Message("tool", f"error: {type(error).__name__}")]

    def result(self, text: str) -> object:
        call = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
        function: Any = {tool.__name__: tool for tool in self.tools()}[call["name"]]
        return function(**call["arguments"])

    def reference(self, task: Task[int]) -> Any:
        return str(task.data)


class RaisesOnUnknownTools(OwnCalls):
    def called(self, text: str) -> Reply:
        if "no_such_tool" in text:
            raise KeyError("no_such_tool")
        return super().called(text)


class RaisesOnBadJson(OwnCalls):
    def called(self, text: str) -> Reply:
        return [Message("tool", str(self.result(text)))] if "<tool_call>" in text else None


class Greps(With):
    """Sound: a program gets the policy's text as an argument, and does not execute it."""

    @staticmethod
    def further(text: str) -> str:
        """Count the letters of a text."""
        command = ["printf", "%s", text[:50].replace("\0", "").encode(errors="ignore").decode()]
        return str(len(subprocess.run(command, capture_output=True, check=False).stdout))


class Typed(With):
    """Sound: parameters of many types."""

    @staticmethod
    def further(
        texts: list[str],
        count: Annotated[int, Field(gt=2, le=4)],
        share: Annotated[float, Field(ge=0.1, lt=0.5)] = 0.2,
        kind: Literal["one", "two"] = "one",
        name: str | None = None,
        pair: tuple[int, str] = (1, "a"),
        table: dict[str, int] | None = None,
    ) -> str:
        """Do nothing with many arguments."""
        if not (2 < count <= 4 and 0.1 <= share < 0.5 and kind in ("one", "two")):
            raise TypeError
        return " ".join(texts) * (count + len(pair) + len(table or ()) + len(name or ""))


FAULTS: Mapping[type[Environment[Any]], str] = {
    Raises: "reply.form",
    Blocks: "reply.form",
    Exits: "reply.form",
    RandomWords: "reply.repeat",
    BrokenTool: "tool.form",
    RaisesOnUnknownTools: "tool.form",
    RaisesOnBadJson: "tool.form",
}
"""Each faulty environment with the check that finds it; the catalogue in tests/kit has many more."""
SOUND: Sequence[type[Environment[Any]]] = (Guess, Shop, OwnCalls, Greps, Typed)
"""Honest dialogues and tools."""
