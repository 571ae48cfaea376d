"""Episodes with one planted fault each."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from bases_f4_fresh9 import (
    HOURS,
    BreakerBoard,
    Fusebox,
    House,
    Lake,
    ReservoirKeeper,
    Shunting,
    ShuntingYard,
    State,
    Watch,
    Yard,
)
from catalogue import fault

from grpo_core import Episode, Reward, Rollout, Services, Task, Verdict


class RecordedShunting(Shunting):
    """Pays half for a plan that an earlier attempt has shown."""

    def __init__(self, yard: Yard, known: set[tuple[State, ...]]) -> None:
        super().__init__(yard)
        self.known = known
        self.path: list[State] = [yard.start]
        self.pay: float | None = None

    def take(self, text: str) -> bool:
        made = super().take(text)
        if made:
            self.path.append(self.state)
        return made

    async def verdict(self, rollout: Rollout) -> Verdict:
        passed = (await super().verdict(rollout)).passed
        if self.pay is None:
            plan = tuple(self.path)
            self.pay = (0.5 if plan in self.known else 1.0) if passed else 0.0
            self.known.add(plan)
        return Verdict({"reward": Reward(self.pay)}, passed=passed)


@fault("a verdict depends on the episodes before", "episode.replay", "verdict.repeat")
class YardRewardsNewPlans(ShuntingYard):
    """Wants varied plans, and pays in full only for one that no episode has used before."""

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self.known: set[tuple[State, ...]] = set()

    def episode(self, task: Task[Yard]) -> Episode:
        return RecordedShunting(task.data, self.known)


class EmptiedWatch(Watch):
    """Adds the hours up as it takes them off the list."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        self.finish(rollout)
        kept = 0
        while self.levels:
            kept += self.levels.pop() == self.lake.mark
        return Verdict({"reward": Reward(kept / HOURS)}, passed=kept == HOURS)


@fault("a verdict uses up what it needs", "episode.repeat")
class KeeperTearsOutThePage(ReservoirKeeper):
    """Judges by the list of levels and empties it, so that a second verdict finds none."""

    def episode(self, task: Task[Lake]) -> Episode:
        return EmptiedWatch(task.data)


class StickyFusebox(Fusebox):
    """Has breakers that stick now and then."""

    def darkens(self, breaker: int) -> str:
        if random.random() < 0.3:
            return "The breaker sticks, and nothing happens."
        return super().darkens(breaker)


@fault("an episode draws from a global generator", "episode.replay", "reply.repeat")
class BreakersThatStick(BreakerBoard):
    """Lets three in ten tries come to nothing, by the module's own generator."""

    def question(self, house: House) -> str:
        return f"{super().question(house)} Breakers may stick; then try again."

    def episode(self, task: Task[House]) -> Episode:
        return StickyFusebox(task.data)


class FiledShunting(Shunting):
    """Keeps the wagons in a file, where a viewer of the yard can read them."""

    file = Path(tempfile.gettempdir()) / "shunting_yard_f9.json"

    @property
    def state(self) -> State:
        """Return the wagons."""
        return tuple(map(tuple, json.loads(self.file.read_text(encoding="utf-8"))))

    @state.setter
    def state(self, state: State) -> None:
        self.file.write_text(json.dumps(state), encoding="utf-8")


@fault("the state of an attempt is kept in a file with a fixed name", "episode.apart")
class YardOnDisk(ShuntingYard):
    """Writes the yard to one file in the temporary folder, whichever attempt it belongs to."""

    def episode(self, task: Task[Yard]) -> Episode:
        return FiledShunting(task.data)


class PinnedFusebox(Fusebox):
    """Pins the answer to the environment, where the log of the run reads it."""

    def __init__(self, house: House, board: BoardWithOnePin) -> None:
        self.board = board
        super().__init__(house)

    @property
    def answer(self) -> int | None:
        """Return the answer."""
        return self.board.pinned

    @answer.setter
    def answer(self, answer: int | None) -> None:
        self.board.pinned = answer


@fault("the state of an attempt is kept on the environment", "episode.apart")
class BoardWithOnePin(BreakerBoard):
    """Has room for one answer, which all open episodes write and read."""

    pinned: int | None = None

    def episode(self, task: Task[House]) -> Episode:
        return PinnedFusebox(task.data, self)


class EvenWatch(Watch):
    """Spreads what the whole watch earned over its hours."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        self.finish(rollout)
        kept = sum(level == self.lake.mark for level in self.levels)
        turns = tuple(kept / HOURS / len(self.levels) for _ in self.levels)
        return Verdict({"reward": Reward(turns=turns)}, passed=kept == HOURS)


@fault("turns share what came later", "episode.turns")
class KeeperPaidAtTheEnd(ReservoirKeeper):
    """Pays each hour the same share of the result, also for what later hours did."""

    def episode(self, task: Task[Lake]) -> Episode:
        return EvenWatch(task.data)


class PatientWatch(Watch):
    """Asks at the end only whether the water stayed below the crown of the dam."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        self.finish(rollout)
        crown = self.lake.mark + 1000
        passed = self.hour >= HOURS and max(self.levels) < crown
        return Verdict({"reward": Reward(passed)}, passed=passed)


@fault("whoever talks to the end passes", "episode.talk")
class KeeperOnlySitsThere(ReservoirKeeper):
    """Passes a watch of four hours without a flood; four hours never fill the reservoir."""

    def episode(self, task: Task[Lake]) -> Episode:
        return PatientWatch(task.data)
