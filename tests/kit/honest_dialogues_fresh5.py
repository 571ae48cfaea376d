"""Dialogues without a fault that look odd, fifth fresh part."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from bases_asked_fresh5 import Posed, judged
from bases_talk_fresh5 import STEPS, Clerk, Mule, Place, at
from catalogue import honest

from grpo_core import Message, Rollout, Task, Verdict


@honest("the first solution is told once the policy has answered, since the second rests on it")
class ToldAfterwards(Posed):
    """Two questions; an attempt passes if both were answered, each in its own turn."""

    max_turns = 2
    max_new_tokens = 12

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        high = 10 ** (3 + round(2 * level))
        one, other, times = rng.randint(101, high), rng.randint(101, high), rng.randint(3, 19)
        question = (
            f"What is {one} plus {other}? Reply with the number only. Then I tell you how much it "
            "was, and ask for a multiple of it."
        )
        return question, (one + other, times)

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        if len(messages) > 1:
            return None
        told = f"It was {task.data[0]}. And what is {task.data[1]} times that?"
        return (Message("user", told),)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        said = [turn.content.strip() for turn in rollout.messages if turn.role == "assistant"]
        return judged(said == list(self.reference(task)), rollout.text)

    def reference(self, task: Task[Any]) -> Any:
        total, times = task.data
        return str(total), str(total * times)


@honest("the dialogue always lasts twenty turns, and a mule that has come there has to stay")
class StaysWhereItShall(Mule):
    """It counts where the mule is after the last turn, so nothing ends a dialogue before."""

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        question, data = super().made(rng, level)
        return f"{question} You have {self.max_turns} turns: let it wait when it is there.", data

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        return (Message("user", self.told(self.after(task, messages), messages)),)

    def told(self, place: Place, messages: Sequence[Message]) -> str:
        known = messages[-1].content.strip() in {*STEPS, "wait"}
        return f"{'' if known else 'It knows five words only. '}The mule is at {at(place)}."

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        last = sum(message.role == "assistant" for message in rollout.messages) == self.max_turns
        there = self.after(task, rollout.messages) == task.data["goal"]
        return judged(last and there, rollout.text)

    def reference(self, task: Task[Any]) -> Any:
        words = super().reference(task)
        return *words, *(["wait"] * (self.max_turns - len(words)))


TOTAL = re.compile(r"total ([0-9]{1,9})", re.ASCII)


@honest("the clerk reads the sum back that the policy said, and every attempt ends by yes")
class ReadsTheSumBack(Clerk):
    """What the policy has confirmed is judged, by its own turns alone."""

    help = "Say: ask NUMBER THING, or: total NUMBER, and then: yes"

    def told(self, task: Task[Any], messages: Sequence[Message]) -> str | None:
        if self.confirmed(messages) is not None:
            return None
        found = TOTAL.fullmatch(messages[-1].content.strip())
        if found is not None:
            return f"You say that it is {found[1]} ct in all. If so, say: yes"
        return super().told(task, messages)

    def confirmed(self, messages: Sequence[Message]) -> str | None:
        """Return the sum that the policy said in its last turn but one, if the last one is yes."""
        said = [turn.content.strip() for turn in messages if turn.role == "assistant"]
        ends = len(said) > 1 and said[-1] == "yes" and TOTAL.fullmatch(said[-2])
        return said[-2] if ends else None

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        confirmed = self.confirmed(rollout.messages)
        return judged(confirmed == self.solution(task.data), confirmed or rollout.text)

    def reference(self, task: Task[Any]) -> Any:
        return *super().reference(task), "yes"
