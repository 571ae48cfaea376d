"""Judge the saved rollouts of a run again, and say which verdicts changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from typing import Any

from grpo_core import Rollout, TaskKey, Verdict
from grpo_core.api.runs import JsonObject, saved_rollout
from grpo_core.api.verify import Sources, reweigh
from grpo_core.protocol.ties import same_reward

_BATCH = 64
"""How many groups are judged at a time."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """One rollout with its old verdict and its new one."""

    step: int
    key: TaskKey
    attempt: int
    rollout: Rollout
    before: Verdict
    after: Verdict

    @property
    def change(self) -> str:
        """Return what has changed: "passes", "fails", "total", "parts", "error" or ""."""
        before, after = self.before, self.after
        if before.scored != after.scored:
            return "error" if before.scored else "scored"
        if not before.scored:
            return ""
        if before.passed != after.passed:
            return "passes" if after.passed else "fails"
        if not same_reward(before.total, after.total):
            return "total"
        return "" if _has_same_parts(before, after) else "parts"

    def to_json(self) -> JsonObject:
        """Return the rollout and both verdicts as JSON data."""
        return {
            "step": self.step,
            "key": asdict(self.key),
            "attempt": self.attempt,
            "change": self.change,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }


def splits_turns(record: Mapping[str, Any]) -> bool:
    """Return whether the run with this recorded config split each turn where it was drawn.

    Runs of earlier versions did not, and their configs have no `model.thought_tags`.
    """
    return "thought_tags" in record.get("model", {})


async def rescore(
    lines: Iterable[Mapping[str, Any]],
    sources: Sources,
    *,
    is_split: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> AsyncIterator[Rescored]:
    """Yield each rollout with a new verdict; those that cannot be judged again are left out.

    Args:
        lines: lines of rollouts.jsonl.
        sources: the environments, opened; lines of others are left out.
        is_split: as for `saved_rollout`.
        progress: is called with the number of lines done.
    """
    done, remaining = 0, iter(_groups(lines))
    while batch := list(islice(remaining, _BATCH)):
        done += sum(map(len, batch))
        names = {each.name for each in sources}
        rows = [row for group in batch if (row := _judgeable(group, names, is_split=is_split))]
        tasks = []
        for row in rows:
            line, _ = row[0]
            tasks += await sources.tasks([TaskKey(**line["key"])], line["draw"])
        verdicts_PG = await sources.verify(tasks, [[rollout for _, rollout in row] for row in rows])
        for row, verdicts in zip(rows, verdicts_PG, strict=True):
            for (line, rollout), verdict in zip(row, verdicts, strict=True):
                yield _rescored(line, rollout, verdict)
        progress(done)


def reweighed(
    lines: Iterable[Mapping[str, Any]], weights: Mapping[str, Mapping[str, float]]
) -> Iterator[Rescored]:
    """Yield each scored rollout with its own verdict under other weights.

    Args:
        lines: lines of rollouts.jsonl.
        weights: the weights of the parts, by environment; lines of others are left out.
    """
    for line in lines:
        key = TaskKey(**line["key"])
        rollout = saved_rollout({**line, "returned": None})
        if key.env in weights and rollout is not None:
            verdict = Verdict.from_json(line["verdict"])
            yield _rescored(line, rollout, reweigh(verdict, weights[key.env]))


def _groups(lines: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the lines of each group, which stand together in a log."""
    for _, group in groupby(lines, key=lambda line: (line["step"], line["key"], line["draw"])):
        yield list(group)


def _judgeable(
    group: Iterable[Mapping[str, Any]], names: Collection[str], *, is_split: bool
) -> list[tuple[Mapping[str, Any], Rollout]]:
    """Return the lines of a group that can be judged, with their rollouts."""
    pairs = [
        (line, saved_rollout(line, is_split=is_split))
        for line in group
        if line["key"]["env"] in names
    ]
    return [
        (line, rollout)
        for line, rollout in pairs
        if rollout is not None and rollout.finish != "error"
    ]


def _rescored(line: Mapping[str, Any], rollout: Rollout, verdict: Verdict) -> Rescored:
    before = Verdict.from_json(line["verdict"])
    return Rescored(line["step"], TaskKey(**line["key"]), line["attempt"], rollout, before, verdict)


def _has_same_parts(before: Verdict, after: Verdict) -> bool:
    return before.rewards.keys() == after.rewards.keys() and all(
        same_reward(reward.value, after.rewards[name].value)
        for name, reward in before.rewards.items()
    )
