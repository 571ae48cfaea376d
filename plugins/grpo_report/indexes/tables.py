"""Define the tables of the index of a run's rollouts, and turn filters into SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_core import ConfigError
from grpo_core.protocol.ties import TOLERANCE
from grpo_report.indexes.rows import Filter, Order, Range

VERSION = 1
"""Raised whenever the tables change: an index of another version is built again."""

SHORTEST_TEXT, LONGEST_TEXT = 3, 1_000
"""Characters of the shortest text that can be searched for, as the index holds groups of three, and
of the longest."""
_LONGEST_NEEDED = 64
"""How many groups of three the index is asked for; the rest of the text is compared directly."""

TABLES = f"""
CREATE TABLE files (
    start INTEGER PRIMARY KEY, name TEXT, stamp TEXT, size INTEGER, checksum INTEGER
);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, step INTEGER, split TEXT, number INTEGER,
    environment TEXT, task INTEGER, seed TEXT, level REAL, draw TEXT,
    place INTEGER, bytes INTEGER,
    updated_place INTEGER, updated_bytes INTEGER,
    rollouts INTEGER DEFAULT 0, scored INTEGER DEFAULT 0, passed INTEGER DEFAULT 0,
    truncated INTEGER DEFAULT 0, duplicates INTEGER DEFAULT 0, errors INTEGER DEFAULT 0,
    reward_mean REAL, reward_low REAL, reward_high REAL,
    tokens_mean REAL DEFAULT 0, dead INTEGER DEFAULT 0
);
CREATE INDEX groups_by_number ON groups (step, split, number);
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, group_id INTEGER, attempt INTEGER,
    reward REAL, passed INTEGER, advantage REAL, signal INTEGER, tokens INTEGER, finish TEXT,
    duplicate INTEGER DEFAULT 0, digest BLOB, answer TEXT, error TEXT, parts TEXT,
    place INTEGER, bytes INTEGER
);
CREATE INDEX rollouts_by_group ON rollouts (group_id, answer, reward);
CREATE VIRTUAL TABLE prompts USING fts5(text, tokenize='trigram', detail=none, columnsize=0);
CREATE VIRTUAL TABLE completions USING fts5(text, tokenize='trigram', detail=none, columnsize=0);
PRAGMA user_version = {VERSION};
"""

FIND_DUPLICATES = """
UPDATE rollouts SET duplicate = EXISTS (
    SELECT 1 FROM rollouts AS earlier WHERE earlier.group_id = rollouts.group_id
    AND earlier.digest = rollouts.digest AND earlier.id < rollouts.id
) WHERE group_id >= ?
"""

SUM_UP_GROUPS = """
UPDATE groups SET (
    rollouts, scored, passed, truncated, duplicates, errors,
    reward_mean, reward_low, reward_high, tokens_mean, dead
) = (
    SELECT count(*), count(reward), total(passed), total(finish = 'length'), total(duplicate),
    count(error), avg(reward), min(reward), max(reward), ifnull(avg(tokens), 0),
    count(advantage) > 0 AND total(signal) = 0
    FROM rollouts WHERE group_id = groups.id
) WHERE id >= ?
"""

GROUP_COLUMNS = """g.id, g.step, g.split, g.number, g.environment, g.task, g.seed, g.level, g.draw,
g.rollouts, g.scored, g.passed, g.truncated, g.duplicates, g.errors, g.reward_mean, g.reward_low,
g.reward_high, g.tokens_mean, g.dead"""

ROLLOUT_COLUMNS = """r.id, r.group_id, r.attempt, g.step, g.split, g.environment, g.task, r.reward,
r.passed, r.advantage, r.tokens, r.finish, r.duplicate, r.answer, r.error, r.parts"""

ROLLOUTS = "rollouts AS r CROSS JOIN groups AS g ON g.id = r.group_id"
"""Reads the rollouts in their order: a cross join keeps SQLite from beginning with the groups."""

GROUP_ORDERS: dict[Order, str] = {
    "log": "g.id",
    "reward": "g.reward_mean",
    "tokens": "g.tokens_mean",
    "spread": "g.reward_high - g.reward_low",
}
ROLLOUT_ORDERS: dict[Order, str] = {
    "log": "r.id",
    "reward": "r.reward",
    "tokens": "r.tokens",
    "spread": "r.advantage",
}

DISAGREEMENTS = f"""
SELECT g.id, g.step, g.environment, r.answer, min(r.reward), max(r.reward), count(*)
FROM groups AS g JOIN rollouts AS r ON g.id = r.group_id
WHERE g.reward_high > g.reward_low AND r.answer IS NOT NULL AND r.reward IS NOT NULL
GROUP BY g.id, r.answer HAVING max(r.reward) - min(r.reward)
    > {TOLERANCE} * max(1, abs(min(r.reward)), abs(max(r.reward)))
