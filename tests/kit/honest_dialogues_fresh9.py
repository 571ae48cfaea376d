"""Honest dialogues that look odd."""

from __future__ import annotations

from collections.abc import Sequence

from bases_f3_fresh9 import (
    DAYS,
    DartsChalker,
    Leg,
    NurseryOrder,
    Pipeline,
    PipelineLeak,
    Wish,
    spoken,
    whole,
)
from catalogue import honest

from grpo_core import Message, Reward, Rollout, Task, Verdict


@honest(
    "A hit passes whenever it comes, but each probe before it costs a tenth: fewer probes are "
    "better, and the reference, which hits at once, gets everything."
)
class CrewPaidByTheProbe(PipelineLeak):
    """Pays 1 for a hit at the first probe, and 0.1 less for each probe before it."""

    def verify(self, task: Task[Pipeline], rollout: Rollout) -> Verdict:
        said = spoken(rollout.messages)[: self.probes]
        hit = bool(said) and whole(said[-1]) == task.data.leak
        score = 1 - (len(said) - 1) / 10 if hit else 0.0
        return Verdict({"reward": Reward(score)}, passed=hit)


@honest(
    "Its replies say the right number of the visit before, which cannot be given any more: each "
    "turn is judged for its own visit, so one slip does not spoil the rest."
)
class ChalkerTellsTheScore(DartsChalker):
    """Says after each visit what was really left, and goes on from there."""

    def call(self, leg: Leg, visit: int, messages: Sequence[Message]) -> str:
        return f"{leg.left(visit - 1)} it was. {super().call(leg, visit, messages)}"


@honest(
    "The customer asks for another day once an order is placed, so the order that was right a "
    "turn ago is wrong now: to follow the change is what the task is about."
)
class CustomerChangesTheDay(NurseryOrder):
    """Has the customer move the day after the first order; the second order counts."""

    max_turns = 6

    def changed(self, wish: Wish) -> tuple[str, str]:
        """Return the new day and the order with it."""
        day = DAYS[(DAYS.index(wish.value("day")) + 2) % len(DAYS)]
        return day, ", ".join([*wish.order.split(", ")[:3], day])

    def question(self, wish: Wish) -> str:
        return f"{super().question(wish)} If the customer changes it, write it again."

    async def reply(
        self, task: Task[Wish], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        said = spoken(messages)
        orders = sum(self.ordered(text) is not None for text in said)
        placed = self.ordered(said[-1]) is not None
        if not placed or orders > 1 or len(said) >= self.max_turns:
            return await super().reply(task, messages)
        return (Message("user", f"Oh, {self.changed(task.data)[0]} suits me better."),)

    def verify(self, task: Task[Wish], rollout: Rollout) -> Verdict:
        said = [self.ordered(text) for text in spoken(rollout.messages)]
        orders = [order for order in said if order is not None]
        right = orders == [task.data.order, self.changed(task.data)[1]] and said[-1] is not None
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:80])

    def reference(self, task: Task[Wish]) -> tuple[str, ...]:
        return (*super().reference(task), f"order {self.changed(task.data)[1]}")
