"""Toy episodes with one fault each, beside the sound ones that they are made from."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from grpo_core import (
    CommandResult,
    Environment,
    Episode,
    Message,
    Outcome,
    Program,
    Reward,
    Rollout,
    Services,
    Session,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import parse_integer

Reply = Sequence[Message] | None


class Hunt(Episode):
    """The sound episode: the policy looks for a number, and hears how its guess compares."""

    def __init__(self, task: Task[int], env: Environment[int]) -> None:
        self.task, self.env = task, env
        self.guesses: list[int | None] = []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        guess = self.heard(messages[-1].content)
        if guess == self.task.data:
            return None
        return (Message("user", self.said(guess)),)

    def heard(self, text: str) -> int | None:
        self.guesses.append(parse_integer(text, max_digits=6))
        return self.guesses[-1]

    def said(self, guess: int | None) -> str:
        hint = "one number" if guess is None else "higher" if guess < self.task.data else "lower"
        return f"{hint} (guess {len(self.guesses)})"

    async def verdict(self, rollout: Rollout) -> Verdict:
        spoken = [m.content for m in rollout.messages if m.role == "assistant"]
        for text in spoken[len(self.guesses) :]:  # the last one, if reply() has not heard it
            self.heard(text)
        return self.scored()

    def scored(self) -> Verdict:
        found = bool(self.guesses) and self.guesses[-1] == self.task.data
        answer = None if not self.guesses or self.guesses[-1] is None else str(self.guesses[-1])
        return Verdict({"found": self.earned(found)}, passed=found, answer=answer)

    def earned(self, found: bool) -> Reward:
        return Reward(float(found))


class Hunts(Environment[int]):
    """Holds episodes of one class."""

    parts: ClassVar[Mapping[str, float]] = {"found": 1.0}
    hunt: ClassVar[Callable[..., Episode]] = Hunt
    max_turns = 6
    levels = False
    replayable = True
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        low = 10 * rng.randrange(20, 900) + (5 if key.split == "eval" else 0)
        prompt = (Message("user", f"Find my number from {low} on, below {low + 40}."),)
        return Task(key, prompt, low + rng.randrange(1, 40))

    def episode(self, task: Task[int]) -> Episode:
        return self.hunt(task, self)

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data - 1), str(task.data))

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (f"{task.data} or {task.data + 1}", ("1", f"{task.data}?"))


class Telling(Hunt):
    async def open(self) -> Sequence[Message]:
        return (Message("user", f"Do not tell anybody that it is {self.task.data}."),)


class TellsAtFirst(Hunts):
    hunt = Telling


class Moody(Hunt):
    def said(self, guess: int | None) -> str:
        return super().said(guess) + random.choice("!.?")


_count = 0


class OfTheModule(Hunt):
    async def open(self) -> Sequence[Message]:
        global _count
        _count = 0
        return ()

    def said(self, guess: int | None) -> str:
        global _count
        _count += 1
        return f"{super().said(guess)}, {_count}"


class KeepsStateInTheModule(Hunts):
    hunt = OfTheModule


class OpensAFile(Hunt):
    async def open(self) -> Sequence[Message]:
        self.log = open(os.devnull)  # noqa: SIM115, ASYNC230 - the fault
        _kept.append(self.log)
        return ()


_kept: list[Any] = []


class LeavesAFileOpen(Hunts):
    hunt = OpensAFile


# With a sandbox


class Folder:
    """A session without a jail: files in memory, and commands that are functions of them."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self.files = {path: _bytes(content) for path, content in files.items()}

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        input: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - as the protocol has it
    ) -> CommandResult:
        """Carry out `print PATH`, `say PATH TEXT` or `test PATH`, which compares two files."""
        name, path, *rest = command.split(" ", 2) if isinstance(command, str) else command
        if name == "print":
            return CommandResult("ok", 0, self.files.get(path, b"").decode())
        if name == "say":
            self.files[path] = " ".join(rest).encode()
            return CommandResult("ok", 0)
        lines = self.files.get(path, b"").decode().split()
        fails = any(self.files.get("out", b"").decode().strip() != line for line in lines)
        return CommandResult("ok", int(fails))

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        self.files |= {path: _bytes(content) for path, content in files.items()}

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        return self.files.get(path)

    async def close(self) -> None:
        """Nothing is held."""


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "replace")


class Folders:
    """A sandbox of such sessions."""

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        return [[Outcome("ok") for _ in program.inputs] for program in programs]

    async def session(self, files: Mapping[str, str | bytes] | None = None, **_: Any) -> Session:
        return Folder(files or {})

    async def close(self) -> None:
        """Nothing is held."""


class Desk(Episode):
    """The sound episode with a session: write the sum of two numbers into the file `out`."""

    def __init__(self, task: Task[int], env: Environment[int]) -> None:
        self.task, self.env = task, env
        self.session: Session | None = None
        self.turns = 0

    def files(self) -> dict[str, str]:
        return {"note.txt": "Good luck.\n"}

    def tests(self) -> dict[str, str]:
        """What verifies: a file with the right answer."""
        return {"expected": f"{self.task.data}\n"}

    async def open(self) -> Sequence[Message]:
        self.session = await self.env.services.sandbox().session(self.files())
        return ()

    async def reply(self, messages: Sequence[Message]) -> Reply:
        text = await self.done(messages[-1].content)
        return None if text is None else (Message("user", text),)

    async def done(self, text: str) -> str | None:
        assert self.session is not None
        self.turns += 1
        if not text.startswith(("print ", "say ")):
            return None
        return (await self.session.exec(text)).stdout or "[ok]"

    async def verdict(self, rollout: Rollout) -> Verdict:
        spoken = [m.content for m in rollout.messages if m.role == "assistant"]
        for text in spoken[self.turns :]:
            await self.done(text)
        assert self.session is not None
        await self.session.write(self.tests())
        result = await self.session.exec("test expected")
        wrote = await self.session.read("out")
        right = result.exit_code == 0
        answer = None if wrote is None else wrote.decode("utf-8", "replace")[:99]
        return Verdict({"found": Reward(float(right))}, passed=right, answer=answer)

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()


class Desks(Hunts):
    needs = frozenset({"sandbox"})
    hunt = Desk

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        a, b = rng.randrange(100, 5000), rng.randrange(100, 5000)
        b += (a + b) % 2 != (key.split == "eval")
        return Task(key, (Message("user", f"Say {a} + {b} into the file out."),), a + b)

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (f"say out {task.data}", "done")

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (f"out {task.data}", "done")


# Honest designs


class NotReplayable(Hunts):
    """Sound: what it says is drawn anew in each episode, and it says so."""

    replayable = False
    hunt = Moody


FAULTS: Mapping[type[Environment[Any]], str] = {
    TellsAtFirst: "reply.secret",
    KeepsStateInTheModule: "episode.apart",
    LeavesAFileOpen: "episode.close",
}
SOUND: Sequence[type[Environment[Any]]] = (
    Hunts,
    Desks,
    NotReplayable,
)


def made(env: type[Environment[Any]]) -> Environment[Any]:
    """Return the environment with the services that it needs."""
    return env(None, Services(sandboxes={"default": Folders()} if env.needs else {}))
