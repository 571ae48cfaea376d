"""Environments whose code prints, logs and warns in every way while it judges."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from grpo_core import Environment, Episode, Group, Message, Reward, Rollout, Task, TaskKey, Verdict

IN_PYTHON = (
    "printed hello",
    "to stderr",
    "logged",
    "UserWarning: warned",
    r"\xff raw",
    "no newline",
)
"""What can be told to belong to a call wherever it runs."""
IN_WORKERS = (*IN_PYTHON, "by a thread", "by a child")
"""What only the output of a whole process holds."""


def say(text: str) -> None:
    print("printed", text)
    print("to stderr", file=sys.stderr)
    logging.getLogger("author").warning("logged")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("warned", stacklevel=1)
    sys.stdout.buffer.write(b"\xff raw\n")
    sys.stdout.flush()


def judged(text: str, value: float = 0.5) -> Verdict:
    detail = {"stderr": "Traceback:\n  a line of the program\n", "status": 1}
    return Verdict({"r": Reward(value)}, answer=text, detail=detail)


class Base(Environment[None]):
    parts: ClassVar[Mapping[str, float]] = {"r": 1.0}

    def task(self, key: TaskKey) -> Task[None]:
        return Task(key, "Say something.", None)


class Chatty(Base):
    """Prints what it is told, and more if it is asked to."""

    def verify(self, task: Task[None], rollout: Rollout) -> Verdict:
        say(rollout.text)
        thread = threading.Thread(target=print, args=("by a thread",))
        thread.start()
        thread.join()
        subprocess.run(["sh", "-c", "echo by a child"], check=True)
        match rollout.text:
            case "raise":
                raise ValueError("no such text")
            case "flood":
                print("é" * 3_000_000)
            case "surrogate":
                print("\ud800 half")
            case "leave behind":
                threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
            case "orphan":
                subprocess.Popen(["sh", "-c", "sleep 2 & exit"]).wait()
            case "hang":
                print("before the hang", end="")
                time.sleep(60)
        print("no newline", end="")
        return judged(rollout.text)


class Trusted(Chatty):
    trusted = True


class Asynchronous(Base):
    async def averify(self, task: Task[None], rollout: Rollout) -> Verdict:
        say(rollout.text)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(print, f"end of {rollout.text}")
        print("no newline", end="")
        return judged(rollout.text)


class Together(Base):
    async def verify_batch(self, groups: Sequence[Group[None]]) -> list[list[Verdict]]:
        for group in groups:
            for rollout in group.rollouts:
                say(rollout.text)
        print("no newline", end="")
        return [[judged(rollout.text) for rollout in group.rollouts] for group in groups]


class Dialogue(Chatty):
    max_turns = 2

    async def reply(self, task: Task[None], messages: Sequence[Message]) -> Any:
        print("in the reply")
        return None


class Game(Base):
    max_turns = 2
    replayable = True

    def episode(self, task: Task[None]) -> Episode:
        return _Match()


class _Match(Episode):
    async def open(self) -> Sequence[Message]:
        print("in open")
        return ()

    async def reply(self, messages: Sequence[Message]) -> None:
        await asyncio.sleep(0.05)
        print("in the reply to", messages[-1].content)

    async def verdict(self, rollout: Rollout) -> Verdict:
        say(rollout.text)
        await (await asyncio.create_subprocess_shell("echo by a child")).wait()
        print("no newline", end="")
        return judged(rollout.text)
