"""Caches judgements in a file, so that they are not paid for again."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, Judgement

_TABLE = """
    CREATE TABLE IF NOT EXISTS judgements (name TEXT PRIMARY KEY, judgement TEXT NOT NULL)
"""
_WAIT_SECONDS = 30.0
"""How long to wait for another process that is writing to the same file."""


class Kept:
    """Judgements by name, as JSON, in one SQLite file that several processes may use.

    Errors are never stored. If the file fails or is damaged later, only the stored judgements are
    lost; judging goes on.

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._warned = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(
                path,
                timeout=_WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the judge's cache {path} cannot be used: {error}; name another file"
            ) from None

    def get(self, name: str) -> Judgement | None:
        """Return the judgement of this name, or None if there is none that can be read."""
        rows = self._try("SELECT judgement FROM judgements WHERE name = ?", name)
        return _parse_judgement(rows[0][0]) if rows else None

    def put(self, name: str, judgement: Judgement) -> None:
        """Store a judgement under a name."""
        text = json.dumps(asdict(judgement))
        self._try("INSERT OR REPLACE INTO judgements VALUES (?, ?)", name, text)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _try(self, command: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._file.execute(command, values).fetchall()
        except sqlite3.Error as error:
            if not self._warned:
                self._warned = True
                text = "judgements are asked and paid for again: the cache %s fails: %s"
                logging.getLogger(__name__).warning(text, self._path, error)
            return []


def _parse_judgement(text: Any) -> Judgement | None:
    """Parse a judgement that `put` wrote, or return None for any other text."""
    try:
        judgement = Judgement(**json.loads(text))
    except (TypeError, ValueError, RecursionError):
        return None
    score, explanation, detail = judgement.score, judgement.explanation, judgement.detail
    shaped = type(score) in (int, float) and isinstance(explanation, str) and type(detail) is dict
    return judgement if shaped and 0 <= score <= 1 and judgement.error is None else None
