"""Episodes with one fault each."""

import random
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from bases_h4_fresh10 import (
    Attempt,
    CartToTheShelf,
    CountedTogether,
    CountingMatch,
    Greenhouse,
    LeakSearch,
    LeakyMain,
    LedgerSession,
    PickingRound,
    WhoOwesMost,
)
from bases_h_fresh10 import ask, draw, paid
from catalogue import fault

from grpo_core import Environment, Episode, Message, Reward, Rollout, Task, TaskKey, Verdict


class UnwatchedGreenhouse(Greenhouse):
    """Stops the model of the greenhouse when it has answered."""

    async def computed(self, watts: int) -> int:
        model = await self.start()
        degrees = await self.exchanged(model, watts)
        model.kill()
        await model.wait()
        return degrees


@fault("a process is left when a reply is cancelled", "episode.close")
class GreenhouseByAModel(Environment[Any]):
    """Has a policy heat a greenhouse, of which a process computes how warm it gets."""

    levels = False
    replayable: ClassVar[bool] = True
    max_turns: ClassVar[int] = 3
    max_new_tokens = 8

    def task(self, key: TaskKey) -> Task[Any]:
        start, rise, rate = draw(
            key,
            lambda rng: (rng.randint(3, 15), rng.randint(3, 19), rng.randint(31, 95)),
            str,
        )
        prompt = (
            f"A greenhouse has {start} degrees, and each {rate} watts warm it by one degree. Bring "
            f"it to {start + rise} degrees exactly: `heat WATTS`, and then `done`. There are three "
            "turns, and the last has to be `done`."
        )
        return ask(key, prompt, (start, start + rise, rate))

    def episode(self, task: Task[Any]) -> Episode:
        return UnwatchedGreenhouse(task)

    def reference(self, task: Task[Any]) -> list[str]:
        start, goal, rate = task.data
        return [f"heat {(goal - start) * rate}", "done"]


class NovelMatch(CountingMatch):
    """Pays less for a way of winning that an earlier attempt has shown."""

    def __init__(self, task: Task[Any], played: set[tuple[Any, ...]]) -> None:
        super().__init__(task)
        self.played = played

    def judged(self) -> Verdict:
        way = (self.task.data, *self.added)
        value = 0.0 if not self.won else 0.5 if way in self.played else 1.0
        self.played.add(way)
        return Verdict({"reward": Reward(value)}, passed=self.won, answer=str(self.total))


@fault("a verdict depends on the episodes before", "episode.replay", "verdict.repeat")
class CountedInNewWays(CountedTogether):
    """Wants varied play, so it remembers which ways of winning it has seen."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.played: set[tuple[Any, ...]] = set()

    def episode(self, task: Task[Any]) -> Episode:
        return NovelMatch(task, self.played)


class HistoryMatch(CountingMatch):
    """Judges a game by the last entry of its history."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task)
        self.history: list[tuple[str, int]] = []

    def take(self, text: str) -> str | None:
        before = len(self.added)
        answer = super().take(text)
        if len(self.added) > before:
            self.history.append(("policy" if self.won else "both", self.total))
        return answer

    def judged(self) -> Verdict:
        who, total = self.history.pop() if self.history else ("nobody", 0)
        return paid(who == "policy" and total == self.goal, str(total))


@fault("a verdict uses up what it needs", "episode.repeat")
class CountedByHistory(CountedTogether):
    """Keeps the history of a game, and reads its end from there."""

    attempt: ClassVar[type[CountingMatch]] = HistoryMatch


class ChattyLeakSearch(LeakSearch):
    """Answers in varying words."""

    def answer(self, state: str, place: int) -> str:
        wordings = (
            f"At {place} the pipe {state}.",
            f"Manhole {place}: it {state}.",
            f"I looked into {place}, and it {state}.",
            f"{place} {state}, over.",
        )
        return random.choice(wordings)


@fault("an episode draws from a global generator", "episode.replay", "reply.repeat")
class LeakWithAChattyCrew(LeakyMain):
    """Varies how the crew reports, so that a policy does not learn one wording by heart."""

    attempt: ClassVar[type[LeakSearch]] = ChattyLeakSearch


class TimedLedger(LedgerSession):
    """Tells how long a query took, as the shells of databases do."""

    def take(self, text: str) -> str | None:
        start = time.perf_counter()
        answer = super().take(text)
        spent = (time.perf_counter() - start) * 1000
        return None if answer is None else f"{answer}\n(1 row in {spent:.3f} ms)"


@fault("an episode tells the time", "episode.replay", "reply.repeat")
class WhoOwesMostTimed(WhoOwesMost):
    """Looks like the shell of a real database, with the time of each query."""

    attempt: ClassVar[type[LedgerSession]] = TimedLedger


class SharedSpadeSearch(LeakSearch):
    """Empties the list of holes when an attempt begins."""

    dug: list[int] = []  # noqa: RUF012

    def __init__(self, task: Task[int]) -> None:
        Attempt.__init__(self, task)

    async def open(self) -> Sequence[Message]:
        self.dug.clear()
        return ()


@fault("the state of an attempt is kept on a class", "episode.apart")
class LeakOfOneCrew(LeakyMain):
    """Begins every search with an empty list of holes."""

    attempt: ClassVar[type[LeakSearch]] = SharedSpadeSearch


class DiscountedRound(PickingRound):
    """Discounts the success of a round back to its first turns."""

    def turns(self) -> tuple[float, ...]:
        count = len(self.earned)
        weights = [2.0 ** -(count - 1 - number) for number in range(count)]
        arrived = float(self.distance() == 0)
        return tuple(arrived * weight / sum(weights) for weight in weights)


@fault("turns are paid by how far they are from the end", "episode.turns")
class CartWithDiscount(CartToTheShelf):
    """Pays the turns of a round that got to the shelf, the late ones more than the early ones."""

    attempt: ClassVar[type[PickingRound]] = DiscountedRound


class ShareAndShareAlike(PickingRound):
    """Divides the success of a round among its turns."""

    def turns(self) -> tuple[float, ...]:
        count = len(self.earned)
        return tuple([float(self.distance() == 0) / count] * count)


@fault("turns share what came later", "episode.turns")
class CartOfEqualShares(CartToTheShelf):
    """Gives every turn of a successful round the same share of the reward."""

    attempt: ClassVar[type[PickingRound]] = ShareAndShareAlike


class LedgerUntilJudged(LedgerSession):
    """Removes the ledger when the attempt is judged."""

    async def verdict(self, rollout: Rollout) -> Verdict:
        verdict = await super().verdict(rollout)
        self.release()
        return verdict

    async def close(self) -> None:
        """Do nothing: the verdict has tidied up."""


@fault("what an episode holds is released in the verdict only", "episode.close")
class WhoOwesMostTidied(WhoOwesMost):
    """Tidies up after an attempt as soon as its verdict is known."""

    attempt: ClassVar[type[LedgerSession]] = LedgerUntilJudged
