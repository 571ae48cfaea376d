"""Planted faults of the sixth fresh part: effects of judging."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bases_desk_fresh6 import Change, Slices, Transfers, marked
from bases_fresh5 import Stock
from bases_state_fresh6 import Riders
from bases_words_fresh5 import Playlist
from catalogue import fault

from grpo_core import Rollout, Task, Verdict


@fault("judging leaves open files", "safety.processes")
class ReadsLinesFromAFile(Transfers):
    """The reader of tables wants a file; its path is removed, and its descriptor stays open."""

    def read(self, text: str) -> Any:
        _, path = tempfile.mkstemp(suffix=".csv")
        try:
            Path(path).write_bytes(text.encode(errors="replace"))
            with suppress(csv.Error), open(path, newline="", encoding="utf-8") as file:
                if len(list(csv.reader(file))) > 1:
                    return None  # the list is one line
            return super().read(text)
        finally:
            os.unlink(path)


@fault("judging leaves temporary folders", "safety.files")
class StoresInAFolder(Stock):
    """The folder in which an answer is put in order is removed at the end, if that is reached."""

    def read(self, text: str) -> Any:
        folder = Path(tempfile.mkdtemp(prefix="stock-"))
        (folder / "reply.txt").write_bytes(text.encode(errors="replace"))
        answer = super().read(text)
        if answer is None:
            return None
        (folder / "stock.json").write_text(json.dumps(answer))
        shutil.rmtree(folder)
        return answer


@fault("judging seeds the global generators", "safety.state")
class TriesSeededLists(Slices):
    """The slice is tried on random lists, too, which shall be the same for each attempt."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        random.seed(task.key.index)
        return super().verify(task, rollout)

    def lengths(self) -> Sequence[int]:
        return (*super().lengths(), *(random.randint(90, 500) for _ in range(10)))


class Counts:
    """Sends counts to a collector of metrics on this machine, as statsd has them."""

    def __init__(self, prefix: str, port: int = 8125) -> None:
        self.prefix, self.address = prefix, ("127.0.0.1", port)

    def increment(self, name: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.sendto(f"{self.prefix}.{name}:1|c".encode(), self.address)


COUNTS = Counts("riders")


@fault("judging uses the network", "safety.network")
class CountsRightTrips(Riders):
    """Right and wrong answers are counted for a dashboard."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        COUNTS.increment("right" if verdict.passed else "wrong")
        return verdict


MOST = 50_000  # ct, more than any amount


@fault("tasks are kept without end", "cost.memory")
class TablesOfTasks(Change):
    """A table is made once for a task, which is kept so that its id is not used again."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.tables: dict[int, tuple[Task[Any], list[int]]] = {}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        if id(task) not in self.tables:
            table = self.ways(MOST, task.data["coins"])
            self.tables[id(task)] = task, table
        ways = self.tables[id(task)][1][task.data["amount"]]
        right = rollout.text.strip(" \t\r\n") == str(ways)
        return marked(float(right), rollout.text)


def text_of(source: str) -> str:
    """Return a text, or that of the file which it names."""
    name = source.strip()
    if 0 < len(name) < 60 and name.isprintable() and Path(name).is_file():
        return Path(name).read_text(encoding="utf-8", errors="replace")
    return source


@fault("the reply names a file that is opened", "safety.files", "safety.eval", "floor.text")
class PlaylistFromAFile(Playlist):
    """What reads a playlist takes its text or its path, as many readers do."""

    def read(self, text: str) -> Any:
        return super().read(text_of(text))
