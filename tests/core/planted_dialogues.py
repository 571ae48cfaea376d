"""Toy dialogues and tools with one fault each, beside the sound ones that they are made from."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
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


class Sure(Guess):
    """Sound: exactly two turns, and a reply that is always the same."""

    max_turns = 2

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return [Message("user", "Are you sure? Say it again.")]


class NumbersAsReference(Guess):
    def reference(self, task: Task[int]) -> Any:
        return (task.data - 1, task.data)


class TooManyTurns(Guess):
    max_turns = 1


# reply.form


class Raises(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return [Message("user", {"a": "b"}[messages[-1].content])]


class RaisesOnSilence(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        first = messages[-1].content.split()[0]
        return super().said(task, (*messages[:-1], Message("assistant", first)))


class RaisesLate(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        hints = ("cold", "warm")
        reply = super().said(task, messages)
        return reply and [*reply, Message("user", hints[len(messages) // 2])]


class ReturnsText(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Any:
        reply = super().said(task, messages)
        return reply and reply[0].content


class ReturnsMessage(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Any:
        reply = super().said(task, messages)
        return reply and reply[0]


class ReturnsPairs(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Any:
        reply = super().said(task, messages)
        return reply and [{"role": "user", "content": reply[0].content}]


class SpeaksForThePolicy(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        return reply and [Message("assistant", reply[0].content)]


class RepeatsTheDialogue(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        return reply and [*messages, *reply]


class UnknownRole(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        return reply and [Message("environment", reply[0].content)]  # type: ignore[arg-type]


class SaysNothing(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return super().said(task, messages) if messages[-1].content.strip() else ()


class NumberAsContent(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        return reply and [Message("user", len(messages))]  # type: ignore[arg-type]


class ForgottenAsync(Guess):
    def reply(self, task: Task[int], messages: Sequence[Message]) -> Any:  # type: ignore[override]
        return self.said(task, messages)


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


class ForgottenTurns(Sum):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return [Message("user", "Are you sure? Say it again.")]


class NobodyReplies(Sum):
    max_turns = 3


class Blocks(Guess):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        time.sleep(30)  # noqa: ASYNC251 - the fault
        return None


class BlocksTrusted(Blocks):
    trusted = True


class Waits(Guess):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        await asyncio.Event().wait()
        return None


class Loops(Guess):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        while messages[-1].content != "stop":
            pass
        return None


class Exits(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        if not messages[-1].content:
            raise SystemExit(1)
        return super().said(task, messages)


# reply.ends


class NeverEnds(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return super().said(task, messages) or [Message("user", "right, and again?")]

    def reference(self, task: Task[int]) -> Any:
        return str(task.data)


class HasNoLimit(Guess):
    max_turns = 100_000


class QuotesTheDialogue(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        quoted = "\n".join(f"> {message.content}" for message in messages)
        return reply and [Message("user", f"{quoted}\n{reply[0].content}")]


# reply.repeat


class RandomWords(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        word = random.choice(["Sorry,", "No,", "Hm,"])
        return reply and [Message("user", f"{word} {reply[0].content}")]


class CountsOnSelf(Guess):
    asked = 0

    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        self.asked += 1
        return None if self.asked % 5 == 0 else super().said(task, messages)


class RemembersDialogues(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        seen: set[str] = self.__dict__.setdefault("seen", set())
        text = f"{task.key.index} {[message.content for message in messages]}"
        known, reply = text in seen, super().said(task, messages)
        seen.add(text)
        return reply and [Message("user", "again?" if known else reply[0].content)]


class TellsTheTime(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        return reply and [Message("user", f"{reply[0].content} ({time.time():.6f})")]


class EatsTheTask(Guess):
    """The task's own data change with each reply."""

    def task(self, key: TaskKey) -> Task[Any]:
        task = super().task(key)
        return Task(key, task.prompt, [task.data, "first", "second", "third"])

    def said(self, task: Task[Any], messages: Sequence[Message]) -> Reply:
        if parse_integer(messages[-1].content, max_digits=6) == task.data[0]:
            return None
        return [Message("user", task.data.pop() if len(task.data) > 1 else "no")]

    def scored(self, task: Task[Any], text: str) -> Verdict:
        return super().scored(Task(task.key, task.prompt, task.data[0]), text)

    def reference(self, task: Task[Any]) -> Sequence[str]:
        return (str(task.data[0]),)

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return (f"{task.data[0]}?",)


