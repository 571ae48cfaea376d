"""Honest designs of episodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from bases_d4_fresh8 import (
    Catalogue,
    MissingTranslations,
    OpenedSafe,
    SafeWithThreeDials,
    Workplace,
    as_lines,
    bench,
)
from catalogue import honest

from grpo_core import Episode, Message, Task, TaskKey


class WatchedSafe(OpenedSafe):
    """Has a watchman who walks by in the background and changes nothing."""

    watchman: asyncio.Task[None] | None = None

    async def open(self) -> Sequence[Message]:
        self.watchman = asyncio.create_task(self.walk())
        return (Message("user", "You hear steps. The first dial?"),)

    async def walk(self) -> None:
        """Walk until the attempt is over."""
        await asyncio.sleep(3600)

    async def close(self) -> None:
        if self.watchman is not None:
            self.watchman.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.watchman


@honest("a task of the event loop runs as long as the episode; close() ends it and waits for it")
class SafeWithAWatchman(SafeWithThreeDials):
    """The policy hears steps, and takes its time."""

    def task(self, key: TaskKey) -> Task[tuple[str, ...]]:
        task = super().task(key)
        return replace(task, prompt=tuple(replace(m, role="system") for m in task.prompt))

    def episode(self, task: Task[tuple[str, ...]]) -> Episode:
        return WatchedSafe([sum(map(int, text.split(" + "))) for text in task.data])


class WornSafe(OpenedSafe):
    """Pays a dial less for each wrong turn before it."""

    def paid(self) -> Sequence[float]:
        wrong, paid = 0, []
        for mark in self.marks:
            paid.append((1 - 0.2 * wrong) / len(self.numbers) if mark else 0.0)
            wrong += not mark
        return paid


@honest(
    "a dial is worth less after wrong turns, so equal turns earn differently; what a turn earns "
    "depends on the turns before it and on none after it"
)
class SafeThatWearsOut(SafeWithThreeDials):
    """Each number that moves nothing takes a fifth off the dials that follow."""

    def episode(self, task: Task[tuple[str, ...]]) -> Episode:
        return WornSafe([sum(map(int, text.split(" + "))) for text in task.data])


class WorkplaceWithADraft(Workplace):
    """Has a draft in its folder in which each missing key got the word of another one."""

    def files(self) -> dict[str, str]:
        words = [self.job.german[key] for key in self.job.missing]
        moved = dict(zip(self.job.missing, [*words[1:], words[0]], strict=True))
        return {**super().files(), "draft.txt": as_lines(moved)}


@honest(
    "the folder holds a draft of the lines that are missing, but the prompt says that it has mixed "
    "them up: no line of it is right",
    build=lambda: TranslationsWithADraft(services=bench()),
)
class TranslationsWithADraft(MissingTranslations):
    """A colleague has left a draft that must not be copied."""

    def task(self, key: TaskKey) -> Task[Catalogue]:
        task = super().task(key)
        *before, last = task.prompt
        assert isinstance(last, Message)
        warned = replace(last, content=f"{last.content} In draft.txt every line is mixed up.")
        return replace(task, prompt=(*before, warned))

    def episode(self, task: Task[Catalogue]) -> Episode:
        return WorkplaceWithADraft(task.data, self.services.sandbox())
