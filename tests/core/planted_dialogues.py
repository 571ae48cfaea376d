"""Toy dialogues and tools with one fault each, beside the sound ones that they are made from."""

from __future__ import annotations

import asyncio
import functools
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


class Guess(Environment[int]):
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

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.scored(task, rollout.text)

    def scored(self, task: Task[int], text: str) -> Verdict:
        answer = parse_integer(text, max_digits=6)
        right = answer == task.data
        return Verdict(
            {"reward": Reward(float(right))},
            passed=right,
            answer=None if answer is None else str(answer),
        )

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data - 1), str(task.data))

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (f"{task.data} or {task.data + 1}", ("1", f"{task.data}?"))


class NumbersAsReference(Guess):
    def reference(self, task: Task[int]) -> Any:
        return (task.data - 1, task.data)


class TooManyTurns(Guess):
    max_turns = 1


# reply.form


class Raises(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return [Message("user", {"a": "b"}[messages[-1].content])]


class Sum(Environment[int]):
    """Sound: a single turn."""

    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        one, two = rng.randrange(100, 9000), rng.randrange(100, 9000)
        two += (two + one) % 2 != (key.split == "eval")
        return Task(key, f"What is {one} + {two}?", one + two)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=6)
        right = answer == task.data
        return Verdict(
            {"reward": Reward(float(right))},
            passed=right,
            answer=None if answer is None else str(answer),
        )

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


# reply.ends


# reply.repeat


class RandomWords(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        word = random.choice(["Sorry,", "No,", "Hm,"])
        return reply and [Message("user", f"{word} {reply[0].content}")]


# reply.secret


class TellsWhoAsks(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        if "answer" in messages[-1].content:
            return [Message("user", f"Between us: {task.data}")]
        return super().said(task, messages)


# reply.echo


class PaysPatience(Guess):
    """Who is silent to the end passes."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        turns = sum(message.role == "assistant" for message in rollout.messages)
        return self.scored(task, str(task.data) if turns == self.max_turns else rollout.text)


# reply.hostile


class Nested(Guess):
    """Talks JSON, and counts how deep it is."""

    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        try:
            value = json.loads(messages[-1].content)
        except (ValueError, RecursionError):
            value = None
        reply = super().said(task, messages)
        return reply and [*reply, Message("user", f"depth {self.depth(value)}")]

    def depth(self, value: object) -> int:
        return 1 + max(map(self.depth, value), default=0) if isinstance(value, list) else 0


# Sound dialogues, some of them odd


class Unlimited(Guess):
    """The best of all guesses counts, so it goes on as long as there are turns."""

    open_ended = True

    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return super().said(task, messages) or [Message("user", "that is it")]

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        said = [message.content for message in rollout.messages if message.role == "assistant"]
        right = [text for text in said if parse_integer(text, max_digits=6) == task.data]
        return self.scored(task, right[0] if right else rollout.text)

    def reference(self, task: Task[int]) -> Any:
        return str(task.data)


class Undetermined(RandomWords):
    """The draws are declared."""

    deterministic = False


class TellsWhenItIsOver(Guess):
    """Only the first guess counts, so the answer may be told after it."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        said = [message.content for message in rollout.messages if message.role == "assistant"]
        return self.scored(task, said[0] if said else "")

    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        if len(messages) > 1 or super().said(task, messages) is None:
            return None
        return [Message("user", f"It was {task.data}. Why did you think so?")]

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data),)

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (("1", str(task.data)),)


class Doors(Environment[tuple[str, ...]]):
    """A game: the verifier reads what the world said, and each action has a turn of its own."""

    max_turns = 6
    levels = False
    trusted = True
    ways: ClassVar[Sequence[str]] = ("north", "south", "east", "west")

    def task(self, key: TaskKey) -> Task[tuple[str, ...]]:
        rng = key.rng()
        way = tuple(rng.choice(self.ways) for _ in range(3))
        house = rng.randrange(100, 10**6) * 2 + (key.split == "eval")
        return Task(
            key, (Message("user", f"House {house}. Find the way out of three rooms."),), way
        )

    def rooms(self, task: Task[tuple[str, ...]], messages: Sequence[Message]) -> int:
        room = 0
        for message in messages:
            if message.role == "assistant" and room < 3:
                room = room + 1 if message.content.strip() == task.data[room] else 0
        return room

    async def reply(self, task: Task[tuple[str, ...]], messages: Sequence[Message]) -> Reply:
        room = self.rooms(task, messages)
        said = "a door closes behind you" if room else "you are in the first room"
        return None if room == 3 else [Message("user", said)]

    def verify(self, task: Task[tuple[str, ...]], rollout: Rollout) -> Verdict:
        out = self.rooms(task, rollout.messages) == 3
        return Verdict({"reward": Reward(float(out))}, passed=out)

    def reference(self, task: Task[tuple[str, ...]]) -> Sequence[str]:
        return list(task.data)


