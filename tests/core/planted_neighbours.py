"""Toy environments beside a boundary of a check: honest ones that it must pass, and faults that it must still find."""

import calendar
import locale
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from bases_episodes import Cupboard, Cupboards, Shelf, Shelves
from planted import Sum, is_watched

from grpo_core import (
    CommandResult,
    Environment,
    Message,
    Reward,
    Rollout,
    Services,
    Session,
    Task,
    TaskKey,
    Verdict,
)

# safety.processes


class HelperThatEnds(Sum):
    """A program of the verifier starts a helper that ends by itself."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        subprocess.run(["sh", "-c", "(sleep 0.01 &) ; true"], check=True)
        return super().verify(task, rollout)


class HelperThatStays(Sum):
    """The helper lives on as an orphan."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        if is_watched():
            subprocess.run(["sh", "-c", "(sleep 20 &) ; true"], check=True)
        return super().verify(task, rollout)


# task.process and safety.state: the locale


@contextmanager
def locale_restored() -> Iterator[None]:
    before = locale.setlocale(locale.LC_ALL)
    try:
        yield
    finally:
        locale.setlocale(locale.LC_ALL, before)


class Dated(Sum):
    """Writes a day and a decimal number into each prompt, once the locale is set."""

    def set(self) -> None:
        """Set the locale."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        with locale_restored():
            self.set()
            told = f"{calendar.day_abbr[one % 7]}, {locale.str(one / 8)}"
        return Task(key, f"{told}: {one} + {two}? Write <answer>N</answer>.", one + two)


class CharactersOfTheUser(Dated):
    def set(self) -> None:
        locale.setlocale(locale.LC_CTYPE, "")


class PinnedAgain(Dated):
    def set(self) -> None:
        locale.setlocale(locale.LC_ALL, "")
        locale.setlocale(locale.LC_ALL, "C")


class DaysOfTheUser(Dated):
    def set(self) -> None:
        locale.setlocale(locale.LC_TIME, "")


# task.process: environment variables


class HurriedBehindTheLocale(Sum):
    """Looks at three variables of the locale, which changes nothing, and at one of its own."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        for name in ("LC_ALL", "LANG", "LC_TIME"):
            os.environ.get(name)
        hurry = " Hurry!" if os.environ.get("PLANTED_HURRY") else ""
        return Task(key, f"{one} + {two}?{hurry} Write <answer>N</answer>.", one + two)


# task.pure


class Multiplied(Sum):
    """Can be built with more than a config and services."""

    def __init__(self, config: Any = None, services: Services | None = None, factor: int = 1):
        super().__init__(config, services)
        self.factor = factor

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return super().asked(key, one * self.factor, two)


# episode.files


class StrictCupboard(Cupboard):
    """Refuses paths outside of itself, as the sessions of a jail do."""

    async def exec(self, command: str | Sequence[str], **options: Any) -> CommandResult:
        if command != "copy note.bak note.txt":
            return await super().exec(command, **options)
        self.files["note.txt"] = self.files.get("note.bak", b"")
        return CommandResult("ok", 0)

    async def write(self, files: Mapping[str, str | bytes]) -> None:
        if any(path.startswith("/") for path in files):
            raise ValueError("a path is not inside of the session")
        await super().write(files)


class StrictCupboards(Cupboards):
    async def session(self, files: Mapping[str, str | bytes] | None = None, **_: Any) -> Session:
        return StrictCupboard(files or {})


def made(env: type[Environment[Any]]) -> Environment[Any]:
    return env(None, Services(sandboxes={"default": StrictCupboards()} if env.needs else {}))


class ShelfBesideOthers(Shelf):
    """Has a file of another day, and reads one outside of the session's folder."""

    def files(self) -> Mapping[str, str]:
        return {**super().files(), "old.txt": "to do\n", "thresholds.json": "[7, 9]\n"}

    async def verdict(self, rollout: Rollout) -> Verdict:
        assert self.session is not None
        await self.session.read("/etc/limits.txt")
        return await super().verdict(rollout)


class ShelvesBesideOthers(Shelves):
    """The prompt names a file outside of the session's folder, and has other words with a dot."""

    shelf = ShelfBesideOthers

    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        more = (
            " It is no secret (e.g. /etc/passwd.txt is none); Python3.x of example.com counts, too."
        )
        return Task(key, (Message("user", task.prompt[0].content + more),), task.data)


class Restoring(Shelf):
    """What is to be made lies in the folder as another file."""

    def files(self) -> Mapping[str, str]:
        return {"note.bak": f"note {self.task.data}\n", "thresholds.json": "[7, 9]\n"}

    def tests(self) -> Mapping[str, str]:
        return {}

    async def take(self, text: str) -> str | None:
        self.heard += 1
        if not text.startswith("copy "):
            return None
        assert self.session is not None
        return (await self.session.exec(text)).status

    async def verdict(self, rollout: Rollout) -> Verdict:
        await super().verdict(rollout)
        assert self.session is not None
        right = await self.session.read("note.txt") == f"note {self.task.data}\n".encode()
        return Verdict({"arrived": Reward(float(right))}, passed=right)


class CopiesAsTold(Shelves):
    """The policy is to copy a file that the prompt names."""

    shelf = Restoring
    levels = False
    told: ClassVar[str] = " from its copy note.bak"

    def task(self, key: TaskKey) -> Task[int]:
        number = 2 * key.rng().randrange(1000, 10**6) + (key.split == "eval")
        prompt = f"Restore note.txt{self.told}, with the mark {number}."
        return Task(key, (Message("user", prompt),), number * 7 + 1)

    def reference(self, task: Task[int]) -> Sequence[str]:
        return ("copy note.bak note.txt", "done")

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return ()


class HasASecretBackup(CopiesAsTold):
    """The policy is to write the file, and the folder has it as a backup."""

    told = ""


class LooksForTheBackup(HasASecretBackup):
    """Declares that the files are what is asked about."""

    answer_in_prompt = True


FAULTS: Mapping[type[Environment[Any]], str] = {
    HelperThatStays: "safety.processes",
    DaysOfTheUser: "task.process",
    HurriedBehindTheLocale: "task.process",
}
SOUND: Mapping[type[Environment[Any]], Sequence[str]] = {
    HelperThatEnds: ("safety.processes",),
    CharactersOfTheUser: ("task.process",),
    PinnedAgain: ("task.process",),
    CopiesAsTold: ("episode.files",),
    LooksForTheBackup: ("episode.files",),
}
