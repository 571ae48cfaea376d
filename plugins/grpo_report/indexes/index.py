"""Find the rollouts of a run without reading its log: filter, order, page and search.

The index is a SQLite file in the cache of this user that is derived from rollouts.jsonl and can be
deleted at any time. `RolloutIndex.extend` is the only way into it: it compares the index with the
files of the log, drops what no longer agrees (a resume has cut the log, a file was repaired), and
adds the lines that are new. The run calls it after steps, a viewer when it opens the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_core import ConfigError
from grpo_core.api.runs import READ_ERRORS, JsonObject, LineLog, parse_line, read, unreadable
from grpo_report.indexes.index_file import IndexFile, Progress
from grpo_report.indexes.rows import (
    ALL,
    Count,
    Disagreement,
    Facets,
    Filter,
    Flip,
    GroupRow,
    Order,
    Range,
    RolloutRow,
)
from grpo_report.indexes.tables import (
    DISAGREEMENTS,
    FLIPS,
    GROUP_COLUMNS,
    GROUP_ORDERS,
    ROLLOUT_COLUMNS,
    ROLLOUT_ORDERS,
    ROLLOUTS,
    Condition,
    group_conditions,
    joined,
    rollout_conditions,
)

__all__ = [
    "Count",
    "Disagreement",
    "Facets",
    "Filter",
    "Flip",
    "GroupRow",
    "GroupTooLargeError",
    "Order",
    "Progress",
    "Range",
    "RolloutIndex",
    "RolloutRow",
]


_MOST_GROUP_BYTES = 128 << 20
"""The most bytes of a group that is read: it is held in memory as a whole."""


class GroupTooLargeError(ConfigError):
    """A group is too large to be read as a whole."""


class RolloutIndex:
    """Give access to the groups and rollouts of a run; close it, or use it in a `with` block.

    It may be used by several threads; they wait for each other.
    """

    def __init__(self, file: IndexFile, log: LineLog) -> None:
        self._file = file
        self._log = log

    @classmethod
    def open(cls, run: Path, *, progress: Progress | None = None) -> RolloutIndex:
        """Return the index of a run, with everything that the log holds now.

        Where the cache cannot be written, the index goes to a temporary file.

        Args:
            run: the run folder.
            progress: is told how far the index is; the first time it reads the whole log.

        Raises:
            ConfigError: the log or the index cannot be read, a line is damaged, or another process
                has been extending the index for too long.
        """
        log = LineLog(run.absolute() / "rollouts.jsonl")
        index = cls(IndexFile(log), log)
        try:
            index.extend(progress=progress)
        except BaseException:
            index.close()
            raise
        return index

    def __enter__(self) -> RolloutIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index; a temporary one is deleted."""
        self._file.close()

    def extend(self, *, progress: Progress | None = None) -> int:
        """Bring the index in line with the log: drop what changed, add what is new.

        Args:
            progress: is told how far the index is.

        Returns:
            How many bytes of the log were indexed.

        Raises:
            ConfigError: the log cannot be read, a line is damaged, or the index cannot be written.
        """
        return self._file.extend(progress=progress)

    def facets(self) -> Facets:
        """Return what the filters can be set to."""
        low, high, groups, rollouts = self._file.rows(
            "SELECT min(step), max(step), count(*), total(rollouts) FROM groups"
        )[0]

        def names(sql: str, *values: str) -> tuple[str, ...]:
            return tuple(name for (name,) in self._file.rows(sql, values))

        environments = names("SELECT DISTINCT environment FROM groups ORDER BY 1")
        # Verdicts of an environment have the same parts always, so one of them tells all.
        parts = {
            part
            for environment in environments
            for part in names(
                "SELECT key FROM json_each((SELECT r.parts FROM groups AS g CROSS JOIN rollouts AS "
                "r ON r.group_id = g.id WHERE g.environment = ? AND r.error IS NULL LIMIT 1))",
                environment,
            )
        }
        return Facets(
            Range(low, high),
            names("SELECT DISTINCT split FROM groups ORDER BY 1"),
            environments,
            tuple(sorted(parts)),
            groups,
            int(rollouts),
        )

    def count(self, where: Filter = ALL) -> Count:
        """Return how many groups and rollouts a filter chooses."""
        conditions = rollout_conditions(where)
        if of_groups := group_conditions(where):
            condition, values = joined(of_groups)
            chosen = f"r.group_id IN (SELECT g.id FROM groups AS g WHERE {condition})"
            conditions.append((chosen, values))
        condition, values = joined(conditions)
        (row,) = self._file.rows(
            f"SELECT count(DISTINCT r.group_id), count(*) FROM rollouts AS r WHERE {condition}",
            values,
        )
        return Count(*row)

    def groups(
        self,
        where: Filter = ALL,
        *,
        order: Order = "log",
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> list[GroupRow]:
        """Return a page of the groups that have a rollout that the filter chooses."""
        conditions = group_conditions(where)
        if of_rollouts := rollout_conditions(where, row_by_row=True):
            condition, values = joined(of_rollouts)
            chosen = (
                f"EXISTS (SELECT 1 FROM rollouts AS r WHERE r.group_id = g.id AND {condition})"
                if where.text
                else f"g.id IN (SELECT r.group_id FROM rollouts AS r WHERE {condition})"
            )
            conditions.append((chosen, values))
        return [
            _group_row(row)
            for row in self._page(
                f"SELECT {GROUP_COLUMNS} FROM groups AS g",
                joined(conditions),
                f"{GROUP_ORDERS[order]} {'DESC' if descending else 'ASC'} NULLS LAST, g.id",
                offset,
                limit,
            )
        ]

    def rollouts(
        self,
        where: Filter = ALL,
        *,
        order: Order = "log",
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> list[RolloutRow]:
        """Return a page of the rollouts that the filter chooses."""
        return [
            _rollout_row(row)
            for row in self._page(
                f"SELECT {ROLLOUT_COLUMNS} FROM {ROLLOUTS}",
                joined([*group_conditions(where), *rollout_conditions(where, row_by_row=True)]),
                f"{ROLLOUT_ORDERS[order]} {'DESC' if descending else 'ASC'} NULLS LAST, r.id",
                offset,
                limit,
            )
        ]

    def group(self, step: int, split: str, number: int) -> GroupRow | None:
        """Return a group by its number in its step and split; None if there is none."""
        rows = self._file.rows(
            f"SELECT {GROUP_COLUMNS} FROM groups AS g "
            "WHERE g.step = ? AND g.split = ? AND g.number = ? ORDER BY g.id LIMIT 1",
            [step, split, number],
        )
        return _group_row(rows[0]) if rows else None

    def disagreements(self, *, offset: int = 0, limit: int = 100) -> list[Disagreement]:
        """Return the answers that got several rewards in one group, the widest apart first."""
        return [Disagreement(*row) for row in self._file.rows(DISAGREEMENTS, [limit, offset])]

    def flips(self, *, split: str | None = None, offset: int = 0, limit: int = 100) -> list[Flip]:
        """Return the tasks that passed at a step and failed at the next one that had them."""
        rows = self._file.rows(FLIPS, [split, limit, offset])
        return [Flip(*(*row[:3], int(row[3]), *row[4:])) for row in rows]

    def read(self, group: int) -> JsonObject:
        """Return a group as the log holds it.

        Args:
            group: `GroupRow.id`.

        Returns:
            Its `id`, `step`, `split`, `number`, `key`, `draw`, `prompt` (messages or text; None in
            a folder of an older version), `tools` and `rollouts`, with all their fields.

        Raises:
            KeyError: there is no such group.
            GroupTooLargeError: its lines are too long together.
            ConfigError: the log cannot be read.
        """
        try:
            return self._read(group)
        except (*READ_ERRORS, ValueError):
            # The log has changed since it was indexed: the run may have gone back to a checkpoint.
            self.extend()
        try:
            return self._read(group)
        except (*READ_ERRORS, ValueError) as error:
            raise ConfigError(unreadable(self._log.path, error)) from None

    def _read(self, group: int) -> JsonObject:
        rows = self._file.rows(
            "SELECT step, split, number, place, bytes, updated_place, updated_bytes "
            "FROM groups WHERE id = ?",
            [group],
        )
        places = self._file.rows(
            "SELECT place, bytes FROM rollouts WHERE group_id = ? ORDER BY id", [group]
        )
        if not rows or not places:  # another process may just have dropped them
            raise KeyError(group)
        step, split, number, place, size, updated_place, updated_size = rows[0]
        own_line = [] if place is None else [(place, size)]
        update_line = [] if updated_place is None else [(updated_place, updated_size)]
        total = sum(length for _, length in (*own_line, *places, *update_line))
        if total > _MOST_GROUP_BYTES:
            raise GroupTooLargeError(
                f"group {number} of step {step} has {total:,} bytes in {self._log.path}, and at "
                f"most {_MOST_GROUP_BYTES:,} are shown; read its lines from the log itself"
            )
        lines = self._lines([*own_line, *places])
        head = next(lines) if own_line else {}
        rollouts = list(lines)
        for update in self._lines(update_line):
            by_attempt = {line["attempt"]: line for line in update["attempts"]}
            rollouts = [line | by_attempt.get(line["attempt"], {}) for line in rollouts]
        first = head or rollouts[0]
        return {
            "id": group,
            "step": step,
            "split": split,
            "number": number,
            "key": first["key"],
            "draw": first["draw"],
            "prompt": head.get("prompt"),
            "tools": head.get("tools"),
            "rollouts": rollouts,
        }

    def _lines(self, places: list[tuple[int, int]]) -> Iterator[JsonObject]:
        """Yield the lines at these neighbouring places of the log, which are read at once."""
        if not places:
            return
        start, parts = places[0][0], self._log.layout()
        length = places[-1][0] + places[-1][1] - start
        # Much may lie between them if the log was not written by a run.
        block = read(parts, start, length) if length <= _MOST_GROUP_BYTES else None
        for place, size in places:
            offset = place - start
            data = block[offset : offset + size] if block else read(parts, place, size)
            line = parse_line(data)
            if line is None:
                raise ValueError("it holds no line where the index says so")
            yield line

    def _page(
        self, select: str, condition: Condition, order: str, offset: int, limit: int
    ) -> list[tuple[Any, ...]]:
        where, values = condition
        return self._file.rows(
            f"{select} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?", [*values, limit, offset]
        )


def _group_row(row: tuple[Any, ...]) -> GroupRow:
    """Return the row of `GROUP_COLUMNS` as what it is."""
    seed, draw, dead = int(row[6]), int(row[8]), bool(row[19])
    counts = map(int, row[9:15])
    return GroupRow(*(*row[:6], seed, row[7], draw, *counts, *row[15:19], dead))


def _rollout_row(row: tuple[Any, ...]) -> RolloutRow:
    """Return the row of `ROLLOUT_COLUMNS` as what it is."""
    passed, duplicate, parts = bool(row[8]), bool(row[12]), json.loads(row[15])
    return RolloutRow(*(*row[:8], passed, *row[9:12], duplicate, *row[13:15], parts))
