"""Sound environments with episodes, from which faulty ones are made by changing one thing."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    held_out,
)

Turns = Sequence[Message]
_STEP = re.compile(r"go (-?[1-9])")


@dataclass(frozen=True, slots=True)
class Way:
    """Where a walk starts, and where it is to end."""

    start: int
    goal: int


class Walk(Episode):
    """A walk on a line: "go 3" and "go -2" move, and "stop" ends it."""

    def __init__(self, task: Task[Way], env: Environment[Way]) -> None:
        self.task, self.env = task, env
        self.place = task.data.start
        self.heard = 0
        self.stopped = False

    async def reply(self, messages: Turns) -> Turns | None:
        said = self.take(messages[-1].content)
        return None if self.stopped else (Message("user", said),)

    def take(self, text: str) -> str:
        """Carry out a turn, and return what the policy hears."""
        self.heard += 1
        if text.strip() == "stop":
            self.stopped = True
        elif step := _STEP.fullmatch(text.strip()):
            self.move(int(step[1]))
        else:
            return self.misunderstood(text)
        return self.says()

    def misunderstood(self, text: str) -> str:
        return "Say 'go' with a number from -9 to 9, or 'stop'."

    def move(self, steps: int) -> None:
        self.place += steps

    def says(self) -> str:
        return f"You are at {self.place}."

    async def verdict(self, rollout: Rollout) -> Verdict:
        spoken = [m.content for m in rollout.messages if m.role == "assistant"]
        for text in spoken[self.heard :]:  # the last one, if reply() has not heard it
            self.take(text)
        return self.judged()

    def judged(self) -> Verdict:
        arrived = self.arrived()
        return Verdict({"arrived": self.earned(arrived)}, passed=arrived)

    def arrived(self) -> bool:
        return self.stopped and self.place == self.task.data.goal

    def earned(self, arrived: bool) -> Reward:
        return Reward(float(arrived))


class Walks(Environment[Way]):
    """Asks for a walk from one number to another."""

    parts: ClassVar[Mapping[str, float]] = {"arrived": 1.0}
    walk: ClassVar[Callable[..., Episode]] = Walk
    max_turns = 8
    max_new_tokens = 16
    replayable = True
    timeout_seconds = 3.0

    def task(self, key: TaskKey) -> Task[Way]:
        rng = key.rng()
        while True:
            start = rng.randrange(100, 10_000)
            goal = start + rng.choice((-1, 1)) * rng.randint(1, 9 + round(36 * key.level))
            prompt = f"You are at {start}. Go to {goal} and stop there, 9 at most in a turn."
            if held_out(prompt) == (key.split == "eval"):
                return Task(key, (Message("user", prompt),), Way(start, goal))

    def episode(self, task: Task[Way]) -> Episode:
        return self.walk(task, self)

    def reference(self, task: Task[Way]) -> Sequence[str]:
        left, turns = task.data.goal - task.data.start, []
        while left:
            step = max(-9, min(9, left))
            turns.append(f"go {step}")
            left -= step
        return (*turns, "stop")

    def cheats(self, task: Task[Way]) -> Sequence[str | Sequence[str]]:
        return (f"go {task.data.goal}", f"You are at {task.data.goal}.", ("stop", "go 1"))


class Cupboard:
    """A session without a jail: files in memory, and two commands."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self.files = {path: as_bytes(content) for path, content in files.items()}

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        input: str = "",
        timeout: float | None = None,  # noqa: ASYNC109 - as the protocol has it
    ) -> CommandResult:
        """Carry out `show PATH`, `put PATH TEXT`, or `check PATH`: no line of it is missing."""
        words = command.split(" ", 2) if isinstance(command, str) else list(command)
        name, path = words[0], words[1] if len(words) > 1 else ""
        if name == "show":
            return CommandResult("ok", 0, self.files.get(path, b"").decode("utf-8", "replace"))
        if name == "put":
            self.files[path] = as_bytes("".join(words[2:]))
            return CommandResult("ok", 0)
        lines = set(self.files.get(path, b"").split(b"\n")) - {b""}
        return CommandResult("ok", int(not lines <= set(self.files.get("list", b"").split(b"\n"))))

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        self.files |= {path: as_bytes(content) for path, content in files.items()}

    async def read(self, path: str, *, limit: int = 64_000) -> bytes | None:
        return self.files.get(path)

    async def close(self) -> None:
        """Nothing is held."""


def as_bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "replace")


class Cupboards:
    """A sandbox of such sessions."""

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        return [[Outcome("ok") for _ in program.inputs] for program in programs]

    async def session(self, files: Mapping[str, str | bytes] | None = None, **_: Any) -> Session:
        return Cupboard(files or {})

    async def close(self) -> None:
        """Nothing is held."""


class Shelf(Episode):
    """A session in which the sum of a row of numbers is to be put into the file `list`."""

    def __init__(self, task: Task[int], env: Environment[int]) -> None:
        self.task, self.env = task, env
        self.session: Session | None = None
        self.heard = 0

    def files(self) -> Mapping[str, str]:
        """Return what the folder holds at first."""
        return {"readme": "Use show and put.\n"}

    def tests(self) -> Mapping[str, str]:
        """Return what the verifier brings in."""
        return {"wanted": f"{self.task.data}\n"}

    async def open(self) -> Turns:
        self.session = await self.env.services.sandbox().session(self.files())
        return ()

    async def reply(self, messages: Turns) -> Turns | None:
        said = await self.take(messages[-1].content)
        return None if said is None else (Message("user", said),)

    async def take(self, text: str) -> str | None:
        assert self.session is not None, "open() comes first"
        self.heard += 1
        if not text.startswith(("show ", "put ")):
            return None
        return (await self.session.exec(text)).stdout or "done"

    async def verdict(self, rollout: Rollout) -> Verdict:
        spoken = [m.content for m in rollout.messages if m.role == "assistant"]
        for text in spoken[self.heard :]:
            await self.take(text)
        assert self.session is not None, "open() comes first"
        await self.session.write(self.tests())
        right = (await self.session.exec("check wanted")).exit_code == 0
        return Verdict({"arrived": Reward(float(right))}, passed=right)

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()


class Shelves(Environment[int]):
    """Asks for a sum in a file."""

    parts: ClassVar[Mapping[str, float]] = {"arrived": 1.0}
    shelf: ClassVar[Callable[..., Episode]] = Shelf
    needs = frozenset({"sandbox"})
    max_turns = 4
    max_new_tokens = 32
    replayable = True

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        while True:
            numbers = [rng.randrange(100, 1000) for _ in range(2 + round(3 * key.level))]
            prompt = f"Put the sum of {', '.join(map(str, numbers))} into the file list."
            if held_out(prompt) == (key.split == "eval"):
                return Task(key, (Message("user", prompt),), sum(numbers))

    def episode(self, task: Task[int]) -> Episode:
        return self.shelf(task, self)

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (f"put list {task.data}", "ready")

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (f"list {task.data}", "ready")


def with_cupboards(env: type[Environment[Any]]) -> Environment[Any]:
    """Return an environment with a sandbox of this kind."""
    return env(None, Services(sandboxes={"default": Cupboards()}))
