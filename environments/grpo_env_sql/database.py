"""Run queries that nobody trusts on databases in memory.

A query can only read: SQLite's own authorizer refuses everything else, and limits of SQLite bound
its work and its memory. So no query needs a sandbox, and every one of them ends soon.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import thread_time

from grpo_core.extract import same_number

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, kind TEXT, price INTEGER);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer_id INTEGER, product_id INTEGER, amount INTEGER, month INTEGER
);
"""
MAX_ROWS = 1000
"""The most rows of a result; a query with more is refused."""
MAX_QUERY_CHARS = 2000
_MAX_STEPS = 2_000_000
"""The most instructions of SQLite's virtual machine that a query may take: below half a second."""
_STEPS_BETWEEN_LOOKS = 1000
_MAX_CPU_SECONDS = 1.0
"""The most processor time of a query; a function of SQL is one instruction, however long it takes.
"""
_MAX_VALUE_BYTES = 2000
"""The most bytes of a value, and of a row that is sorted.

It is small because nothing interrupts one instruction, and searching takes the square of a length.
"""
_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
"""What a query may do."""
_REFUSED_FUNCTIONS = """
    load_extension random randomblob date time datetime julianday unixepoch strftime timediff
    current_date current_time current_timestamp
"""
"""Functions that load code, or whose value is another one each time."""
_TOLERANCE = 1e-6
"""The difference of equal numbers, as a share of the right one or, below 1, as a distance."""
Value = int | float | str | bytes | None
Row = tuple[Value, ...]


class QueryError(Exception):
    """A query cannot be run, or exceeds a limit; the message says why."""


@dataclass(frozen=True, slots=True)
class Shop:
    """Holds the rows of a database."""

    customers: tuple[tuple[int, str, str, int], ...]
    """Id, name, city and age."""
    products: tuple[tuple[int, str, str, int], ...]
    """Id, name, kind and price."""
    orders: tuple[tuple[int, int, int, int, int], ...]
    """Id, customer, product, amount and month."""


def run_query(shop: Shop, query: str) -> list[Row]:
    """Return the rows of a query that only reads.

    Raises:
        QueryError: it is not one SELECT, it fails, or it exceeds a limit.
    """
    if len(query) > MAX_QUERY_CHARS:
        raise QueryError(f"the query is longer than {MAX_QUERY_CHARS} characters")
    with _open(shop) as connection:
        return _rows(connection, query)


def run_queries(shop: Shop, queries: Sequence[str]) -> list[list[Row] | None]:
    """Return the rows of each query, None for one that fails; for queries of this package's own."""
    results = list[list[Row] | None]()
    with _open(shop) as connection:
        for query in queries:
            try:
                results.append(_rows(connection, query))
            except QueryError:
                results.append(None)
    return results


def _rows(connection: sqlite3.Connection, query: str) -> list[Row]:
    """Return the rows of a query; see `run_query`."""
    try:
        cursor = connection.execute(query)
        rows: list[Row] = cursor.fetchmany(MAX_ROWS + 1)
    # A text that SQLite cannot read raises ValueError or UnicodeError: NUL, half a surrogate.
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        raise QueryError(_message(error)) from None
    except MemoryError:
        raise QueryError("the query needs too much memory") from None
    if cursor.description is None:
        raise QueryError("the query returns no rows; write one SELECT")
    if len(rows) > MAX_ROWS:
        raise QueryError(f"the query returns more than {MAX_ROWS} rows")
    return rows


def same_rows(rows: Sequence[Row], expected: Sequence[Row], *, ordered: bool) -> bool:
    """Return whether two results are equal, as lists or as multisets of rows.

    Numbers are equal if they differ by at most 1e-6 relative to the right one, so that 2 equals 2.0
    and the order of a sum does not matter; everything else must be the same. Infinity, which a
    query writes as 9e999, equals nothing.
    """
    if len(rows) != len(expected):
        return False
    if not ordered:
        rows, expected = sorted(rows, key=_sort_key), sorted(expected, key=_sort_key)
    return all(map(_same_row, rows, expected))


@contextlib.contextmanager
def _open(shop: Shop) -> Iterator[sqlite3.Connection]:
    """Open a database in memory with the rows of a shop, closed to everything but reading."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(SCHEMA)
        for table in ("customers", "products", "orders"):
            rows: tuple[Row, ...] = getattr(shop, table)
            if rows:
                places = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
        connection.commit()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(_authorize)
        looks, end = (
            iter(range(_MAX_STEPS // _STEPS_BETWEEN_LOOKS)),
            thread_time() + _MAX_CPU_SECONDS,
        )
        connection.set_progress_handler(
            lambda: next(looks, None) is None or thread_time() > end, _STEPS_BETWEEN_LOOKS
        )
        yield connection
    finally:
        connection.close()


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Return whether SQLite may do what a query asks for."""
    refused = action == sqlite3.SQLITE_FUNCTION and second in _REFUSED_FUNCTIONS.split()
    return sqlite3.SQLITE_OK if action in _READING and not refused else sqlite3.SQLITE_DENY


def _message(error: Exception) -> str:
    text = str(error)
    if text == "interrupted":
        return "the query takes too long"
    if text == "not authorized" or "prohibited" in text:
        return "the query may only read the tables: write one SELECT"
    return f"{text:.200}"


def _sort_key(row: Row) -> list[tuple[str, float, str]]:
    """Return a key that puts rows in an order which small differences of numbers do not change."""
    return [
        ("number", round(value, 4), "")
        if isinstance(value, int | float)
        else (type(value).__name__, 0.0, str(value))
        for value in row
    ]


def _same_row(row: Row, expected: Row) -> bool:
    return len(row) == len(expected) and all(map(_same_value, row, expected))


def _same_value(value: Value, expected: Value) -> bool:
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return same_number(value, expected, relative=_TOLERANCE, absolute=_TOLERANCE)
    return type(value) is type(expected) and value == expected
