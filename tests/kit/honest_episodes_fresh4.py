"""Episodes without a fault that look odd, fourth fresh part."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import ClassVar

from bases_state_fresh4 import (
    Panel,
    PanelEpisode,
    Workshop,
    WorkshopEpisode,
    solution,
    with_sandbox,
)
from catalogue import honest

from grpo_core import Episode, Message, Task


class Watched(PanelEpisode):
    """Counts how often the event loop comes round, for nobody but the author."""

    rounds = 0
    watch: asyncio.Task[None] | None = None

    async def open(self) -> Sequence[Message]:
        self.watch = asyncio.create_task(self.count())
        return ()

    async def count(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.rounds += 1

    async def close(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.watch


@honest("a task of the event loop runs for as long as an attempt lasts, and close() ends it")
class WatchedPanel(Panel):
    def episode(self, task: Task[str]) -> Episode:
        return Watched(task)


class Ticketed(PanelEpisode):
    """Begins each reply with the number of a ticket, which is drawn for each attempt."""

    def __init__(self, task: Task[str]) -> None:
        super().__init__(task)
        self.ticket = secrets.token_hex(4)

    def told(self) -> str:
        return f"Ticket {self.ticket}. {super().told()}"


@honest("each attempt gets a ticket that is drawn by chance, and says that it is not replayable")
class TicketByChance(Panel):
    replayable = False

    def episode(self, task: Task[str]) -> Episode:
        return Ticketed(task)


class Counted(PanelEpisode):
    """Says how many presses are enough, from a table that all attempts share."""

    enough: ClassVar[dict[str, int]] = {}

    def told(self) -> str:
        if self.lamps not in self.enough:  # there are no more than 5120 rows
            self.enough[self.lamps] = len(solution(self.lamps) or ())
        return f"{super().told()} ({self.enough[self.lamps]} presses are enough)"


@honest("all attempts share a table on the class, which holds only what any of them would find")
class SharedTable(Panel):
    def episode(self, task: Task[str]) -> Episode:
        return Counted(task)


class WithOldTotal(WorkshopEpisode):
    """Finds the total of the day before, at the place where the new one belongs."""

    def files(self) -> dict[str, str | bytes]:
        old = self.task.data["total"] + self.task.data["rows"][0][1]
        return {**super().files(), "total.txt": f"{old}\n", "notes/last_week.txt": f"{old}\n"}


@honest(
    "the folder holds a file of the name that is asked for, with a number that is never right",
    build=lambda: with_sandbox(OldTotalInTheFolder),
)
class OldTotalInTheFolder(Workshop):
    attempt = WithOldTotal
