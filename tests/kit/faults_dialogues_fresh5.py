"""Planted faults of the fifth fresh part: dialogues."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from bases_asked_fresh5 import judged
from bases_talk_fresh5 import GOODS, Clerk, Mule, Place, at, moved
from catalogue import fault

from grpo_core import Message, Rollout, Task, TaskKey, Verdict


@fault("a turn makes reply() slow", "reply.hostile")
class PiecewiseDiscount(Clerk):
    """Any number can be asked for, and the clerk goes through the pieces one by one."""

    def asked(self, text: str) -> tuple[int, str] | None:
        found = re.fullmatch(r"ask ([0-9]{1,12}) ([a-z]+)", text, re.ASCII)
        return None if found is None or found[2] not in GOODS else (int(found[1]), found[2])

    def offer(self, task: Task[Any], count: int, thing: str) -> str:
        price, spent = task.data["prices"][thing], 0
        for number in range(count):
            spent += max(price - number, price // 2)
        return f"{count} {thing}: {spent} ct"


@fault("reply() depends on earlier dialogues", "reply.repeat")
class GoesOnFromThere(Mule):
    """Where the mule was after so many messages is kept, so that no way is walked twice."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.reached: dict[tuple[TaskKey, int], Place] = {}

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        before = self.reached.get((task.key, len(messages) - 2), task.data["start"])
        if (task.key, len(messages)) not in self.reached:
            word = messages[-1].content.strip()
            self.reached[task.key, len(messages)] = moved(task.data, before, word)
        place = self.reached[task.key, len(messages)]
        return (
            None if place == task.data["goal"] else (Message("user", self.told(place, messages)),)
        )


SORRY = ("Pardon?", "I beg your pardon?", "Sorry, I did not get that.", "Come again?", "Hm?")


@fault("reply() draws at random", "reply.repeat")
class BegsYourPardon(Clerk):
    """Only where the clerk has not understood, the words are drawn."""

    def told(self, task: Task[Any], messages: Sequence[Message]) -> str | None:
        said = super().told(task, messages)
        return f"{secrets.choice(SORRY)} {said}" if said == self.help else said


class Reception:
    """Answers without a look at the task, for every dialogue that can do with one sentence."""

    greeting = "Good day."

    def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = self.told(task, messages)
        return None if said is None else (Message("user", f"{self.greeting} {said}"),)

    def told(self, task: Task[Any], messages: Sequence[Message]) -> str | None:
        raise NotImplementedError


@fault("reply() is not async", "reply.form", "declared.contract")
class GreetsYou(Reception, Clerk):  # type: ignore[misc]
    """The mixin's plain method comes before the environment's."""

    def told(self, task: Task[Any], messages: Sequence[Message]) -> str | None:
        return Clerk.told(self, task, messages)


@fault("reply() says the answer", "reply.secret")
class RunningSubtotal(Clerk):
    """The till shows what all that was asked for costs so far."""

    def told(self, task: Task[Any], messages: Sequence[Message]) -> str | None:
        said = super().told(task, messages)
        if said is None or said == self.help:
            return said
        turns = (message.content.strip() for message in messages if message.role == "assistant")
        asked = dict.fromkeys(found for found in map(self.asked, turns) if found is not None)
        prices = (self.offer(task, *found).split()[-2] for found in asked)
        return f"{said} (with what you asked for before: {sum(map(int, prices))} ct)"


@fault("the environment speaks for the policy", "reply.form", "reply.echo")
class ShowsHowToAsk(Clerk):
    """Who was not understood is shown a turn as it should be, and what it leads to."""

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = self.told(task, messages)
        if said != self.help:
            return None if said is None else (Message("user", said),)
        thing = next(iter(task.data["wanted"]))
        return (
            Message("user", said),
            Message("assistant", f"ask 1 {thing}"),
            Message("user", self.offer(task, 1, thing)),
        )


@fault("the verifier reads what the environment said", "reply.echo", "reply.secret")
class FollowsTheTranscript(Mule):
    """Where the mule is at last is read from the transcript, and the help names the goal there."""

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        told = self.told(self.after(task, messages), messages)
        if messages[-1].content.strip().casefold() in ("", "help", "?"):
            told = f"Lead it by one word, until I say: The mule is at {at(task.data['goal'])}."
        return (Message("user", told),)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        transcript = "\n".join(f"{said.role}: {said.content}" for said in rollout.messages)
        places = re.findall(r"The mule is at (\d+,\d+)\.", transcript)
        return judged(at(task.data["goal"]) in places, rollout.text)

    def reference(self, task: Task[Any]) -> Any:
        return *super().reference(task), "stop"