class Slow(Guess):
    """A simulation that takes its time."""

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        await asyncio.sleep(0.3)
        return self.said(task, messages)


class Critic(Guess):
    """A judge comments on each guess."""

    needs: ClassVar[frozenset[Any]] = frozenset({"judge"})
    verify = Environment.verify  # type: ignore[assignment]

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.scored(task, rollout.text)

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        request = JudgeRequest(messages[-1].content, context="", reference="")
        (judgement,) = await self.services.judge().judge([request])
        if judgement.error:
            raise ConnectionError(judgement.error)
        reply = self.said(task, messages)
        return reply and [*reply, Message("user", f"form: {judgement.score:g}")]


class Asynchronous(Guess):
    verify = Environment.verify  # type: ignore[assignment]

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.scored(task, rollout.text)


# Tools


PRICES: Mapping[str, int] = {f"part-{n}": 137 * n % 1009 + 11 for n in range(2000)}


def add(a: int, b: Annotated[int, Field(description="the second number", ge=0)] = 0) -> int:
    """Add two numbers."""
    return a + b


def price(part: str, currency: Literal["EUR", "USD"] = "EUR") -> str:
    """Look up the price of a part."""
    return f"{part} costs {PRICES[part]} {currency}"


class Shop(Environment[int]):
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

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=6)
        right = answer == task.data
        return Verdict(
            {"reward": Reward(float(right))},
            passed=right,
            answer=None if answer is None else str(answer),
        )

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


class Unbound(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), Unbound.catalogue)

    def catalogue(self) -> str:
        """List the parts."""
        return " ".join(list(PRICES)[:10])


class HalfCalled(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), functools.partial(add, 3))


class BrokenTool(With):
    @staticmethod
    def further(part: str) -> str:
        """Say how long the name of a part is."""
        return "length: " + len(part)  # type: ignore[operator]


class ForgetsItsTools(Shop):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return None if messages[-1].content.isdecimal() else [Message("user", "one number")]


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


class HoldsTheTask(Shop):
    """The tools are made anew for each dialogue, around its task."""

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        self.current = task
        return await super().reply(task, messages)

    def tools(self) -> Sequence[Callable[..., object]]:
        current: Any = getattr(self, "current", None)

        def near(guess: int) -> bool:
            """Say whether a guess is near the total."""
            return current is not None and abs(current.data - guess) < 10

        return (*super().tools(), near)


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
        *,
        upper: bool = False,
    ) -> str:
        """Do nothing with many arguments."""
        if not (2 < count <= 4 and 0.1 <= share < 0.5 and kind in ("one", "two")):
            raise TypeError
        return " ".join(texts) * (count + len(pair) + len(table or ()) + len(name or "")) + str(
            upper
        )


class Recomputes(Typed):
    """Sound: there is nothing that the verifier has to keep."""

    def task(self, key: TaskKey) -> Task[Any]:
        task = super().task(key)
        return Task(key, task.prompt, None)

    def total(self, task: Task[Any]) -> int:
        return super().task(task.key).data

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return super().verify(Task(task.key, task.prompt, self.total(task)), rollout)

    def reference(self, task: Task[Any]) -> Sequence[str]:
        return super().reference(Task(task.key, task.prompt, self.total(task)))

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return (f"{self.total(task)}?",)


FAULTS: Mapping[type[Environment[Any]], str] = {
    Raises: "reply.form",
    Blocks: "reply.form",
    BlocksTrusted: "reply.form",
    Exits: "reply.form",
    RandomWords: "reply.repeat",
    TellsWhoAsks: "reply.secret",
    PaysPatience: "reply.echo",
    Nested: "reply.hostile",
    Unbound: "tool.form",
    HalfCalled: "tool.form",
    BrokenTool: "tool.form",
    ForgetsItsTools: "tool.form",
    RaisesOnUnknownTools: "tool.form",
    RaisesOnBadJson: "tool.form",
    HoldsTheTask: "tool.secret",
}
"""Each faulty environment with the check that finds it."""
SOUND: Sequence[type[Environment[Any]]] = (
    Guess,
    Unlimited,
    Undetermined,
    TellsWhenItIsOver,
    Doors,
    Asynchronous,
    Slow,
    Shop,
    OwnCalls,
    Greps,
    Typed,
    Recomputes,
)
"""Honest dialogues and tools."""
