"""Faults by which tasks and verdicts depend on where and when they are made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from random import Random

from bases_d2_fresh8 import (
    ColumnOfDates,
    MassOfAMole,
    Pantry,
    PharmacyShelf,
    ShoppingForARecipe,
    Transfer,
    UploadLog,
)
from catalogue import fault

from grpo_core import Reward, Rollout, Task, TaskKey, Verdict


@fault("a prompt depends on the machine's name", "task.process")
class LogOfThisServer(UploadLog):
    """The lines of the log carry the name of the host, as the author's own log had it."""

    def host(self, log: Transfer) -> str:
        return os.uname().nodename.partition(".")[0]


@fault("a prompt depends on the process", "task.process", "task.pure")
class PantryFromASet(ShoppingForARecipe):
    """The ingredients of recipe and pantry are united in a set, and listed in its order."""

    def names(self, pantry: Pantry) -> Sequence[str]:
        return tuple(set(pantry.need) | set(pantry.have))


@fault("a task depends on an environment variable", "task.process")
class MolesByRank(MassOfAMole):
    """Each worker of a run takes its own share of the tasks, by the rank that the launcher set."""

    def task(self, key: TaskKey) -> Task[dict[str, int]]:
        rank, world = (int(os.environ.get(n, d)) for n, d in (("RANK", "0"), ("WORLD_SIZE", "1")))
        mine = replace(key, index=key.index * world + rank)
        return replace(super().task(mine), key=key)


@fault("a task depends on the date", "task.process", "task.pure")
class StockTakeOfToday(PharmacyShelf):
    """The stock is taken today, so that the dates look current."""

    def day(self, rng: Random) -> date:
        return date.today()


@fault("a verdict depends on hash() of a text", "verdict.process")
class SampledColumn(ColumnOfDates):
    """A sample of three rows decides the pay, drawn by the hash of the reply."""

    def verify(self, task: Task[tuple[date, ...]], rollout: Rollout) -> Verdict:
        marks = self.marks(task.data, rollout.text)
        sample = Random(hash(rollout.text)).sample(marks, 3)
        return Verdict(
            {"reward": Reward(sum(sample) / 3)}, passed=all(marks), answer=rollout.text[:100]
        )
