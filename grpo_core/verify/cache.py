"""Verdicts by content: what was judged once is not judged again, within a step or, from a file, in another run."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpo_core.calls.deadline import describe
from grpo_core.calls.wire import encode
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Rollout, Task, Verdict

_WAIT_SECONDS = 10.0
"""For another process that is writing to the same file."""


class VerdictCache:
    """At most about `entries` verdicts, the oldest go first; in memory, or in the file `path`, which several processes may share.

    Only for verdicts that depend on nothing but (environment fingerprint, task key, draw, completion); only those are kept that are scored
    and `cacheable`. A file
    that cannot be written any more costs the cache, which is logged, and not the run. Raises ConfigError if it cannot be opened.
    """

    def __init__(self, path: Path | None = None, *, entries: int) -> None:
        self._entries = entries
        self._judging: dict[str, asyncio.Future[Verdict | None]] = {}
        self._broken = False
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            # One event loop at a time uses it, but in notebooks that is not always the same thread.
            self._db = sqlite3.connect(
                path or ":memory:",
                timeout=_WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(
                "PRAGMA synchronous=NORMAL"
            )  # whole after a kill; the last verdicts may go with the power
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS verdicts (place INTEGER PRIMARY KEY, name TEXT UNIQUE, verdict TEXT)"
            )
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"the verdict cache {path} cannot be used: {error}; delete the file, or set verify.cache=memory"
            ) from None

    async def verdict(
        self,
        name: str,
        judge: Callable[[], Awaitable[Verdict]],
        *,
        check: Callable[[Verdict], Verdict],
    ) -> tuple[Verdict, bool]:
        """Return the verdict called `name` (see `verdict_name`) and whether it was kept.

        If it was not, `judge` is asked, once for all who want it meanwhile. If that fails, each of
        them asks for itself: a failure that passes must not cost several attempts.

        Args:
            check: returns a kept verdict if the environment may give it, and raises if not: the
                file may be damaged, or somebody may have changed it. It is then judged again.
        """
        if (judging := self._judging.get(name)) is not None:
            shared = await asyncio.shield(judging)
            return (_again(shared), True) if shared is not None else (await judge(), False)
        if (kept := self._find(name, check)) is not None:
            return _again(kept), True
        future = self._judging[name] = asyncio.get_running_loop().create_future()
        try:
            verdict = await judge()
            if verdict.scored and verdict.cacheable:
                self._keep(name, verdict)
                future.set_result(verdict)
            return verdict, False
        finally:
            del self._judging[name]
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Give the file back."""
        self._db.close()

    def _find(self, name: str, check: Callable[[Verdict], Verdict]) -> Verdict | None:
        rows = self._try("SELECT verdict FROM verdicts WHERE name = ?", name)
        if not rows:
            return None
        try:
            verdict = Verdict.from_json(json.loads(rows[0][0]))
            return check(verdict) if verdict.scored and verdict.cacheable else None
        except Exception as error:  # noqa: BLE001 - a damaged row may hold anything
            logging.getLogger(__name__).warning(
                "a damaged row of the verdict cache was judged again: %s", describe(error)
            )
            return None

    def _keep(self, name: str, verdict: Verdict) -> None:
        self._try(
            "INSERT OR REPLACE INTO verdicts (name, verdict) VALUES (?, ?)",
            name,
            json.dumps(verdict.to_json()),
        )
        self._try(
            "DELETE FROM verdicts WHERE place <= (SELECT max(place) FROM verdicts) - ?",
            self._entries,
        )

    def _try(self, command: str, *values: object) -> list[tuple[Any, ...]]:
        if self._broken:
            return []
        try:
            return self._db.execute(command, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged file may hold any bytes
            self._broken = True
            logging.getLogger(__name__).warning("verdicts are no longer cached: %s", error)
            return []


def _again(verdict: Verdict) -> Verdict:
    """The same, for no time."""
    return replace(
        verdict,
        rewards={name: replace(part, seconds=0.0) for name, part in verdict.rewards.items()},
    )


def verdict_name(fingerprint: str, task: Task[Any], rollout: Rollout) -> str:
    """The content that a verdict depends on, as a digest. The prompt is part of it: data may change under the same fingerprint."""
    content = [fingerprint, asdict(task.key), task.draw, encode(task.prompt), encode(rollout)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
