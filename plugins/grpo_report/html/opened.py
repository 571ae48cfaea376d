"""Open a run for the page: what it says about the run, and its groups as the page reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_core import ConfigError
from grpo_core.api.figures import Signal
from grpo_core.api.runs import (
    JsonObject,
    RunFolder,
    lines_of,
    open_to_read,
    read_document,
    unreadable,
)
from grpo_core.words import cut
from grpo_report.html.pictures import pictures_of
from grpo_report.html.query import PAGE_SIZE, Query
from grpo_report.html.series import chart_series
from grpo_report.indexes.index import Filter, GroupRow, Progress, Range, RolloutIndex

WARNING = "warning, step "
"""How an entry of log.txt begins that is a warning."""
FIRST_PROMPT = "the first prompt, as the model reads it"
"""How the line of log.txt begins that shows the first prompt."""

_WARNING_CHARACTERS = 1_000_000
"""The most characters of all warnings."""

_PROMPT_CHARACTERS = 4_000
"""The most characters of the line with the first prompt."""

_TRIES = 3
"""To read a group while the index changes."""


def place_of(row: GroupRow) -> str:
    """Return the name of a group in addresses of the page."""
    return f"{row.step}/{row.split}/{row.number}"


class OpenRun:
    """Give what the page shows of one run. It may be used by several threads."""

    def __init__(self, path: Path, *, name: str, progress: Progress | None = None) -> None:
        """Open the run, and index its rollouts.

        Args:
            path: the run folder, of any version.
            name: what the page calls the run.
            progress: is told how far the index is.

        Raises:
            ConfigError: the folder holds no run, or one of its files is damaged.
        """
        self.path = path
        self.name = name
        self.folder = RunFolder.open(path)
        self.config = self.folder.config()
        self.index = RolloutIndex.open(path, progress=progress)
        self._facts: dict[str, Any] | None = None
        """What `facts` returned last; to read it again takes a while in a large run."""

    def close(self) -> None:
        """Close the index."""
        self.index.close()

    @property
    def revision(self) -> str:
        """Return a text that changes when the run has written something new."""
        sizes = [
            path.stat().st_size if (path := self.path / name).is_file() else 0
            for name in ("metrics.jsonl", "alarms.jsonl", "log.txt")
        ]
        return f"{sizes} {self.index.facets().rollouts} {self.folder.finished}"

    def facts(self, number: int) -> dict[str, Any]:
        """Return what the page says about the run as a whole.

        Args:
            number: the place of the run among those of the page.
        """
        revision = self.revision
        if self._facts is None or self._facts["revision"] != revision:
            self._facts = self._read_facts(revision)
        return self._facts | {"id": number}

    def _read_facts(self, revision: str) -> dict[str, Any]:
        log_lines, warnings, first_prompt = self._log()
        signal = Signal()
        for line in self.folder.metric_lines():
            signal.add(line)
        return {
            "name": self.name,
            "finished": self.folder.finished,
            "planned": self.config.get("steps"),
            "signal": {"missing": signal.missing, "remark": signal.remark()},
            "config": self.config,
            "cards": self._cards(),
            "warnings": warnings,
            "first_prompt": first_prompt,
            "log_lines": log_lines,
            "alarms": self.alarms(),
            "facets": asdict(self.index.facets()),
            "scale": self._scale(),
            "revision": revision,
            "sample": None,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the columns for the charts."""
        return chart_series(self.folder.metric_lines(), self.index)

    def groups(self, query: Query) -> dict[str, Any]:
        """Return one page of the list of groups; how many match, `count` says."""
        rows = self.index.groups(
            query.where,
            order=query.order,
            descending=query.descending,
            offset=query.page * PAGE_SIZE,
            limit=PAGE_SIZE,
        )
        return {
            "page_size": PAGE_SIZE,
            "rows": [asdict(row) for row in rows],
        }

    def count(self, query: Query) -> dict[str, int]:
        """Return how many groups and rollouts match; of a frequent text that takes seconds."""
        return asdict(self.index.count(query.where))

    def read(self, step: int, split: str, number: int) -> JsonObject | None:
        """Return the group at a place as the log holds it, or None if there is none.

        A group is sought by its place, because its number in the index may become that of another
        group, or of none, when the run goes back to a checkpoint.
        """
        for _ in range(_TRIES):
            row = self.index.group(step, split, number)
            if row is None:
                return None
            try:
                data = self.index.read(row.id)
            except KeyError:  # the index has dropped it since
                continue
            if (data["step"], data["split"], data["number"]) == (step, split, number):
                return data
        return None

    def group_at(self, step: int, split: str, number: int) -> JsonObject | None:
        """Return the group at a place, with the pictures of its verdicts, or None."""
        data = self.read(step, split, number)
        for rollout in data["rollouts"] if data else ():
            detail = (rollout.get("verdict") or {}).get("detail") or {}
            if pictures := pictures_of(detail, self.path):
                rollout["pictures"] = pictures
        return data

    @cached_property
    def vocabulary(self) -> Sequence[str] | None:
        """The text of each token by its id; None if the run did not log tokens."""
        return self.folder.vocabulary()

    def alarms(self) -> list[JsonObject]:
        """Return the alarms of the run, each with the place of the group that shows it."""
        alarms = []
        for alarm in self.folder.alarm_lines():
            group = alarm.get("group")
            alarms.append(alarm | {"at": self._place(group) if group else None})
        return alarms

    def _place(self, group: Mapping[str, Any]) -> str | None:
        """Return the place of the group with a step, a key and a draw."""
        key, step = group["key"], group["step"]
        where = Filter(
            steps=Range(step, step),
            split=key["split"],
            environment=key["env"],
            task=key["index"],
        )
        for row in self.index.groups(where):
            if (row.seed, row.level, row.draw) == (key["seed"], key["level"], group["draw"]):
                return place_of(row)
        return None

    def _cards(self) -> dict[str, Any]:
        """Return the environments' descriptions; a run of an older version has none."""
        path = self.path / "cards.json"
        try:
            cards: dict[str, Any] = read_document(path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(unreadable(path, error)) from None
        return cards

    def _log(self) -> tuple[int, list[str], str]:
        """Return how many lines log.txt has, its warnings with the lines that belong to them, and
        the line with the first prompt; "" if there is none.

        Of very many or very long warnings the last ones are left out.
        """
        path = self.path / "log.txt"
        warnings: list[str] = []
        first_prompt = ""
        count, left, is_warning = 0, _WARNING_CHARACTERS, False
        try:
            with open_to_read(path) as file:
                for data in lines_of(file):
                    count += 1
                    line = data.rstrip(b"\r\n").decode(errors="replace")
                    if line.startswith(FIRST_PROMPT):
                        first_prompt = cut(line, _PROMPT_CHARACTERS)
                    begins = line.startswith(WARNING)
                    is_warning = begins or (is_warning and line.startswith("  "))
                    if not is_warning or (left := left - len(line)) < 0:
                        continue
                    if begins:
                        warnings.append(line.removeprefix("warning, "))
                    else:
                        warnings[-1] += f"\n{line.strip()}"
        except FileNotFoundError:
            return 0, [], ""
        except OSError as error:
            raise ConfigError(unreadable(path, error)) from None
        return count, warnings, first_prompt

    def _scale(self) -> dict[str, float] | None:
        """Return the lowest and the highest reward of the run, and at least 0 and 1: a bar over
        what was reached alone would show a run of small rewards as a good one.
        """
        ends = [
            rows[0].reward
            for descending in (False, True)
            if (
                rows := self.index.rollouts(
                    Filter(error=False), order="reward", descending=descending, limit=1
                )
            )
        ]
        if len(ends) < 2 or ends[0] is None or ends[1] is None:
            return None
        return {"low": min(0.0, ends[0]), "high": max(1.0, ends[1])}


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return a name for each run: that of its folder, or the whole path where names are alike."""
    names = [path.resolve().name for path in paths]
    return [
        name if names.count(name) == 1 else str(path)
        for name, path in zip(names, paths, strict=True)
    ]
