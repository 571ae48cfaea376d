"""Episodes that look odd and are right."""

import time
from typing import Any, ClassVar

from bases_h4_fresh10 import (
    CountedTogether,
    CountingMatch,
    LeakSearch,
    LeakyMain,
    LedgerSession,
    WhoOwesMost,
)
from catalogue import honest

from grpo_core import Reward, Task, Verdict


class WinningMoves(CountingMatch):
    """Pays the turn that ends a game, and none of the others."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task)
        self.earned: list[float] = []

    def take(self, text: str) -> str | None:
        before = self.won
        answer = super().take(text)
        self.earned.append(float(self.won and not before))
        return answer

    def judged(self) -> Verdict:
        reward = Reward(turns=tuple(self.earned)) if self.earned else Reward(0.0)
        return Verdict({"reward": reward}, passed=self.won, answer=str(self.total))


@honest("only the last turn is paid, by turns: what it earns is known when it is made")
class CountedByTheLastTurn(CountedTogether):
    """Says of each turn what it earned, which is nothing but for the winning one."""

    attempt: ClassVar[type[CountingMatch]] = WinningMoves


class StopwatchLedger(LedgerSession):
    """Tells how many milliseconds a query took."""

    def take(self, text: str) -> str | None:
        start = time.perf_counter()
        answer = super().take(text)
        spent = (time.perf_counter() - start) * 1000
        return None if answer is None else f"{answer} ({spent:.3f} ms)"


@honest("it tells the time, and says that it cannot be replayed; the verdict ignores the time")
class LedgerThatIsNotReplayed(WhoOwesMost):
    """Imitates a live database, whose answers are never the same twice."""

    replayable: ClassVar[bool] = False
    attempt: ClassVar[type[LedgerSession]] = StopwatchLedger


class MappedLeakSearch(LeakSearch):
    """Names manholes by a table that all attempts share."""

    names: ClassVar[dict[int, str]] = {}

    def answer(self, state: str, place: int) -> str:
        if place not in self.names:
            self.names[place] = f"{'ABCDEFGHIJ'[place // 10]}{place % 10}"
        return f"Manhole {place}, {self.names[place]} on the map, {state}."


@honest("attempts share a table on the class, which is a cache: its values depend on nothing")
class LeakOnASharedMap(LeakyMain):
    """Names the manholes as the city's map does, and remembers the names that it made."""

    attempt: ClassVar[type[LeakSearch]] = MappedLeakSearch
