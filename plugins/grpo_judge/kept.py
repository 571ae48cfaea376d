"""Judgements that were paid for, in a file."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from grpo_core import ConfigError


class Kept:
    """Judgements by name, as JSON, in one SQLite file that several processes may use. Errors are never put here."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS judgements (name TEXT PRIMARY KEY, judgement TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the judge's cache {path} cannot be used: {error}; name another file") from None

    def get(self, name: str) -> dict[str, Any] | None:
        row = self._file.execute("SELECT judgement FROM judgements WHERE name = ?", (name,)).fetchone()
        found: dict[str, Any] | None = json.loads(row[0]) if row else None
        return found

    def put(self, name: str, judgement: dict[str, Any]) -> None:
        self._file.execute("INSERT OR REPLACE INTO judgements VALUES (?, ?)", (name, json.dumps(judgement)))

    def close(self) -> None:
        self._file.close()
