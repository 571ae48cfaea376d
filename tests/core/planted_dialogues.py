"""Toy dialogues, tools and episodes with one fault each, and odd sound ones; the catalogue in tests/kit has many more."""

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from bases import Hunt, Scales
from bases_episodes import Turns, Walk, Walks
from pydantic import Field

from grpo_core import Environment, JudgeRequest, Message, Reward, Rollout, Task, TaskKey, Verdict

Reply = Sequence[Message] | None


class Guess(Hunt):
    """The sound dialogue: guess a number, hear "higher" or "lower", say it last."""

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data - 1), str(task.data))

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (f"{task.data} or {task.data + 1}", ("0", f"{task.data}?"))


class NumbersAsReference(Guess):
    def reference(self, task: Task[int]) -> Any:
        return (task.data - 1, task.data)


class TooManyTurns(Guess):
    max_turns = 1


class Raises(Guess):
    def hint(self, task: Task[int], guess: int | None) -> str:
        return {"a": "b"}[str(guess)]


class Blocks(Guess):
    trusted = True

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        time.sleep(30)  # noqa: ASYNC251 - the fault
        return None


class Exits(Guess):
    def guessed(self, text: str) -> int | None:
        if not text:
            raise SystemExit(1)
        return super().guessed(text)


class Critic(Guess):
    """Sound: a judge comments on each guess."""

    needs: ClassVar[frozenset[Any]] = frozenset({"judge"})
    verify = Environment.verify  # type: ignore[assignment]

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return Guess.verify(self, task, rollout)

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Reply:
        request = JudgeRequest(messages[-1].content, context="", reference="")
        (judgement,) = await self.services.judge().judge([request])
        if judgement.error:
            raise ConnectionError(judgement.error)
        reply = await super().reply(task, messages)
        return reply and [*reply, Message("user", f"form: {judgement.score:g}")]


# Tools


class With(Scales):
    """The scales with one more tool."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (*super().tools(), self.further)

    further: Callable[..., object]


class BrokenTool(With):
    @staticmethod
    def further(part: str) -> str:
        """Say how long the name of a part is."""
        return "length: " + len(part)  # type: ignore[operator]


class OwnCalls(Scales):
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

    def reference(self, task: Task[int]) -> Any:
        call = {"name": "further", "arguments": {"text": "fig"}}
        return (f"<tool_call>{json.dumps(call)}</tool_call>", str(task.data))


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


# Episodes


class Guessed(Walk):
    """Sound: the policy says a number."""

    async def reply(self, messages: Turns) -> Turns | None:
        return None

    async def verdict(self, rollout: Rollout) -> Verdict:
        right = rollout.text == str(self.task.data.goal)
        return Verdict({"arrived": Reward(float(right))}, passed=right, answer=rollout.text[:9])


class Guesses(Walks):
    walk = Guessed

    def task(self, key: TaskKey) -> Task[Any]:
        return replace(super().task(key), prompt=(Message("user", "Where do I want to go?"),))

    def reference(self, task: Task[Any]) -> Sequence[str]:
        return (str(task.data.goal),)


class Telling(Guessed):
    async def open(self) -> Turns:
        return (Message("user", f"Do not tell anybody that it is {self.task.data.goal}."),)


class TellsAtFirst(Guesses):
    walk = Telling


class OpensAFile(Walk):
    async def open(self) -> Turns:
        _kept.append(open(os.devnull))  # noqa: SIM115, ASYNC230 - the fault
        return ()


_kept: list[Any] = []


class LeavesAFileOpen(Walks):
    walk = OpensAFile


class Moody(Walk):
    def says(self) -> str:
        return super().says() + random.choice("!?")


class NotReplayable(Walks):
    """Sound: what it says is drawn anew in each episode, and it says so."""

    replayable = False
    walk = Moody


FAULTS: Mapping[type[Environment[Any]], tuple[str, type[Environment[Any]]]] = {
    Blocks: ("reply.form", Guess),
    Exits: ("reply.form", Guess),
    BrokenTool: ("tool.form", Greps),
    RaisesOnUnknownTools: ("tool.form", OwnCalls),
    RaisesOnBadJson: ("tool.form", OwnCalls),
    TellsAtFirst: ("reply.secret", Guesses),
    LeavesAFileOpen: ("episode.close", Walks),
}
"""Each faulty environment with the check that finds it, and the sound one that it is made from."""
SOUND: Sequence[type[Environment[Any]]] = (Guess, OwnCalls, Greps, Typed, NotReplayable)
