"""Cache verdicts by their content, within a run or, in a file, for later runs.

Equal completions of a task are then judged only once.
"""

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
"""How long to wait for another process that is writing to the same file."""


class VerdictCache:
    """Store verdicts by key, in memory or in a file that several processes may share.

    The cache is only for verdicts that depend on nothing but the environment's fingerprint, the
    task key, the draw and the completion. Only verdicts that are scored and `cacheable` are stored.

    If the file can no longer be read or written, that is logged and the run goes on without the
    cache.
    """

    def __init__(self, path: Path | None = None, *, entries: int) -> None:
        """Open the cache.

        Args:
            path: the file; None: in memory.
            entries: number of verdicts to store, approximately; the oldest are removed first.

        Raises:
            ConfigError: the file cannot be opened.
        """
        self._entries = entries
        self._in_progress: dict[str, asyncio.Future[Verdict | None]] = {}
        self._disabled = False
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            # Only one event loop uses it at a time, but in notebooks its thread may change.
            self._db = sqlite3.connect(
                path or ":memory:",
                timeout=_WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            # The file stays intact when the process is killed; a power failure may lose the last
            # verdicts.
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS verdicts "
                "(place INTEGER PRIMARY KEY, name TEXT UNIQUE, verdict TEXT)"
            )
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"the verdict cache {path} cannot be used: {error}; "
                "delete the file, or set verify.cache=memory"
            ) from None

    async def verdict(
        self,
        key: str,
        judge: Callable[[], Awaitable[Verdict]],
        *,
        check: Callable[[Verdict], Verdict],
    ) -> tuple[Verdict, bool]:
        """Return the verdict with this key, from the cache or from `judge`.

        If several callers request the same key at the same time, `judge` is called once and all of
        them get its verdict. If that call fails, each of the others calls `judge` itself, so that
        a temporary failure does not affect several rollouts.

        Args:
            key: see `verdict_key`.
            judge: judges the completion.
            check: returns a cached verdict if the environment can have given it, and raises if
                not: the file may be damaged, or somebody may have changed it. The completion is
                then judged again.

        Returns:
            The verdict, and whether it was cached.
        """
        if (in_progress := self._in_progress.get(key)) is not None:
            shared = await asyncio.shield(in_progress)
            if shared is not None:
                return _without_seconds(shared), True
            return await judge(), False
        if (cached := self._read(key, check)) is not None:
            return _without_seconds(cached), True
        future = self._in_progress[key] = asyncio.get_running_loop().create_future()
        try:
            verdict = await judge()
            if verdict.scored and verdict.cacheable:
                self._write(key, verdict)
                future.set_result(verdict)
            return verdict, False
        finally:
            del self._in_progress[key]
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _read(self, key: str, check: Callable[[Verdict], Verdict]) -> Verdict | None:
        rows = self._execute("SELECT verdict FROM verdicts WHERE name = ?", key)
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

    def _write(self, key: str, verdict: Verdict) -> None:
        self._execute(
            "INSERT OR REPLACE INTO verdicts (name, verdict) VALUES (?, ?)",
            key,
            json.dumps(verdict.to_json()),
        )
        self._execute(
            "DELETE FROM verdicts WHERE place <= (SELECT max(place) FROM verdicts) - ?",
            self._entries,
        )

    def _execute(self, command: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows that an SQL command gives; disable the cache if the command fails."""
        if self._disabled:
            return []
        try:
            return self._db.execute(command, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged file may hold any bytes
            self._disabled = True
            logging.getLogger(__name__).warning("verdicts are no longer cached: %s", error)
            return []


def _without_seconds(verdict: Verdict) -> Verdict:
    """Return the verdict with the seconds of its rewards set to 0: it was not computed again."""
    return replace(
        verdict,
        rewards={name: replace(part, seconds=0.0) for name, part in verdict.rewards.items()},
    )


def verdict_key(fingerprint: str, task: Task[Any], rollout: Rollout) -> str:
    """Return a digest of the content that a verdict depends on.

    The prompt is part of it, since data may change under the same environment fingerprint.
    """
    content = [fingerprint, asdict(task.key), task.draw, encode(task.prompt), encode(rollout)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
