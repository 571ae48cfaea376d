"""Put the lines of a run's rollouts into the tables of their index."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from grpo_core.api.runs import JsonObject, finite, is_attempt, is_task
from grpo_report.indexes.tables import FIND_DUPLICATES, SUM_UP_GROUPS

_LONGEST_ERROR = 1_000
"""The most characters of an error in the index; the log has it whole."""
_BATCH = 1_000
_LONGEST_TEXT = 2_000_000
"""The characters of a prompt or a completion that can be searched; of a longer one, the first."""


class Indexer:
    """Adds lines of the log, in their order, within one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        row = connection.execute(
            "SELECT g.id, g.step, g.split, g.number, g.environment, g.task, g.seed, g.level, "
            "g.draw, g.bytes IS NOT NULL, (SELECT max(attempt) FROM rollouts WHERE group_id = g.id)"
            " FROM groups AS g ORDER BY g.id DESC LIMIT 1"
        ).fetchone()
        self._group: tuple[Any, ...] = () if row is None else tuple(row[:9])
        """The id and the columns up to `draw` of the last group."""
        self._has_line = bool(row and row[9])
        """Whether the last group has a line of its own."""
        self._last_attempt: int = -1 if row is None or row[10] is None else row[10]
        self._touched = self._group[0] if self._group else 1
        """The first group whose sums may have changed."""
        self._next_rollout = connection.execute(
            "SELECT ifnull(max(id), 0) + 1 FROM rollouts"
        ).fetchone()[0]
        self._rollouts: list[tuple[Any, ...]] = []
        self._texts: list[tuple[int, str]] = []

    def add(self, line: JsonObject, place: int, size: int) -> None:
        """Add a line.

        Args:
            line: the object.
            place: its position in the log.
            size: its bytes.

        Raises:
            KeyError, TypeError: it is no line of a log of rollouts.
        """
        if "attempt" in line:
            self._add_rollout(line, place, size)
        elif "prompt" in line:
            if not is_task(line):
                raise TypeError("it is not that of a group")
            self._open_group(line, line["group"], place, size)
            self._has_line = True
            text = text_of(line["prompt"])
            self._connection.execute(
                "INSERT INTO prompts (rowid, text) VALUES (?, ?)", (self._group[0], text)
            )
        elif "attempts" in line:
            self._connection.execute(
                "UPDATE groups SET updated_place = ?, updated_bytes = ? "
                "WHERE step = ? AND split = 'train' AND number = ?",
                (place, size, line["step"], line["group"]),
            )

    def finish(self) -> None:
        """Write what is pending, and sum up the groups that have changed."""
        self._flush()
        for statement in (FIND_DUPLICATES, SUM_UP_GROUPS):
            self._connection.execute(statement, (self._touched,))

    def _open_group(
        self, line: JsonObject, number: int, place: int | None, size: int | None
    ) -> None:
        key = line["key"]
        self._group = (
            (self._group[0] if self._group else 0) + 1,
            line["step"],
            text_of(key["split"]),
            number,
            *_identity(line),
        )
        self._last_attempt = -1
        self._connection.execute(
            "INSERT INTO groups (id, step, split, number, environment, task, seed, level, draw, "
            f"place, bytes) VALUES ({', '.join('?' * 11)})",
            (*self._group, place, size),
        )

    def _add_rollout(self, line: JsonObject, place: int, size: int) -> None:
        if not is_attempt(line):
            raise TypeError("it is not that of a rollout")
        if not self._belongs(line):
            number = line.get("group")
            if number is None:  # a folder of an older version
                same = self._group[1:3] == (line["step"], text_of(line["key"]["split"]))
                number = self._group[3] + 1 if same else 0
            self._open_group(line, number, None, None)
            self._has_line = False
        self._last_attempt = line["attempt"]
        verdict = line["verdict"] or {"total": None, "error": None, "rewards": {}}
        error, answer = verdict["error"], verdict.get("answer")
        advantage = line.get("advantage")
        by_turn: list[Any] = advantage if isinstance(advantage, list) else [advantage]
        text = text_of(line["messages"])
        parts = {name: part["value"] for name, part in verdict["rewards"].items()}
        self._rollouts.append(
            (
                self._next_rollout,
                self._group[0],
                line["attempt"],
                verdict["total"],
                int(bool(verdict.get("passed"))),
                None if advantage is None else fmean(by_turn or [0.0]),
                int(any(by_turn)),
                line["tokens"],
                text_of(line["finish"]),
                None if "texts_left_out" in line else _digest(text),
                None if answer is None else text_of(str(answer)),
                None if error is None else text_of(str(error))[:_LONGEST_ERROR],
                json.dumps(finite(parts)),
                place,
                size,
            )
        )
        self._texts.append((self._next_rollout, text))
        self._next_rollout += 1
        if len(self._rollouts) >= _BATCH:
            self._flush()

    def _belongs(self, line: JsonObject) -> bool:
        """Return whether a rollout belongs to the last group."""
        if not self._group or self._group[1:3] != (line["step"], text_of(line["key"]["split"])):
            return False
        if "group" in line:
            return bool(self._group[3] == line["group"])
        return self._group[4:] == _identity(line) and line["attempt"] > self._last_attempt

    def _flush(self) -> None:
        self._connection.executemany(
            "INSERT INTO rollouts (id, group_id, attempt, reward, passed, advantage, signal, "
            "tokens, finish, digest, answer, error, parts, place, bytes) "
            f"VALUES ({', '.join('?' * 15)})",
            self._rollouts,
        )
        self._connection.executemany(
            "INSERT INTO completions (rowid, text) VALUES (?, ?)", self._texts
        )
        self._rollouts, self._texts = [], []


