"""Keep the file of the index of a run's rollouts in line with the log.

The table `files` says for each file of the log how much of it is indexed, with a checksum. A file
whose inode, size and time are as they were is trusted; of any other one the checksum is compared.
Positions count uncompressed bytes, so the index stays right when the run compresses a file.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_core import ConfigError
from grpo_core.api.runs import (
    READ_ERRORS,
    LineLog,
    Part,
    checksum,
    lines_from,
    parse_line,
    read,
    unreadable,
)
from grpo_report.indexes.index_place import prepare_index, remove_index
from grpo_report.indexes.indexing import Indexer, drop_from
from grpo_report.indexes.tables import TABLES, VERSION

Progress = Callable[[int, int], None]
"""Is told how many of how many bytes of the log are indexed."""

_CHUNK_BYTES = 8 << 20
"""Bytes of the log that are indexed in one transaction; a kill loses no more."""
_READ_TRIES = 3
_WAIT_SECONDS = 30.0
"""How long to wait for another process that extends the same index."""
_CACHE_KIB = 65_536
_OLDEST_SQLITE = (3, 34)
"""The first version whose text index finds parts of words."""


class IndexFile:
    """Hold the connection to the index of a log, in this user's cache or in a temporary file."""

    def __init__(self, log: LineLog) -> None:
        """Open the index, or make an empty one.

        Args:
            log: the log.

        Raises:
            ConfigError: SQLite is too old, or no index can be made.
        """
        self._log = log
        self._lock = threading.RLock()
        self._temporary: Path | None = None
        self._last: tuple[int, int, bytes] | None = None
        """The inode of the file that was read last, and the position and bytes of its last line."""
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigError(
                f"Python's SQLite is {sqlite3.sqlite_version}, and the index of rollouts needs "
                f"{'.'.join(map(str, _OLDEST_SQLITE))} or newer; take a newer Python"
            )
        prepared = prepare_index(log.path.parent)
        self._path = prepared or self._temporary_path()
        self._connection = self._open()

    def close(self) -> None:
        """Close the index, and delete it if it is temporary."""
        with self._lock:
            self._connection.close()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; a broken index is built again first."""
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.DatabaseError as error:
                if not _is_broken(error):
                    raise
                self._start_again(deletes=True)
                self.extend()
                return self._connection.execute(sql, values).fetchall()

    def extend(self, *, progress: Progress | None = None) -> int:
        """See `RolloutIndex.extend`."""
        with self._lock:
            try:
                return self._extend(progress)
            except sqlite3.DatabaseError as error:
                if not _is_lost(error):
                    raise self._unwritable(error) from None
                is_broken = _is_broken(error)
            self._start_again(deletes=is_broken)
            try:
                return self._extend(progress)
            except sqlite3.DatabaseError as error:
                raise self._unwritable(error) from None

    def _unwritable(self, error: sqlite3.Error) -> ConfigError:
        if _is_busy(error):
            return ConfigError(
                f"another process has been extending the index {self._path} for "
                f"{_WAIT_SECONDS:g} s; try again"
            )
        return ConfigError(
            f"the index {self._path} cannot be written: {error}; make room, or delete it"
        )

    def _open(self) -> sqlite3.Connection:
        """Return a connection to the index in the cache, or else to a temporary one."""
        if self._temporary is not None:
            return self._open_temporary()
        try:
            return _connect(self._path, _WAIT_SECONDS)
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                raise self._unwritable(error) from None
            return self._open_temporary()  # the cache cannot be written
        except sqlite3.DatabaseError:  # the file is no index, or that of another version
            remove_index(self._path)
        try:
            return _connect(self._path, _WAIT_SECONDS)
        except sqlite3.DatabaseError:
            return self._open_temporary()

    def _open_temporary(self) -> sqlite3.Connection:
        """Return a connection to a temporary index."""
        if self._temporary is None:
            self._path = self._temporary_path()
        try:
            return _connect(self._path, _WAIT_SECONDS)
        except sqlite3.DatabaseError:
            remove_index(self._path)
        try:
            return _connect(self._path, _WAIT_SECONDS)
        except sqlite3.DatabaseError as error:
            raise self._unwritable(error) from None

    def _temporary_path(self) -> Path:
        """Return the file of a temporary index, in a new folder."""
        self._temporary = Path(tempfile.mkdtemp(prefix="grpo-index-"))
        return self._temporary / "index.sqlite"

    def _start_again(self, *, deletes: bool) -> None:
        """Open the index again.

        Args:
            deletes: whether to begin an empty one. A file that another process has put in the place
                of this one is left as it is, since that process may go on with it.
        """
        self._connection.close()
        self._last = None
        if deletes:
            remove_index(self._path)
        self._connection = self._open()

    def _extend(self, progress: Progress | None) -> int:
        added, tries = 0, _READ_TRIES
        while True:
            try:
                parts = self._log.layout()
                with _transaction(self._connection):
                    position, chunk = self._add_chunk(parts)
            except READ_ERRORS as error:
                tries -= 1
                if tries:  # the run may have compressed a file since its layout was read
                    continue
                raise ConfigError(unreadable(self._log.path, error)) from None
            added += chunk
            if progress is not None:
                progress(position, parts[-1].end if parts else 0)
            if not chunk:
                return added

    def _add_chunk(self, parts: list[Part]) -> tuple[int, int]:
        """Index the next bytes of the log; return the position reached, and how many they were."""
        position = start = self._agreed(parts)
        (indexed,) = self._connection.execute(
            "SELECT ifnull(max(start + size), 0) FROM files"
        ).fetchone()
        if indexed > position:
            drop_from(self._connection, position)
        indexer = Indexer(self._connection)
        try:
            for part in parts:
                if part.start <= position < part.end and position - start < _CHUNK_BYTES:
                    position = self._add_part(
                        indexer,
                        part,
                        position,
                        until=start + _CHUNK_BYTES,
                        is_last=part is parts[-1],
                    )
            indexer.finish()
        except (ValueError, OverflowError, sqlite3.InterfaceError) as error:
            raise ConfigError(
                f"{self._log.path} has a damaged line behind byte {start:,} "
                f"({type(error).__name__}: {error}); remove the line, or name another run"
            ) from None
        return position, position - start

    def _agreed(self, parts: list[Part]) -> int:
        """Return the position up to which the index agrees with the log."""
        recorded = {
            row[0]: row[1:]
            for row in self._connection.execute(
                "SELECT start, name, stamp, size, checksum FROM files"
            )
        }
        position = 0
        for part in parts:
            if not part.size:  # it begins where the next one does
                continue
            if part.start not in recorded:
                break
            name, stamp, size, check = recorded[part.start]
            if (part.path.name, part.stamp) != (name, stamp):
                if part.size < size or not (
                    self._is_only_longer(part, size) or checksum(part, size) == check
                ):
                    return part.start
                self._connection.execute(
                    "UPDATE files SET name = ?, stamp = ? WHERE start = ?",
                    (part.path.name, part.stamp, part.start),
                )
            position = part.start + size
            if size < part.size:
                break
        return position

    def _is_only_longer(self, part: Part, size: int) -> bool:
        """Return whether this object has read the file before and its last line is still there."""
        if self._last is None or part.path.suffix == ".gz":
            return False
        inode, place, line = self._last
        end = part.start + size
        return (
            inode == part.inode
            and place + len(line) == end
            and read([part], place, len(line)) == line
        )

    def _add_part(
        self, indexer: Indexer, part: Part, position: int, *, until: int, is_last: bool
    ) -> int:
        """Index lines of a part; return the position after them."""
        row = self._connection.execute(
            "SELECT checksum FROM files WHERE start = ?", (part.start,)
        ).fetchone()
        check = 0 if row is None else row[0]
        for line in lines_from(part, position):
            # A line without a line feed may still be written, or was cut by a kill.
            if position + len(line) > part.end or (is_last and not line.endswith(b"\n")):
                break
            if line.endswith(b"\n"):
                self._add_line(indexer, part, line, position)
                self._last = (part.inode, position, line)
            check = zlib.crc32(line, check)
            position += len(line)
            if position >= until:
                break
        self._connection.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)",
            (part.start, part.path.name, part.stamp, position - part.start, check),
        )
        return position

    def _add_line(self, indexer: Indexer, part: Part, line: bytes, position: int) -> None:
        try:
            if (value := parse_line(line)) is None:
                raise TypeError("it is not a JSON object")
            indexer.add(value, position, len(line))
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{part.path} has a damaged line {position - part.start:,} bytes from its start "
                f"({type(error).__name__}: {error}); remove the line, or name another run"
            ) from None


def _connect(path: Path, wait_seconds: float) -> sqlite3.Connection:
    """Open an index of this version, or make an empty one.

    Raises:
        sqlite3.OperationalError: the file cannot be opened or written.
        sqlite3.DatabaseError: it is no index of this version.
    """
    connection = sqlite3.connect(
        path, timeout=wait_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        # The index can be built again, so it need not survive a power failure.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        with _transaction(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in TABLES.split(";"):
                    connection.execute(statement)
            elif version != VERSION:
                raise sqlite3.DatabaseError("another version wrote it")
            # A file that cannot be written may be opened, and lets a transaction begin.
            connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block writes, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")  # fails if another process is reading for too long
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back after some errors
            connection.execute("ROLLBACK")
        raise


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _is_broken(error: sqlite3.Error) -> bool:
    """Return whether the content of the file is not that of an index."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _is_lost(error: sqlite3.Error) -> bool:
    """Return whether the file is broken, or no longer the one that was opened."""
    moved = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED
    return moved or _is_broken(error)
