"""Faults of episodes: what they leave open, what their folder holds, what their turns earn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bases_d4_fresh8 import (
    WORDS,
    Catalogue,
    MissingTranslations,
    OpenedSafe,
    SafeWithThreeDials,
    Workplace,
    as_lines,
    bench,
    from_lines,
)
from catalogue import fault

from grpo_core import Episode, Message, Task


class GradedElsewhere(Workplace):
    """Grades the file in a clean folder, where nothing of the policy's can be in the way."""

    async def done(self) -> bool:
        assert self.session is not None, "open() comes first"
        handed_in = await self.session.read("de.txt")
        clean = await self.sandbox.session({"de.txt": handed_in or b""})
        shown = await clean.exec("sort de.txt")
        return from_lines(shown.stdout.encode(errors="replace")) == self.job.german


@fault(
    "a session of the sandbox is left open",
    "episode.close",
    build=lambda: GradedInACleanFolder(services=bench()),
)
class GradedInACleanFolder(MissingTranslations):
    """The verdict opens a second session for its inspection and forgets it."""

    def episode(self, task: Task[Catalogue]) -> Episode:
        return GradedElsewhere(task.data, self.services.sandbox())


class GuardedSafe(OpenedSafe):
    """Has a guard who comes by if the first turn takes long."""

    guard: asyncio.Task[None] | None = None
    late = False

    async def open(self) -> Sequence[Message]:
        self.guard = asyncio.create_task(self.walk())
        return ()

    async def walk(self) -> None:
        """Come by after a while."""
        await asyncio.sleep(15)
        self.late = True

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        if self.guard is not None:
            self.guard.cancel()
            self.guard = None
        return await super().reply(messages)


@fault("a task of the event loop is left without a turn", "episode.close")
class SafeWithAGuard(SafeWithThreeDials):
    """The first reply calls the guard off; an attempt without a reply never does."""

    def episode(self, task: Task[tuple[str, ...]]) -> Episode:
        return GuardedSafe([sum(map(int, text.split(" + "))) for text in task.data])


class WorkplaceWithABackup(Workplace):
    """Has the folder of the released program, from which some lines were deleted."""

    def files(self) -> dict[str, str]:
        return {**super().files(), "build/de.txt.bak": as_lines(self.job.german)}


@fault(
    "the folder holds the answer",
    "episode.files",
    build=lambda: TranslationsWithABackup(services=bench()),
)
class TranslationsWithABackup(MissingTranslations):
    """The folder was copied with its backup, which still has the lines that are missing."""

    def episode(self, task: Task[Catalogue]) -> Episode:
        return WorkplaceWithABackup(task.data, self.services.sandbox())


class ComparedWithEnglish(Workplace):
    """Goes through the keys of en.txt and looks each up in de.txt."""

    async def done(self) -> bool:
        assert self.session is not None, "open() comes first"
        english = from_lines(await self.session.read("en.txt"))
        german = from_lines(await self.session.read("de.txt"))
        known = german.keys() <= self.job.english.keys()
        return known and all(german.get(key) == WORDS.get(word) for key, word in english.items())


@fault(
    "the verifier rests on a file that the policy can empty",
    "episode.files",
    build=lambda: TranslationsByTheEnglishFile(services=bench()),
)
class TranslationsByTheEnglishFile(MissingTranslations):
    """The keys that have to be there are read from the folder when the attempt is judged."""

    def episode(self, task: Task[Catalogue]) -> Episode:
        return ComparedWithEnglish(task.data, self.services.sandbox())


class SafePaidBackwards(OpenedSafe):
    """Pays the last turn most, as a return that is discounted from the end."""

    def paid(self) -> Sequence[float]:
        shares = (0.5, 0.3, 0.2)
        left = range(len(self.marks) - 1, -1, -1)
        return [
            shares[after] if mark and after < len(shares) else 0.0
            for mark, after in zip(self.marks, left, strict=True)
        ]


@fault("turns are paid by how far they are from the end", "episode.turns")
class SafePaidFromTheEnd(SafeWithThreeDials):
    """What a dial earns depends on how many turns follow it."""

    def episode(self, task: Task[tuple[str, ...]]) -> Episode:
        return SafePaidBackwards([sum(map(int, text.split(" + "))) for text in task.data])
