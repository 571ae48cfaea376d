"""Faults in what judging does besides judging, of the kinds E."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from bases_e2_fresh9 import (
    FailedRequests,
    ScanNaming,
    ScopeOfATable,
    ShardOfAnOrder,
    photo,
    shard_name,
)
from bases_e_fresh9 import CellarStrength, judged
from catalogue import fault

from grpo_core import Rollout, Services, Task, Verdict
from grpo_core.extract import parse_decimal, xml_tag


@fault("judging leaves files in the home folder", "safety.files")
class FailedRequestsKept(FailedRequests):
    """Should let the author read failed attempts later; each is a line of a file at home."""

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        if not verdict.passed:
            folder = Path.home() / ".failed_requests"
            folder.mkdir(exist_ok=True)
            line = json.dumps({"index": task.key.index, "reply": rollout.text[:500]})
            with (folder / "wrong.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        return verdict


_READ: dict[str, tuple[str, Decimal | None]] = {}


def strength_in(text: str) -> tuple[str, Decimal | None]:
    """Return the content of the block and the number in it, from the memory if it is there."""
    if text not in _READ:
        block = xml_tag(text, tag="abv")
        content = "" if block is None else block.content
        _READ[text] = content, parse_decimal(content, max_digits=6)
    return _READ[text]


@fault("replies are cached without end", "cost.memory")
class CellarStrengthReadOnce(CellarStrength):
    """Should read equal replies of a group once; every reply of a run stays in memory."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        content, number = strength_in(rollout.text)
        return judged(number == Decimal(task.data), content)


@fault("the reply is a part of a query", "safety.eval", "floor.text", "floor.junk", "floor.digits")
class ScopeByQuery(ScopeOfATable):
    """Should let a database decide; the name is put into the query between quotes."""

    def right(self, data: dict[str, Any], reply: str) -> bool:
        database = sqlite3.connect(":memory:")
        try:
            database.execute("CREATE TABLE scopes (name TEXT, aperture INT, focal INT)")
            database.executemany("INSERT INTO scopes VALUES (?, ?, ?)", data["rows"])
            found = database.execute(
                f"SELECT name FROM scopes WHERE aperture >= {data['wide']} "
                f"AND focal <= {data['short']} AND name = '{reply}'"
            ).fetchall()
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            return False
        finally:
            database.close()
        return len(found) > 0


@fault("the reply is used as a format", "safety.eval", "floor.nested", "floor.text", "floor.junk")
class ScanNamingTriedOut(ScanNaming):
    """Should take every pattern that gives the right names; formats photographs with the reply."""

    def right(self, task: Task[str], reply: str) -> bool:
        rng = task.rng()
        shots = [photo(rng) for _ in range(6)]
        try:
            return all(reply.format(**shot) == task.data.format(**shot) for shot in shots)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            return False


@fault("the reply names a file that is opened", "safety.eval", "safety.files", "floor.text")
class ShardLookedInto(ShardOfAnOrder):
    """Should look for the day in the file that was named; opens whatever path the reply is."""

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self._folder = tempfile.TemporaryDirectory(prefix="shards-")
        for year in range(2008, 2025):
            for month in (1, 4, 7, 10):
                first = date(year, month, 1)
                last = date(year + month // 10, (month + 3) % 12, 1) - timedelta(1)
                shard = Path(self._folder.name, shard_name(first))
                shard.write_text(f"{first} {last}\n", encoding="utf-8")

    def right(self, day: str, reply: str) -> bool:
        try:
            with Path(self._folder.name, reply).open(encoding="utf-8") as shard:
                first, last = shard.readline(100).split()
        except (OSError, ValueError):
            return False
        return first <= day <= last
