"""Honest episodes that look odd."""

from __future__ import annotations

from collections.abc import Sequence

from bases_f4_fresh9 import (
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
from catalogue import honest

from grpo_core import Episode, Message, Task


class LooseShunting(Shunting):
    """Asks for the wagons of each track in any order."""

    def done(self) -> bool:
        return list(map(sorted, self.state)) == list(map(sorted, self.yard.goal))


@honest(
    "Wagons may stand in any order on their track, as the prompt says, so many other states than "
    "the pictured one pass, and often a shorter plan than the reference."
)
class YardInAnyOrder(ShuntingYard):
    """Passes whenever each track has its wagons; at least four of five have to change tracks."""

    def wanted(self, start: State, goal: State) -> bool:
        homes = {wagon: i for i, track in enumerate(start) for wagon in track}
        return sum(homes[wagon] != i for i, track in enumerate(goal) for wagon in track) >= 4

    def question(self, yard: Yard) -> str:
        return f"{super().question(yard)} The order of wagons on a track does not matter."

    def episode(self, task: Task[Yard]) -> Episode:
        return LooseShunting(task.data)


class KeyedFusebox(Fusebox):
    """Has breakers that stick at some turns, by the key of the task."""

    def __init__(self, task: Task[House]) -> None:
        super().__init__(task.data)
        self.task = task

    def darkens(self, breaker: int) -> str:
        if self.task.key.rng("sticks", self.taken).random() < 0.3:
            return "The breaker sticks, and nothing happens."
        return super().darkens(breaker)


@honest(
    "The same breaker may stick at one turn and work at the next, which looks random, but the key "
    "of the task and the number of the turn decide it, so an episode can be replayed."
)
class BoardOfTheKey(BreakerBoard):
    """Lets about three in ten tries come to nothing, by the task's own generator."""

    def question(self, house: House) -> str:
        return f"{super().question(house)} Breakers may stick; then try again."

    def episode(self, task: Task[House]) -> Episode:
        return KeyedFusebox(task)


class StrictWatch(Watch):
    """Ends when the mark is missed."""

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        answer = await super().reply(messages)
        return None if self.level != self.lake.mark else answer


@honest(
    "The watch ends at the first hour that misses the mark, and the hours before it are paid: a "
    "turn's reward depends on nothing that comes later, and only four hours pass."
)
class KeeperRelieved(ReservoirKeeper):
    """Relieves the keeper after the first mistake; each hour before it earns a quarter."""

    def question(self, lake: Lake) -> str:
        return f"{super().question(lake)} The first miss ends your watch."

    def episode(self, task: Task[Lake]) -> Episode:
        return StrictWatch(task.data)
