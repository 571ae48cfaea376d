"""Write runs as one file: everything of small runs, a sample of the rollouts of large ones."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_core import ConfigError
from grpo_core.api.runs import JsonObject, finite, write_whole
from grpo_report.html.compared import comparison
from grpo_report.html.forensics import forensics
from grpo_report.html.opened import OpenRun, place_of
from grpo_report.html.page import html_page, packed
from grpo_report.indexes.index import GroupRow, GroupTooLargeError, RolloutRow
from grpo_report.over_runs import grouped, means_json, read_result

MOST_BYTES = 19_000_000
"""Most bytes of the whole file, so that it stays below 20 MB."""
_GROUPS_SHARE = 0.75
"""Share of the bytes beside the charts that groups may take; rollouts' summaries get the rest."""
_CHUNK_CHARACTERS = 300_000
"""Most characters of JSON in a chunk, before compression."""
_SUMMARY_CHARACTERS = 40
"""What a rollout takes in the packed summary at most, about."""
_MOST_MISSES = 20
"""Chunks that did not fit before no other one is tried."""


@dataclass(slots=True)
class _Sample:
    """Hold the groups of a run that the file takes."""

    chunks: list[str] = field(default_factory=list)
    """Packed groups."""
    places: dict[int, int] = field(default_factory=dict)
    """The number of the chunk by the id of the group."""
    tokens: set[int] = field(default_factory=set)
    """The ids of the tokens that are logged."""


def single_file(runs: Sequence[OpenRun], *, most_bytes: int = MOST_BYTES) -> str:
    """Return the page of some runs with their data.

    Args:
        runs: the runs; each gets the same share of the bytes for its rollouts.
        most_bytes: how large the page may be, about.
    """
    data = page_data(runs, served=False)
    data["metrics"] = [run.metrics() for run in runs]
    data["comparisons"] = [comparison(runs, 0, second) for second in range(1, len(runs))]
    findings = [packed(forensics(run)) for run in runs]
    used = len(html_page(data)) + sum(map(len, findings))
    share = max(0, most_bytes - used) // len(runs)
    chunks: list[tuple[str, str]] = []
    for number, run in enumerate(runs):
        rows = run.index.groups(limit=-1)
        sample = _sample(run, _order(data["runs"][number], rows), share)
        kept = [row for row in rows if row.id in sample.places]
        data["runs"][number]["sample"] = _note(rows, kept)
        chunks += [(f"forensics-{number}", findings[number])]
        chunks += [(f"summary-{number}", packed(_summary(run, kept, sample)))]
        chunks += [(f"chunk-{number}-{place}", chunk) for place, chunk in enumerate(sample.chunks)]
        if (words := run.vocabulary) is not None:
            used_words = {token: words[token] for token in sample.tokens if token < len(words)}
            chunks += [(f"vocabulary-{number}", packed(used_words))]
    return html_page(data, chunks)


def page_data(runs: Sequence[OpenRun], *, served: bool) -> dict[str, Any]:
    """Return what every page begins with."""
    return {
        "served": served,
        "made": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "version": version("grpo-core"),
        "runs": [run.facts(number) for number, run in enumerate(runs)],
        "means": _means(runs),
    }


def _means(runs: Sequence[OpenRun]) -> list[JsonObject]:
    """Return the means of several runs over their seeds; none of one run, or of damaged ones."""
    if len(runs) < 2:
        return []
    try:
        groups = grouped([read_result(run.path) for run in runs])
    except ConfigError:  # the page of that run says what is wrong with it
        return []
    means: list[JsonObject] = finite(means_json([group for group in groups if group.scored]))
    return means


def write_single_file(path: Path, runs: Sequence[OpenRun]) -> int:
    """Write the page of some runs whole or not at all, and return its size in bytes.

    A link at the path is replaced: a stranger's run folder may hold one that leads anywhere.

    Raises:
        OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():  # such as /dev/null, which must stay what it is
        raise OSError(errno.EINVAL, "it is not a regular file")
    text = single_file(runs)
    write_whole(path, text)
    return len(text.encode())


def _order(facts: JsonObject, rows: Sequence[GroupRow]) -> list[GroupRow]:
    """Return the groups in the order in which they are taken: those of alarms, then by chance."""
    shown = {alarm["at"] for alarm in facts["alarms"]}
    others = [row for row in rows if place_of(row) not in shown]
    random.Random(0).shuffle(others)
    return [row for row in rows if place_of(row) in shown] + others


def _sample(run: OpenRun, rows: Sequence[GroupRow], most_bytes: int) -> _Sample:
    """Take as many groups as fit.

    A chunk that does not fit is left out, and the next ones are tried.
    """
    sample = _Sample()
    left = int(most_bytes * _GROUPS_SHARE)
    left_for_summary = most_bytes - left
    misses = 0
    for groups in _chunks(run, rows):
        text = packed(groups)
        summary = _SUMMARY_CHARACTERS * sum(len(group["rollouts"]) for group in groups)
        if len(text) > left or summary > left_for_summary:
            misses += 1
            if misses > _MOST_MISSES:
                break
            continue
        left -= len(text)
        left_for_summary -= summary
        sample.places |= dict.fromkeys((group["id"] for group in groups), len(sample.chunks))
        sample.chunks.append(text)
        sample.tokens |= _token_ids(groups)
    return sample


def _chunks(run: OpenRun, rows: Sequence[GroupRow]) -> Iterator[list[JsonObject]]:
    """Yield the groups in lists that are about as long as a chunk."""
    groups: list[JsonObject] = []
    characters = 0
    for row in rows:
        try:
            group = run.group_at(row.step, row.split, row.number)
        except GroupTooLargeError:
            continue
        if group is None:  # the run has gone back to a checkpoint since
            continue
        group |= {"id": row.id}  # what the sample knows it by, even if the index was made anew
        groups.append(group)
        characters += len(json.dumps(group))
        if characters >= _CHUNK_CHARACTERS:
            yield groups
            groups, characters = [], 0
    if groups:
        yield groups


def _token_ids(groups: Sequence[JsonObject]) -> set[int]:
    return {
        token
        for group in groups
        for rollout in group["rollouts"]
        for segment in rollout.get("policy_tokens") or ()
        if segment
        for token in segment["ids"]
    }


def _summary(run: OpenRun, kept: Sequence[GroupRow], sample: _Sample) -> JsonObject:
    """Return the rows of the kept groups, and of their rollouts what filters ask for."""
    numbers = {row.id: number for number, row in enumerate(kept)}
    return {
        "groups": [asdict(row) | {"chunk": sample.places[row.id]} for row in kept],
        "rollouts": [
            _summary_row(row, numbers[row.group])
            for row in run.index.rollouts(limit=-1)
            if row.group in numbers
        ],
    }


def _summary_row(row: RolloutRow, group: int) -> JsonObject:
    return {
        "group": group,
        "attempt": row.attempt,
        "reward": row.reward,
        "passed": row.passed,
        "tokens": row.tokens,
        "finish": row.finish,
        "duplicate": row.duplicate,
        "error": row.error is not None,
        "parts": row.parts,
    }


def _note(rows: Sequence[GroupRow], kept: Sequence[GroupRow]) -> str | None:
    """Say what the sample is, if it is not everything."""
    if len(kept) == len(rows):
        return None
    all_rollouts, rollouts = (sum(row.rollouts for row in some) for some in (rows, kept))
    return (
        f"This file holds a random sample: {len(kept):,} of {len(rows):,} groups "
        f"({rollouts:,} of {all_rollouts:,} rollouts), among them those of the alarms. Curves and "
        "forensics are of the whole run. `grpo watch` shows every group."
    )
