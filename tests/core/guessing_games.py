"""A game for tests: guess a number; the state of a game is its own, and not in the messages."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from grpo_core import (
    Environment,
    Episode,
    Message,
    Program,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Config:
    """What goes wrong, and where it is written what happened."""

    folder: str = ""
    """Gets a line for each event in events.txt."""
    drifts: bool = False
    """Each episode says something else."""
    breaks: str = ""
    """The method that raises."""


class Game(Episode):
    """Counts the guesses, says after each whether the number is higher, and knows special words."""

    def __init__(self, env: Games, task: Task[int]) -> None:
        self.env, self.task = env, task
        self.guesses: list[str] = []
        self.judged = 0

    def note(self, event: str) -> None:
        if self.env.config.folder:
            with (Path(self.env.config.folder) / "events.txt").open("a") as file:
                file.write(f"{event} {self.task.key.index} {os.getpid()}\n")

    def fail_in(self, method: str) -> None:
        if self.env.config.breaks == method:
            raise RuntimeError(f"{method} broke")

    async def open(self) -> Sequence[Message]:
        self.note("open")
        self.fail_in("open")
        word = f" {time.monotonic_ns()}" if self.env.config.drifts else ""
        return (Message("user", f"you have {self.env.max_turns} guesses{word}"),)

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        word = messages[-1].content
        self.guesses.append(word)
        self.fail_in("reply")
        once = Path(self.env.config.folder or "/nowhere") / f"{word}-{self.task.key.index}"
        if word in ("die", "block", "sleep") and not once.exists():
            once.touch()
            if word == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if word == "block":
                time.sleep(60)  # noqa: ASYNC251 - it blocks the loop
            await asyncio.sleep(60)
        if word == "always-sleep":
            await asyncio.sleep(60)
        if word == str(self.task.data):
            return None
        return (Message("user", f"{len(self.guesses)}: no"),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        self.judged += 1
        self.note("verdict")
        if self.env.config.breaks == "first verdict" and self.judged == 1:
            raise RuntimeError("the first verdict broke")
        self.fail_in("verdict")
        seen = len(self.guesses) / 10
        return Verdict(
            {"digits": Reward(seen)},
            passed=rollout.text == str(self.task.data),
            answer=",".join(self.guesses)[:200],
        )

    async def close(self) -> None:
        self.note("close")


class Games(Environment[int]):
    Config = Config
    max_turns = 4
    max_new_tokens = 6
    replayable = True
    timeout_seconds = 2.0
    parts: ClassVar[dict[str, float]] = {"digits": 1.0}

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("user", f"guess {key.index}"),), key.rng().randrange(10))

    game: ClassVar[type[Game]] = Game

    def episode(self, task: Task[int]) -> Episode:
        return self.game(self, task)

    def reference(self, task: Task[int]) -> Sequence[str]:
        return ("no", str(task.data))


class Culprit(Game):
    """Ends its process at every word of an episode whose index is 0, after a moment for others."""

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        if self.task.key.index == 0:
            await asyncio.sleep(0.1)
            self.note("die")
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.3)
        return await super().reply(messages)


class Seated(Game):
    """Takes the only seat of its process while it is open."""

    async def open(self) -> Sequence[Message]:
        await SEAT.acquire()
        return await super().open()

    async def close(self) -> None:
        SEAT.release()


SEAT = asyncio.Semaphore(1)


class Running(Game):
    """Runs a program in the sandbox of the host for each guess."""

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        sandbox = self.env.services.sandbox()
        program = Program("def f(x):\n    return x + 1", "f", [[1], [41]])
        ((one, other),) = await sandbox.run([program])
        return (Message("user", f"{one.value} {other.value} {other.status}"),)


class NotEpisodes(Games):
    def episode(self, task: Task[int]) -> Episode:
        return 3  # type: ignore[return-value]


class Speaking(Game):
    async def open(self) -> Sequence[Message]:
        return (Message("assistant", "I say it all"),)


class InSession(Game):
    """Keeps its guesses in a session of the host's sandbox, which it never closes."""

    async def open(self) -> Sequence[Message]:
        self.session = await self.env.services.sandbox().session({"start": b"\xff\x00"})
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        word = messages[-1].content
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        await self.session.write({"guess": word})
        result = await self.session.exec(["cat", "guess"], timeout=1.5)
        start = await self.session.read("start")
        return (Message("user", f"{result.stdout} {result.exit_code} {start!r}"),)


class Hasty(InSession):
    """Calls its session more often than a worker may at once, and gives up each call at once."""

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        for _ in range(1500):
            call = asyncio.create_task(self.session.read("start"))
            await asyncio.sleep(0)
            call.cancel()
        return (Message("user", "gave up 1500 calls"),)


class Large(InSession):
    """Writes a file that is too large for a call."""

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        try:
            await self.session.write({"large": "x" * 9_000_000})
        except ValueError as error:
            return (Message("user", str(error)),)
        return None


def variant(name: str, **members: Any) -> type[Games]:
    """Return the games with other members; workers find the class by its name in this module."""
    return type(name, (Games,), {"__module__": __name__, **members})


IN_SANDBOX = {"needs": frozenset({"sandbox"}), "timeout_seconds": 30.0}

OnceGames = variant("OnceGames", replayable=False)
TrustedGames = variant("TrustedGames", trusted=True)
CulpritGames = variant("CulpritGames", game=Culprit)
SeatedGames = variant("SeatedGames", game=Seated)
TrustedSeatedGames = variant("TrustedSeatedGames", game=Seated, trusted=True)
SpeaksForThePolicy = variant("SpeaksForThePolicy", game=Speaking)
RunningGames = variant("RunningGames", game=Running, **IN_SANDBOX)
SessionGames = variant("SessionGames", game=InSession, **IN_SANDBOX)
HastyGames = variant("HastyGames", game=Hasty, **IN_SANDBOX)
LargeGames = variant("LargeGames", game=Large, **IN_SANDBOX)
