"""Planted faults of the fourth fresh part: dialogues."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from bases_talk_fresh4 import Accounts, Balances, LampChain, Resistors, listed
from catalogue import fault

from grpo_core import Message, Reward, Rollout, Task, Verdict


@fault("a turn makes reply() slow", "reply.hostile", "reply.ends", "reply.form", "cost.time")
class NearestMove(Accounts):
    """The nearest of twelve moves is found by edit distance, however long the turn is."""

    def answered(self, task: Task[Any], held: Balances, messages: Sequence[Message]) -> str:
        text, said = messages[-1].content, f"The accounts hold {listed(held)}."
        if self.move(text):
            return said
        moves = [f"move 10 from {one} to {two}" for one in "ABCD" for two in "ABCD" if one != two]
        nearest = min(moves, key=lambda move: edits(move, text))
        return f'Did you mean "{nearest}"? {said}'


def edits(one: str, two: str) -> int:
    """Return how many letters have to be changed, put in or left out."""
    row = list(range(len(two) + 1))
    for place, letter in enumerate(one, 1):
        before, row[0] = row[0], place
        for at, other in enumerate(two, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (letter != other))
    return row[-1]


@fault("reply() cannot write what the policy said", "reply.hostile", "reply.form")
class AnswersAsAServer(Accounts):
    """Replies read like a server's log, in which the turn is a part of an address."""

    def answered(self, task: Task[Any], held: Balances, messages: Sequence[Message]) -> str:
        text = messages[-1].content
        status = "200 OK" if self.move(text) else "400 Bad Request"
        return f"POST /moves?text={quote(text[:80])} {status}\n{listed(held)}"


@fault("reply() depends on the time", "reply.repeat")
class ToldInMicroseconds(LampChain):
    """Each measurement says how long it took."""

    def answered(self, task: Task[int], text: str) -> str | None:
        begun = time.perf_counter()
        said = super().answered(task, text)
        return said and f"{said} ({1e6 * (time.perf_counter() - begun):.2f} microseconds)"


@fault("reply() draws at random", "reply.repeat")
class BookingNumbers(Accounts):
    """Each booking gets a number that nobody can guess."""

    def answered(self, task: Task[Any], held: Balances, messages: Sequence[Message]) -> str:
        return f"Booking {uuid.uuid4().hex[:8]}. {super().answered(task, held, messages)}"


WORD = re.compile(r"\s*(\w+)")
KNOWN = frozenset({"move", "from", "to", "A", "B", "C", "D"})


@fault("reply() hangs", "reply.ends", "reply.hostile", "reply.form")
class NamesUnknownWords(Accounts):
    """The words that are no part of a move are named; a sign that is no word is never passed."""

    def answered(self, task: Task[Any], held: Balances, messages: Sequence[Message]) -> str:
        text, place, unknown = messages[-1].content.strip(), 0, list[str]()
        if self.move(text):
            return super().answered(task, held, messages)
        while place < len(text):
            if found := WORD.match(text, place):
                place = found.end()
                if found[1] not in KNOWN and not found[1].isdigit():
                    unknown.append(found[1][:20])
        named = ", ".join(unknown[:5])
        return f"I do not know: {named}. {super().answered(task, held, messages)}"


@fault("reply() is never asked", "declared.contract", "reply.form", "reply.ends")
class RemindsOfTheUnit(Resistors):
    """Whoever forgets the unit is told, and may say it again; but the turns are misnamed."""

    turns: ClassVar[int] = 2

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content.strip().endswith("ohm"):
            return None
        return (Message("user", "Say it with its unit, please, as in: 4700 ohm"),)


@fault("reply() returns the wrong type", "reply.form")
class ContentParts(LampChain):
    """The content is a list of parts, as in the requests of an API."""

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = self.answered(task, messages[-1].content.strip())
        content: Any = [{"type": "text", "text": said}]
        return None if said is None else (Message("user", content),)


@fault("reply() says the answer", "reply.secret")
class UsefulExample(LampChain):
    """Whoever is not understood gets examples, which are made to fit the chain."""

    def answered(self, task: Task[int], text: str) -> str | None:
        said = super().answered(task, text)
        if said is not None and self.part(text) is None:
            half = task.data // 2
            return f'I did not get that. Say "test {half}-{task.data}" or "lamp {task.data}".'
        return said


@fault("the author's own cheats are paid in a dialogue", "floor.cheats")
class Overdrawn(Accounts):
    """Accounts may not be overdrawn, says the prompt; only the author's cheats try it."""

    def carry_out(self, held: Balances, amount: int, source: str, to: str) -> None:
        if source in held and to in held:
            held[source] -= amount
            held[to] += amount

    def cheats(self, task: Task[Any]) -> Sequence[Any]:
        (have, want), held = task.data, dict(task.data[0])
        first = (have["A"] + 100, "A", "B")
        self.carry_out(held, *first)
        then = self.reference(Task(task.key, task.prompt, (held, want)))
        return ("move {} from {} to {}".format(*first), *then), "The accounts are settled."


@fault(
    "turns are paid, not what is in them", "floor.empty", "floor.junk", "reply.ends", "floor.cheats"
)
class PaidPatience(LampChain):
    """A part is paid to who measures four times before the end, whatever the turns say."""

    parts: ClassVar[Mapping[str, float]] = {"found": 0.8, "method": 0.2}

    def judged(self, right: bool, rollout: Rollout) -> Verdict:
        rewards = {"found": Reward(float(right)), "method": Reward(float(rollout.turns > 4))}
        return Verdict(rewards, passed=right, answer=rollout.text.strip()[:40])

    def reference(self, task: Task[int]) -> Any:
        ends = (task.data + 50, task.data + 20, task.data + 5, task.data)
        return *(f"test {task.data}-{end}" for end in ends), f"lamp {task.data}"
