"""Store JSON values by name in one SQLite file, for caches that outlive a run."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from grpo_core.calls.deadline import describe
from grpo_core.protocol.errors import ConfigError

T = TypeVar("T")
_WAIT_SECONDS = 10.0
"""How long to wait for another process that is writing to the same file."""


class JsonStore:
    """Store JSON values by name, in memory or in a file that several processes may share.

    The caller does without what the store cannot give: a damaged row counts as absent, and if the
    file can no longer be read or written, that is logged and no longer tried.
    """

    def __init__(
        self, path: Path | None, *, item: str, alternative: str, entries: int | None = None
    ) -> None:
        """Open the store.

        Args:
            path: the file; None: in memory.
            item: what a value is, as one word, such as "verdict"; it names the table, too.
            alternative: what the user can do without the file, for the message.
            entries: number of values to store, approximately; the oldest are removed first.

        Raises:
            ConfigError: the file cannot be opened.
        """
        self._item, self._entries = item, entries
        self._failed_operations: set[str] = set()
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
            # values.
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(f"CREATE TABLE IF NOT EXISTS {item}s (name TEXT PRIMARY KEY, {item})")
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"the {item} cache {path} cannot be used: {error}; "
                f"delete the file, or {alternative}"
            ) from None

    def get(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Return the value with this name, or None if there is none.

        Args:
            name: its name.
            parse: makes it from its JSON value; it raises for what is damaged.
        """
        rows = self._try(f"SELECT {self._item} FROM {self._item}s WHERE name = ?", name)
        if not rows:
            return None
        try:
            return parse(json.loads(rows[0][0]))
        except Exception as error:  # noqa: BLE001 - a damaged row may hold anything
            logging.getLogger(__name__).warning(
                "a damaged row of the %s cache is not used: %s", self._item, describe(error)
            )
            return None

    def put(self, name: str, value: Any) -> None:
        """Store a JSON value under a name."""
        table = f"{self._item}s"
        self._try(
            f"INSERT OR REPLACE INTO {table} (name, {self._item}) VALUES (?, ?)",
            name,
            json.dumps(value),
        )
        if self._entries is not None:
            newest = f"SELECT max(rowid) FROM {table}"
            self._try(f"DELETE FROM {table} WHERE rowid <= ({newest}) - ?", self._entries)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _try(self, command: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows that an SQL command gives; no rows if it fails, or failed before."""
        operation = command.partition(" ")[0]
        if operation in self._failed_operations:
            return []
        try:
            return self._db.execute(command, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged file may hold any bytes
            if not self._failed_operations:
                logging.getLogger(__name__).warning(
                    "%ss are no longer cached: %s", self._item, error
                )
            self._failed_operations.add(operation)
            return []
