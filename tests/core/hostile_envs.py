"""Environments that misbehave as the answer tells them to; in a module of their own, so that worker processes can import them."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core import Environment, Group, Message, Reward, Rollout, Task, TaskKey, Verdict

LEAK: list[bytes] = []


def scored(value: float) -> Verdict:
    return Verdict(rewards={"reward": Reward(value)}, passed=value == 1.0)


def misbehave(order: str) -> Any:
    """What a verifier does on meeting the answer `order`; a number is simply its reward."""
    match order.split(":", 1):
        case ["sleep"]:
            time.sleep(3600)
        case ["hold the GIL"]:
            return scored(float(bool(re.match(r"(a+)+$", "a" * 40 + "b"))))
        case ["raise"]:
            raise ValueError("the table is missing")
        case ["exit"]:
            sys.exit(3)
        case ["die"]:
            sys.stderr.write("goodbye\n")
            sys.stderr.flush()
            os._exit(7)
        case ["segfault"]:
            os.kill(os.getpid(), 11)
        case ["none"]:
            return None
        case ["nan"]:
            return scored(float("nan"))
        case ["above"]:
            return scored(1.5)
        case ["text"]:
            return Verdict(rewards={"reward": Reward("1.0")})  # type: ignore[arg-type]
        case ["number"]:
            return Verdict(rewards={"reward": 1.0})  # type: ignore[dict-item]
        case ["names"]:
            return Verdict(rewards={"format": Reward(1.0)})
        case ["weight"]:
            return Verdict(rewards={"reward": Reward(1.0, weight=0.5)})
        case ["turns", numbers]:
            return Verdict({"reward": Reward(turns=tuple(map(float, numbers.split(","))))})
        case ["object"]:
            return Verdict(rewards={"reward": Reward(1.0)}, detail={"handle": object()})
        case ["unjudged"]:
            return Verdict.failed("the judge is down")
        case ["print"]:
            print("noise" * 10_000)
            os.write(1, b"\x00\x00\x00\x00\x00\x00\x00\x05hello" * 1000)
            return scored(1.0)
        case ["read stdin"]:
            return scored(1.0 if sys.stdin.read() == "" else 0.0)
        case ["write"]:
            Path("left.txt").write_text("left behind")
            return Verdict(rewards={"reward": Reward(1.0)}, answer=os.getcwd())
        case ["spawn"]:
            note = os.environ["HOSTILE_NOTE"]
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", note])
            Path(note).touch()
            time.sleep(3600)
        case ["leak"]:
            LEAK.append(b"x" * 20_000_000)
            return Verdict(rewards={"reward": Reward(1.0)}, metrics={"held": len(LEAK)})
        case ["once", marker]:
            if not Path(marker).exists():
                Path(marker).touch()
                os._exit(1)
            return scored(1.0)
        case ["pid"]:
            return Verdict(rewards={"reward": Reward(1.0)}, answer=str(os.getpid()))
        case [number]:
            return scored(float(number))
    raise AssertionError(order)


class Hostile(Environment[int]):
    timeout_seconds = 1.0

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, f"question {key.index}", key.index)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        found: Verdict = misbehave(rollout.text)
        return found

    def reference(self, task: Task[int]) -> str | None:
        return f"{task.data} drawn {task.draw}"

    def audit(self, task: Task[int], rollout: Rollout) -> float | None:
        return float(len(rollout.text))

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content == "fall silent":
            await asyncio.sleep(3600)
        return [Message("user", f"{task.data}: {messages[-1].content}?")]


class Trusted(Hostile):
    trusted = True


@dataclass(frozen=True)
class HostileTasksConfig:
    order: str = ""


class HostileTasks(Hostile):
    """Misbehaves while it makes the task."""

    Config = HostileTasksConfig

    def task(self, key: TaskKey) -> Task[int]:
        match self.config.order:
            case "impure":
                return Task(key, f"asked by process {os.getpid()} {os.environ.get('TMPDIR')}", 0)
            case "empty":
                return Task(key, " ", 0)
            case "other key":
                return Task(TaskKey(key.env, key.split, key.index + 1), "question", 0)
            case "plain":
                return super().task(key)
        misbehave(self.config.order)
        raise AssertionError(self.config.order)


class Patient(Hostile):
    """Its verifier waits without blocking."""

    verify = Environment.verify
    under_way = 0
    most = 0

    async def averify(self, task: Task[int], rollout: Rollout) -> Verdict:
        if rollout.text == "sleep":
            await asyncio.sleep(3600)
        if rollout.text == "swallow":
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    if self.closed:
                        raise
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        found: Verdict = misbehave(rollout.text)
        return found

    closed = False

    async def close(self) -> None:
        self.closed = True


class Batch(Hostile):
    """Judges whole groups and keeps the calls; "forgotten" gets no verdict, "wait" hangs the whole call."""

    verify = Environment.verify

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[list[int]] = []

    async def verify_batch(self, groups: Sequence[Group[int]]) -> list[list[Verdict]]:
        self.calls.append([g.task.data for g in groups])
        if any(r.text == "wait" for g in groups for r in g.rollouts):
            await asyncio.sleep(3600)
        return [[misbehave(r.text) for r in g.rollouts if r.text != "forgotten"] for g in groups]
