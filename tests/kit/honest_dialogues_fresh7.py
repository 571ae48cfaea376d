"""Dialogues whose design looks odd, and is right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bases_b4_fresh7 import RiddleOfRemainders
from bases_b_fresh7 import asks, drawn_apart, paid, spoken
from catalogue import honest

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict


@honest(
    "The examiner doubts right and wrong replies alike and never ends the dialogue, so that the "
    "policy learns to stand by a right number; only the last of the three turns counts."
)
class DoubtsEverything(RiddleOfRemainders):
    """Asks twice whether the policy is sure, and takes its last word."""

    max_turns: ClassVar[int] = 3

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message]:
        doubts = ("Are you sure? Which number is it?", "Really? Your last word, please.")
        return (Message("user", doubts[min(len(messages) // 2, 1)]),)

    def reference(self, task: Task[int]) -> Sequence[str]:
        return [str(task.data)] * self.max_turns


@honest(
    "A right number earns less with each hint that was needed, and still passes: it is right. The "
    "reference needs no hint and earns 1, and what a turn is told depends on the turns alone."
)
class HintsHaveAPrice(RiddleOfRemainders):
    """Takes a tenth off for each hint, so a right number after five hints earns 0.5."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        right = answer == str(task.data)
        hints = max(0, sum(message.role == "assistant" for message in rollout.messages) - 1)
        reward = round(1 - 0.1 * hints, 1) if right else 0.0
        return Verdict({"reward": Reward(reward)}, passed=right, answer=answer[:100])


@dataclass(frozen=True, slots=True)
class Prices:
    """Holds what is dictated, in cents."""

    cents: tuple[int, ...]


@honest(
    "The prompts differ by the number of the till alone and hold nothing to add up; all that is "
    "asked about is dictated in the replies, whatever the policy says in between."
)
class DictatedPrices(Environment[Prices]):
    """Dictates a price after each turn, and wants the sum when all were dictated."""

    max_turns: ClassVar[int] = 6
    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[Prices]:
        def draw(rng: random.Random) -> tuple[int, Prices]:
            count, most = (3, 99) if key.level < 0.5 else (5, 999)
            return rng.randint(1000, 9999), Prices(tuple(rng.choices(range(5, most), k=count)))

        till, prices = drawn_apart(key, draw, lambda drawn: str(drawn[0]))
        question = (
            f"Till {till}. Say next, and you hear a price in cents; say next after each of them. "
            "After the last one you are told so: then reply with their sum alone."
        )
        return Task(key, asks(question), prices)

    async def reply(
        self, task: Task[Prices], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        cents = task.data.cents
        turns = sum(message.role == "assistant" for message in messages)
        if turns > len(cents):
            return None
        last = " That was the last one." if turns == len(cents) else ""
        return (Message("user", f"{cents[turns - 1]}.{last}"),)

    def verify(self, task: Task[Prices], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        turns = sum(message.role == "assistant" for message in rollout.messages)
        heard = turns > len(task.data.cents)
        return paid(heard and answer == str(sum(task.data.cents)), answer)

    def reference(self, task: Task[Prices]) -> Sequence[str]:
        return (*("next" for _ in task.data.cents), str(sum(task.data.cents)))