def drop_from(connection: sqlite3.Connection, position: int) -> None:
    """Remove what the index has of the log from a position on."""
    connection.execute(
        "DELETE FROM completions WHERE rowid IN (SELECT id FROM rollouts WHERE place >= ?)",
        (position,),
    )
    connection.execute("DELETE FROM rollouts WHERE place >= ?", (position,))
    gone = (
        "SELECT id FROM groups WHERE place >= ? "
        "OR (place IS NULL AND id NOT IN (SELECT group_id FROM rollouts))"
    )
    connection.execute(f"DELETE FROM prompts WHERE rowid IN ({gone})", (position,))
    connection.execute(f"DELETE FROM groups WHERE id IN ({gone})", (position,))
    connection.execute(
        "UPDATE groups SET updated_place = NULL, updated_bytes = NULL WHERE updated_place >= ?",
        (position,),
    )
    connection.execute("DELETE FROM files WHERE start >= ?", (position,))


def text_of(messages: Any) -> str:
    """Return the text of a prompt or of the messages of a rollout, as it is searched.

    The thoughts are in it: attempts that differ only in them are not the same text.
    """
    if isinstance(messages, list):
        text = "\n".join(_written(message) for message in messages if isinstance(message, Mapping))
    else:
        text = messages or ""
    text = text[:_LONGEST_TEXT]
    # SQLite stores UTF-8, which has no lone surrogates, and its text functions end at a NUL.
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def _written(message: Mapping[str, Any]) -> str:
    """Return all that a message of a log says: thoughts, the texts around them, and content."""
    before, after = message.get("thought_marks", ("", ""))
    return f"{before}{message.get('thoughts', '')}{after}{message['content']}"


def _identity(line: JsonObject) -> tuple[Any, ...]:
    """Return what tells the tasks of a step apart: the columns from `environment` to `draw`."""
    key = line["key"]
    # Seeds may exceed the integers of SQLite.
    seed, draw = str(key["seed"]), str(line["draw"])
    return text_of(key["env"]), key["index"], seed, float(key["level"]), draw


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
