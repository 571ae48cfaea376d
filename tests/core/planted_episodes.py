"""Toy episodes with one fault each, beside the sound ones that they are made from."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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


# reply.form and floor.*: the checks of dialogues play episodes


class Silent(Hunt):
    """Fails at silence."""

    def said(self, guess: int | None) -> str:
        return super().said(guess) if guess is not None else {}["x"]


class RaisesInEpisodes(Hunts):
    hunt = Silent


class Anything(Hunt):
    def scored(self) -> Verdict:
        return Verdict({"found": self.earned(True)}, passed=True)


class PaysAnything(Hunts):
    hunt = Anything


# reply.secret: what is said first


class Telling(Hunt):
    async def open(self) -> Sequence[Message]:
        return (Message("user", f"Do not tell anybody that it is {self.task.data}."),)


class TellsAtFirst(Hunts):
    hunt = Telling


# episode.replay


class Moody(Hunt):
    def said(self, guess: int | None) -> str:
        return super().said(guess) + random.choice("!.?")


class DrawsItsWords(Hunts):
    hunt = Moody


class Lucky(Hunt):
    def __init__(self, task: Task[int], env: Environment[int]) -> None:
        super().__init__(task, env)
        self.bonus = random.random() / 2

    def earned(self, found: bool) -> Reward:
        return Reward(0.5 + self.bonus if found else 0.0)


class DrawsItsReward(Hunts):
    hunt = Lucky


class Patient(Hunt):
    """Ends after two turns that are no number, of whichever attempt at the task."""

    mistakes: ClassVar[list[int]] = []

    def said(self, guess: int | None) -> str:
        if guess is None:
            self.mistakes.append(self.task.data)
        tired = self.mistakes.count(self.task.data) > 2
        return "I said so." if tired else super().said(guess)


class KeepsNotesOfTheTask(Hunts):
    hunt = Patient


# episode.repeat


class Consuming(Hunt):
    def scored(self) -> Verdict:
        verdict = super().scored()
        self.guesses = [None] * len(self.guesses)
        return verdict


class UsesUpItsState(Hunts):
    hunt = Consuming


class Once(Hunt):
    def __init__(self, task: Task[int], env: Environment[int]) -> None:
        super().__init__(task, env)
        self.folder: tempfile.TemporaryDirectory[str] | None = tempfile.TemporaryDirectory()

    def scored(self) -> Verdict:
        assert self.folder is not None
        self.folder.cleanup()
        self.folder = None
        return super().scored()

    async def close(self) -> None:
        if self.folder is not None:
            self.folder.cleanup()


class CleansUpInTheVerdict(Hunts):
    hunt = Once


# episode.apart


class OnTheEnvironment(Hunt):
    async def open(self) -> Sequence[Message]:
        self.env.last = []  # type: ignore[attr-defined]
        return ()

    def heard(self, text: str) -> int | None:
        guess = super().heard(text)
        self.env.last.append(guess)  # type: ignore[attr-defined]
        return guess

    def said(self, guess: int | None) -> str:
        return f"guess {len(self.env.last)}: {super().said(guess)}"  # type: ignore[attr-defined]


class KeepsStateOnTheEnvironment(Hunts):
    hunt = OnTheEnvironment


class OfTheClass(Hunt):
    current: ClassVar[int] = 0

    async def open(self) -> Sequence[Message]:
        type(self).current = self.task.data
        return ()

    def heard(self, text: str) -> int | None:
        guess = super().heard(text)
        self.right = guess == self.current
        return guess

    def scored(self) -> Verdict:
        found = bool(self.guesses) and self.right
        return Verdict({"found": Reward(float(found))}, passed=found)


class KeepsStateOnTheClass(Hunts):
    hunt = OfTheClass


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


class InAFile(Hunt):
    path = Path(tempfile.gettempdir()) / f"grpo-planted-guesses-{os.getuid()}"

    async def open(self) -> Sequence[Message]:
        self.path.write_text("")
        return ()

    def said(self, guess: int | None) -> str:
        with self.path.open("a") as file:
            file.write(f"{guess}\n")
        return f"{super().said(guess)}: {' '.join(self.path.read_text().split())}"

    async def close(self) -> None:
        self.path.unlink(missing_ok=True)


class KeepsStateInAFile(Hunts):
    hunt = InAFile


# episode.talk


class Impatient(Hunt):
    def scored(self) -> Verdict:
        if len(self.guesses) >= self.env.max_turns:  # "it has done its best"
            return Verdict({"found": Reward(1.0)}, passed=True)
        return super().scored()


class PassesTheEndless(Hunts):
    hunt = Impatient


class Short(Hunt):
    def scored(self) -> Verdict:
        assert len(self.guesses) < 5, "too many guesses"
        return super().scored()


class FailsAtTheEndless(Hunts):
    hunt = Short


# episode.turns


class Sharing(Hunt):
    def earned(self, found: bool) -> Reward:
        count = max(1, len(self.guesses))
        return Reward(turns=(float(found) / count,) * len(self.guesses))


class SharesTheSuccess(Hunts):
    hunt = Sharing


class Backdating(Hunt):
    def earned(self, found: bool) -> Reward:
        turns = [0.0] * len(self.guesses)
        if found:
            turns[0] = 1.0
        return Reward(turns=tuple(turns))


class PaysTheFirstTurn(Hunts):
    hunt = Backdating


# episode.close


class Threaded(Hunt):
    async def open(self) -> Sequence[Message]:
        self.ended = threading.Event()
        threading.Thread(target=self.ended.wait, name="hunt", daemon=True).start()
        return ()

    async def verdict(self, rollout: Rollout) -> Verdict:
        self.ended.set()
        return await super().verdict(rollout)


class EndsItsThreadInTheVerdict(Hunts):
    hunt = Threaded


class WithAFolder(Hunt):
    async def open(self) -> Sequence[Message]:
        self.folder = tempfile.mkdtemp()
        return ()

    async def close(self) -> None:
        if self.guesses:
            os.rmdir(self.folder)


class LeavesAFolderWithoutATurn(Hunts):
    hunt = WithAFolder


class Asking(Hunt):
    async def reply(self, messages: Sequence[Message]) -> Reply:
        process = subprocess.Popen(["sleep", "20"])  # noqa: ASYNC220 - the fault
        await asyncio.sleep(0.1)  # a cancelled call never comes here
        process.kill()
        process.wait()
        return await super().reply(messages)


class LeavesAProcessWhenCancelled(Hunts):
    hunt = Asking


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


class Forgetful(Desk):
    async def close(self) -> None:
        if self.turns:
            await super().close()


class ForgetsItsSession(Desks):
    hunt = Forgetful


class Open(Desk):
    def files(self) -> dict[str, str]:
        return super().files() | {"solution.txt": f"The sum is {self.task.data}\n"}


class ShowsTheSolution(Desks):
    hunt = Open


class Early(Desk):
    """Brings the test along from the start: a policy may read it, or empty it."""

    def files(self) -> dict[str, str]:
        return super().files() | {"expected": f"{self.task.data * 3} {self.task.data}\n"}

    def tests(self) -> dict[str, str]:
        return {}

    async def open(self) -> Sequence[Message]:
        opening = await super().open()
        assert self.session is not None
        await self.session.write({"expected": f"{self.task.data:07d}".lstrip("0")})
        return opening


class TestsCanBeEmptied(Desks):
    answer_in_prompt = True  # so that only emptying shows it
    hunt = Early


class Rewriting(Desk):
    """Writes the same hidden test at the start and at the end."""

    def files(self) -> dict[str, str]:
        return super().files() | {".hidden": f"{self.task.data}\n"}


class BringsTheTestAlong(Desks):
    answer_in_prompt = True
    hunt = Rewriting


# Honest designs


class Stalling(Hunt):
    """Pays each turn for what it brought: a valid guess, and the right one."""

    def earned(self, found: bool) -> Reward:
        return Reward(
            turns=tuple(
                0.1 / self.env.max_turns * (guess is not None) + 0.9 * (guess == self.task.data)
                for guess in self.guesses
            )
        )


class PaysByTurn(Hunts):
    """Sound: the reference earns the most, and turns are paid for themselves."""

    open_ended = True
    hunt = Stalling

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (f"{task.data} or {task.data + 1}",)


class Ending(Hunt):
    """Pays the last turn for the end that it brought."""

    def earned(self, found: bool) -> Reward:
        turns = [0.0] * len(self.guesses)
        if turns:
            turns[-1] = float(found)
        return Reward(turns=tuple(turns))


class PaysTheEnd(Hunts):
    hunt = Ending


class OfItsOwn(Hunt):
    """Holds a folder and a thread, and releases them however it ends."""

    async def open(self) -> Sequence[Message]:
        self.folder = tempfile.TemporaryDirectory()
        self.ended = threading.Event()
        threading.Thread(target=self.ended.wait, daemon=True).start()
        return (Message("user", "I am ready."),)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        said = _bytes(messages[-1].content)
        await asyncio.to_thread(Path(self.folder.name, "log").write_bytes, said)
        return await super().reply(messages)

    async def close(self) -> None:
        self.ended.set()
        self.folder.cleanup()


class HoldsAFolder(Hunts):
    hunt = OfItsOwn


class NotReplayable(Hunts):
    """Sound: what it says is drawn anew in each episode, and it says so."""

    replayable = False
    hunt = Moody


class RestoresFiles(Desks):
    """Sound: a file that the prompt names is written again before it is tested."""

    class Restoring(Desk):
        def files(self) -> dict[str, str]:
            return {"given.txt": "Some rows that the policy may have changed.\n"}

        def tests(self) -> dict[str, str]:
            return super().tests() | self.files()

    hunt = Restoring

    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        prompt = (Message("user", f"Beside given.txt: {task.prompt[0].content}"),)
        return Task(key, prompt, task.data)


FAULTS: Mapping[type[Environment[Any]], str] = {
    RaisesInEpisodes: "reply.form",
    PaysAnything: "floor.empty",
    TellsAtFirst: "reply.secret",
    DrawsItsWords: "episode.replay",
    DrawsItsReward: "episode.replay",
    KeepsNotesOfTheTask: "episode.replay",
    UsesUpItsState: "episode.repeat",
    CleansUpInTheVerdict: "episode.repeat",
    KeepsStateOnTheEnvironment: "episode.apart",
    KeepsStateOnTheClass: "episode.apart",
    KeepsStateInTheModule: "episode.apart",
    KeepsStateInAFile: "episode.apart",
    PassesTheEndless: "episode.talk",
    FailsAtTheEndless: "episode.talk",
    SharesTheSuccess: "episode.turns",
    PaysTheFirstTurn: "episode.turns",
    LeavesAProcessWhenCancelled: "episode.close",
    EndsItsThreadInTheVerdict: "episode.close",
    LeavesAFolderWithoutATurn: "episode.close",
    LeavesAFileOpen: "episode.close",
    ForgetsItsSession: "episode.close",
    ShowsTheSolution: "episode.files",
    TestsCanBeEmptied: "episode.files",
    BringsTheTestAlong: "episode.files",
}
SOUND: Sequence[type[Environment[Any]]] = (
    Hunts,
    Desks,
    PaysByTurn,
    PaysTheEnd,
    HoldsAFolder,
    NotReplayable,
    RestoresFiles,
)


def made(env: type[Environment[Any]]) -> Environment[Any]:
    """Return the environment with the services that it needs."""
    return env(None, Services(sandboxes={"default": Folders()} if env.needs else {}))