ORDER BY max(r.reward) - min(r.reward) DESC, g.id LIMIT ? OFFSET ?
"""

FLIPS = """
SELECT environment, split, task, seed, level, passed_step, step, passed_group, id FROM (
    SELECT *, lag(passed > 0) OVER task_steps AS passed_before,
    lag(step) OVER task_steps AS passed_step, lag(id) OVER task_steps AS passed_group
    FROM groups WHERE scored > 0 AND split = ifnull(?, split)
    WINDOW task_steps AS (PARTITION BY environment, split, task, seed, level ORDER BY step, id)
) WHERE passed_before AND NOT passed ORDER BY id LIMIT ? OFFSET ?
"""

Condition = tuple[str, list[Any]]
"""A condition in SQL with the values of its parameters."""


def group_conditions(where: Filter) -> list[Condition]:
    """Return the conditions that a whole group meets or not."""
    conditions = list(_between("g.step", where.steps))
    for column, value in (
        ("g.split", where.split),
        ("g.environment", where.environment),
        ("g.task", where.task),
    ):
        if value is not None:
            conditions.append((f"{column} = ?", [value]))
    return conditions


def rollout_conditions(where: Filter, *, row_by_row: bool = False) -> list[Condition]:
    """Return the conditions that a rollout meets or not.

    Args:
        where: the filter.
        row_by_row: whether texts are looked at while rows are read, so that a page ends with its
            last row; else all that fit are collected first, which is faster for a count.

    Raises:
        ConfigError: the text is too short or too long to be searched for.
    """
    conditions = [*_between("r.reward", where.reward), *_between("r.tokens", where.tokens)]
    for name, values in where.parts.items():
        # A path of JSON could not name every part: SQLite knows no escaped quotes in it.
        part = "(SELECT value FROM json_each(r.parts) WHERE key = ?)"
        for condition, bounds in _between(part, values):
            conditions.append((condition, [name, *bounds]))
    for condition, value in (
        ("r.passed", where.passed),
        ("r.finish = 'length'", where.truncated),
        ("r.duplicate", where.duplicate),
        ("r.error IS NOT NULL", where.error),
    ):
        if value is not None:
            conditions.append((f"({condition}) = ?", [int(value)]))
    if where.text:
        conditions.append(_contains(where.text, row_by_row=row_by_row))
    return conditions


def _between(column: str, values: Range) -> Iterator[Condition]:
    if values.low is not None:
        yield f"{column} >= ?", [values.low]
    if values.high is not None:
        yield f"{column} <= ?", [values.high]


def _contains(text: str, *, row_by_row: bool) -> Condition:
    """Return the condition that the completion or the prompt contains a text."""
    if not SHORTEST_TEXT <= len(text) <= LONGEST_TEXT:
        raise ConfigError(
            f"the text to search for has {len(text)} characters; give {SHORTEST_TEXT} to "
            f"{LONGEST_TEXT}"
        )
    # The index says which texts have all groups of three characters, and LIKE which of these
    # have them one after another.
    groups = dict.fromkeys(text[i : i + 3] for i in range(len(text) - 2)[:_LONGEST_NEEDED])
    needed = " AND ".join('"{}"'.format(group.replace('"', '""')) for group in groups)
    escaped = "".join(f"\\{char}" if char in "\\%_" else char for char in text)
    values = [needed, f"%{escaped}%"]
    # The tables NAME_content, in which FTS5 keeps the texts, are read faster than the virtual ones.
    if row_by_row:  # the plus keeps SQLite from reading the rows in the order of the inner query
        chosen = (
            "(+{1} IN (SELECT rowid FROM {0} WHERE {0} MATCH ?) "
            "AND (SELECT c0 LIKE ? ESCAPE '\\' FROM {0}_content WHERE id = {1}))"
        )
    else:
        chosen = (
            "{1} IN (SELECT id FROM {0}_content WHERE c0 LIKE ? ESCAPE '\\' "
            "AND id IN (SELECT rowid FROM {0} WHERE {0} MATCH ?))"
        )
        values.reverse()
    in_completion = chosen.format("completions", "r.id")
    in_prompt = chosen.format("prompts", "r.group_id")
    return f"({in_completion} OR {in_prompt})", [*values, *values]


def joined(conditions: list[Condition]) -> Condition:
    """Return the condition that all conditions are met."""
    return (
        " AND ".join(text for text, _ in conditions) or "1",
        [value for _, values in conditions for value in values],
    )