# reply.secret


class TellsTheAnswer(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        return reply and [Message("user", f"No, it is {task.data}.")]


class TellsWhoAsks(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        if "answer" in messages[-1].content:
            return [Message("user", f"Between us: {task.data}")]
        return super().said(task, messages)


class TellsInTheEnd(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        if len(messages) == 2 * self.max_turns - 3:
            return [Message("user", f"Last chance! I thought of {task.data}, you know.")]
        return super().said(task, messages)


class PrintsTheTask(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        return reply and [Message("user", f"{reply[0].content} (debug: {task!r})")]


# reply.echo


class ReadsEverything(Guess):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        texts = [message.content for message in rollout.messages] or [""]
        right = [text for text in texts if parse_integer(text, max_digits=6) == task.data]
        return self.scored(task, right[0] if right else texts[-1])


class ReadsTheWholeText(Guess):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        text = "\n".join(message.content for message in rollout.messages)
        found = re.findall(r"^\d{1,6}$", text, re.M)
        return self.scored(task, found[-1] if found else "")


class PaysPatience(Guess):
    """Who is silent to the end passes."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        turns = sum(message.role == "assistant" for message in rollout.messages)
        return self.scored(task, str(task.data) if turns == self.max_turns else rollout.text)


class RepliesWithTheSolution(Guess):
    """The reply is what passes, and an echo of it wins."""

    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        return super().said(task, messages) and [Message("user", str(task.data))]


# reply.hostile


class Backtracks(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        if re.fullmatch(r"(a|aa|\w)*\s*", messages[-1].content[:1000]):
            return super().said(task, messages)
        return [Message("user", "one number")]


class Quadratic(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        text = messages[-1].content[:20_000]
        common = sum(one == two for one in text for two in text)
        reply = super().said(task, messages)
        return reply and [*reply, Message("user", f"{common} signs in common")]


class RaisesOnNul(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        with contextlib.suppress(OSError, UnicodeEncodeError):
            os.stat("/" + messages[-1].content[:20])
        return super().said(task, messages)


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


class TrustsDigits(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        text = messages[-1].content
        if text.isdigit() and int(text) > 10**9:
            return [Message("user", "too large")]
        return super().said(task, messages)


# Sound dialogues, some of them odd


class Quotes(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        return reply and [Message("user", f"You said {messages[-1].content}. {reply[0].content}")]


class Interview(Guess):
    """A fixed number of turns, each with its question."""

    max_turns = 3

    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        questions = ("Once more, to be sure?", "And what do you say now?")
        return [Message("user", questions[len(messages) // 2])]

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data),) * 3


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


class DrawsByTheKey(Guess):
    def said(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        reply = super().said(task, messages)
        word = task.key.rng("reply", len(messages)).choice(["Sorry,", "No,", "Hm,"])
        return reply and [Message("user", f"{word} {reply[0].content}")]


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


def undocumented(a: int) -> int:
    return a


class NoDocstring(With):
    further = staticmethod(undocumented)


class NoTypes(With):
    @staticmethod
    def further(part) -> str:  # type: ignore[no-untyped-def]
        """Say the name of a part."""
        return str(part)


class Unbound(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), Unbound.catalogue)

    def catalogue(self) -> str:
        """List the parts."""
        return " ".join(list(PRICES)[:10])


class AsyncTool(With):
    @staticmethod
    async def further(part: str) -> str:
        """Say the name of a part."""
        return part


class Nameless(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), lambda: 3)


class HalfCalled(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), functools.partial(add, 3))


class SameName(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        def add(one: str, two: str) -> str:
            """Put two texts together."""
            return one + two

        return (*super().tools(), add)


class ToolsInOneTurn(Shop):
    max_turns = 1

    def reference(self, task: Task[int]) -> Any:
        return str(task.data)


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


class Shell(With):
    @staticmethod
    def further(text: str) -> str:
        """Count the letters of a text."""
        return subprocess.run(
            f"echo {text[:50]!r} | wc -c", shell=True, capture_output=True, text=True, check=False
        ).stdout


class System(With):
    @staticmethod
    def further(text: str) -> str:
        """Say whether a text is the name of a program."""
        return str(os.system(f"test -e {text[:50]!r}"))


class Evaluates(With):
    @staticmethod
    def further(expression: str) -> str:
        """Evaluate an expression."""
        return str(eval(expression[:50], {"__builtins__": {}}))


class ExecutesLines(With):
    @staticmethod
    def further(code: str) -> str:
        """Run Python."""
        names: dict[str, Any] = {}
        exec(code[:50], {"__builtins__": {}}, names)
        return str(names)


class RunsPython(With):
    @staticmethod
    def further(code: str) -> str:
        """Run Python in a process."""
        command = ["python3", "-c", code[:50].replace("\0", "")]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


class Remembers(Shop):
    """The tool gives the answer of the task that was made last."""

    now = 0

    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        self.now = task.data
        return task

    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), self.total)

    def total(self) -> int:
        """Return the total."""
        return self.now


class Confirms(Remembers):
    """The tool says whether a guess is right."""

    def total(self, guess: int = 0) -> str:  # type: ignore[override]
        """Say whether a total is right."""
        return "yes" if guess == self.now else "no"


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


class HangingTool(With):
    @staticmethod
    def further(text: str) -> bool:
        """Say whether a text consists of words."""
        return re.fullmatch(r"(\w+\s?)*", text) is not None


class Dice(With):
    @staticmethod
    def further() -> int:
        """Throw dice."""
        return random.randrange(6**9)


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
    RaisesOnSilence: "reply.form",
    RaisesLate: "reply.form",
    ReturnsText: "reply.form",
    ReturnsMessage: "reply.form",
    ReturnsPairs: "reply.form",
    SpeaksForThePolicy: "reply.form",
    RepeatsTheDialogue: "reply.form",
    UnknownRole: "reply.form",
    SaysNothing: "reply.form",
    NumberAsContent: "reply.form",
    ForgottenAsync: "reply.form",
    ForgottenTurns: "reply.form",
    NobodyReplies: "reply.form",
    Blocks: "reply.form",
    BlocksTrusted: "reply.form",
    Waits: "reply.form",
    Loops: "reply.form",
    Exits: "reply.form",
    NeverEnds: "reply.ends",
    HasNoLimit: "reply.ends",
    QuotesTheDialogue: "reply.ends",
    RandomWords: "reply.repeat",
    CountsOnSelf: "reply.repeat",
    RemembersDialogues: "reply.repeat",
    TellsTheTime: "reply.repeat",
    EatsTheTask: "reply.repeat",
    Dice: "reply.repeat",
    TellsTheAnswer: "reply.secret",
    TellsWhoAsks: "reply.secret",
    TellsInTheEnd: "reply.secret",
    PrintsTheTask: "reply.secret",
    ReadsEverything: "reply.echo",
    ReadsTheWholeText: "reply.echo",
    PaysPatience: "reply.echo",
    RepliesWithTheSolution: "reply.echo",
    Backtracks: "reply.hostile",
    Quadratic: "reply.hostile",
    RaisesOnNul: "reply.hostile",
    Nested: "reply.hostile",
    TrustsDigits: "reply.hostile",
    HangingTool: "reply.hostile",
    NoDocstring: "tool.form",
    NoTypes: "tool.form",
    Unbound: "tool.form",
    AsyncTool: "tool.form",
    Nameless: "tool.form",
    HalfCalled: "tool.form",
    SameName: "tool.form",
    ToolsInOneTurn: "tool.form",
    BrokenTool: "tool.form",
    ForgetsItsTools: "tool.form",
    RaisesOnUnknownTools: "tool.form",
    RaisesOnBadJson: "tool.form",
    Shell: "tool.execute",
    System: "tool.execute",
    Evaluates: "tool.execute",
    ExecutesLines: "tool.execute",
    RunsPython: "tool.execute",
    Remembers: "tool.secret",
    Confirms: "tool.secret",
    HoldsTheTask: "tool.secret",
}
"""Each faulty environment with the check that finds it."""
SOUND: Sequence[type[Environment[Any]]] = (
    Guess,
    Sure,
    Quotes,
    Interview,
    Unlimited,
    DrawsByTheKey,
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
