"""Planted faults of the sixth fresh part: dialogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bases_talk_fresh5 import GOODS, Clerk
from bases_talk_fresh6 import Archive, Stones
from catalogue import fault

from grpo_core import Message, Task


def changes(one: str, other: str) -> int:
    """Return how many letters have to be changed, added or left out to get from one to another."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        last, row = row, [number]
        for place, wanted in enumerate(other):
            row.append(min(last[place + 1] + 1, row[place] + 1, last[place] + (letter != wanted)))
    return row[-1]


@fault("a turn makes reply() slow", "reply.hostile")
class SuggestsGoods(Clerk):
    """Whatever was not understood is compared with every thing, letter by letter."""

    def told(self, task: Task[Any], messages: Sequence[Message]) -> str | None:
        said = super().told(task, messages)
        if said != self.help:
            return said
        thing = messages[-1].content.strip().removeprefix("ask ").lstrip("0123456789 ")
        nearest = min(GOODS, key=lambda good: changes(thing, good))
        return f"{self.help}. Do you mean {nearest}?"


@fault("reply() returns the wrong type", "reply.form")
class WeighsInDicts(Stones):
    """Chat messages are dictionaries in most other libraries."""

    async def reply(  # type: ignore[override]
        self, task: Task[Any], messages: Sequence[Message]
    ) -> Sequence[dict[str, str]] | None:
        said = await super().reply(task, messages)
        if said is None:
            return None
        return [{"role": message.role, "content": message.content} for message in said]


@fault("reply() says the answer", "reply.secret")
class HelpsWithAnExample(Stones):
    """The example of a last turn is taken from the reference, as that is always well formed."""

    def help(self, task: Task[Any]) -> str:
        *weighings, last = self.reference(task)
        return f"I did not understand. Say, for example, {weighings[0]!r}, or at the end {last!r}."


@fault("the author's own cheats are paid in a dialogue", "floor.cheats")
class TakesAgain(Archive):
    """A wrong folder is put back, and the dialogue goes on, which the last cheat makes use of."""

    def taken(self, task: Task[Any], number: int) -> Sequence[Message] | None:
        if number == task.data["place"]:
            return None
        return (Message("user", f"Folder {number} is the wrong one. It is put back."),)

    def cheats(self, task: Task[Any]) -> Sequence[Any]:
        place, count = task.data["place"], len(task.data["names"])
        wrong = 1 if place == count else place + 1
        return f"take {place} or {wrong}", "take all", (f"take {wrong}", f"take {place}")
