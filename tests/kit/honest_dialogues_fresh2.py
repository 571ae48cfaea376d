"""Honest designs: dialogues and tools that look odd and are right, of the second fresh part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from bases_talk_fresh2 import (
    TOWNS,
    Atlas,
    Piles,
    Shelves,
    Stones,
    Till,
    Treasure,
    called,
    far,
    taken,
    totals,
)
from catalogue import honest
from pydantic import Field

from grpo_core import Message, Reward, Rollout, Task, Verdict
from grpo_core.extract import parse_integer, parse_json

Said = Sequence[Message]
Place = Task[tuple[int, int]]
Tools = Sequence[Callable[..., object]]


@honest("the sound base: directions to a hidden cell, which all prompts of a level ask for alike")
class SoundTreasure(Treasure):
    pass


@honest("the sound base: a game against an opponent that plays as well as it can")
class SoundStones(Stones):
    pass


@honest("the sound base: totals of what is said so far, each of which has to be right")
class SoundTill(Till):
    pass


@honest("the sound base: a tool that knows what the prompt does not say")
class SoundAtlas(Atlas):
    pass


@honest("the sound base: a tool that knows the task, but not what is asked for")
class SoundShelves(Shelves):
    pass


@honest("the opponent plays at random, by the task's key and the turn")
class PlaysAtRandom(Stones):
    def move(self, task: Task[Piles], piles: Piles, messages: Said) -> tuple[int, int]:
        rng = task.key.rng("reply", len(messages))
        full = [pile for pile, size in enumerate(piles) if size]
        pile = rng.choice(full) if full else 0
        return pile, rng.randint((piles[pile] + 1) // 2, piles[pile])

    max_turns = 20


@honest("the opponent always takes the largest pile, so it is easy to beat")
class AlwaysTheLargest(Stones):
    def move(self, task: Task[Piles], piles: Piles, messages: Said) -> tuple[int, int]:
        return piles.index(max(piles)), max(piles)


@honest("a find at an earlier turn earns more, and the reference knows the place")
class EarlierIsBetter(Treasure):
    def verify(self, task: Place, rollout: Rollout) -> Verdict:
        found = self.guessed(rollout.text) == task.data
        turns = sum(message.role == "assistant" for message in rollout.messages)
        value = 1.0 - 0.05 * (turns - 1) if found else 0.0
        return Verdict({"reward": Reward(value)}, passed=found, answer=rollout.text[:20])

    def reference(self, task: Place) -> Any:
        return (f"{task.data[0]} {task.data[1]}",)


@honest("only every second guess is answered, and the others with dots")
class AnswersEverySecond(Treasure):
    max_turns = 16

    async def reply(self, task: Place, messages: Said) -> Said | None:
        new = await super().reply(task, messages)
        said = sum(message.role == "assistant" for message in messages)
        return (Message("user", "..."),) if new and said % 2 else new

    def reference(self, task: Place) -> Any:
        turns = super().reference(task)
        return tuple(turn for turn in turns[:-1] for _ in range(2)) + turns[-1:]


@honest("each right total earns a quarter, and only all of them pass")
class QuarterForEach(Till):
    parts: ClassVar[Mapping[str, float]] = {"totals": 1.0}

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        said = [turn.content for turn in rollout.messages if turn.role == "assistant"]
        read = [parse_integer(text) for text in said[:4]]
        right = sum(one == other for one, other in zip(read, totals(task.data), strict=False))
        return Verdict({"totals": Reward(right / 4)}, passed=right == 4, answer=rollout.text[:20])


@honest("the customer takes back what was said before, so totals fall, too")
class TakesThingsBack(Till):
    def next(self, amounts: list[int], said: int) -> str:
        return (
            f"And {amounts[said + 1]}." if said != 2 else f"{amounts[1]} was wrong; leave it out."
        )

    def right(self, amounts: list[int]) -> list[int]:
        one, two = amounts[0] + amounts[1], amounts[2]
        return [one, one + two, amounts[0] + two, amounts[0] + two + amounts[4]]

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        said = [turn.content for turn in rollout.messages if turn.role == "assistant"]
        read = [parse_integer(text) for text in said]
        return self.judged(read == self.right(task.data), rollout.text)

    def reference(self, task: Task[list[int]]) -> Any:
        return tuple(map(str, self.right(task.data)))


@honest("the first total that is wrong ends the dialogue, without a word")
class EndsAtAMistake(Till):
    async def reply(self, task: Task[list[int]], messages: Said) -> Said | None:
        said = [turn.content for turn in messages if turn.role == "assistant"]
        read = [parse_integer(text) for text in said]
        right = read == totals(task.data)[: len(read)]
        return await super().reply(task, messages) if right else None


@honest("a tool answers so many calls only, which are counted in the messages")
class SixCallsOnly(Shelves):
    max_turns = 8

    async def reply(self, task: Task[Any], messages: Said) -> Said | None:
        told = await super().reply(task, messages)
        before = sum(message.role == "tool" for message in messages)
        if told is None:
            return None
        late = [Message("tool", "no more calls") for _ in told[max(0, 6 - before) :]]
        return [*told[: max(0, 6 - before)], *late]


@honest("after each answer of a tool the user says how many turns are left")
class TurnsLeft(Shelves):
    async def reply(self, task: Task[Any], messages: Said) -> Said | None:
        told = await super().reply(task, messages)
        said = sum(message.role == "assistant" for message in messages)
        left = self.max_turns - said
        return None if told is None else [*told, Message("user", f"Turns left: {left}.")]


@honest("tools have choices, limits and a default, and one of them answers with an object")
class ToolsWithLimits(Atlas):
    def tools(self) -> Tools:
        return (leg, multiply)


def leg(start: str, end: str, unit: Literal["km", "m"] = "km") -> dict[str, object]:
    """Return the length of the way between two towns."""
    if start not in TOWNS or end not in TOWNS:
        raise ValueError("there is no such town")
    return {"length": far(start, end) * (1 if unit == "km" else 1000), "unit": unit}


def multiply(
    one: Annotated[int, Field(ge=0, le=10**6)], other: Annotated[int, Field(ge=0, le=10**6)]
) -> int:
    """Multiply two numbers."""
    return one * other


@honest("the tool answers with a whole table, of which a part matters")
class WholeTable(Atlas):
    def tools(self) -> Tools:
        return (table,)

    def reference(self, task: Task[Any]) -> Any:
        return called({"town": TOWNS[0]}, name="table"), str(task.data)


def table(town: str) -> str:
    """Return the distances from a town to all the others, in km."""
    if town not in TOWNS:
        return f"There is no {town!r}."
    return "\n".join(f"{other}: {far(town, other)}" for other in TOWNS if other != town)


@honest("the answer is given by a call of a tool, which ends the dialogue")
class AnswerByACall(Shelves):
    rules = "Report the number with the tool report."

    def tools(self) -> Tools:
        return (*super().tools(), report)

    def known(self, task: Task[Any]) -> Tools:
        def report(number: int) -> str:
            return "The number is noted. Goodbye."

        return (*super().known(task), report)

    def accepts(self, right: Any, text: str) -> bool:
        found = re.fullmatch(r"<tool_call>(.*)</tool_call>", text.strip(), re.DOTALL)
        call = found and parse_json(found[1], max_chars=1000)
        named = {"name": "report", "arguments": {"number": right["total"]}}
        return bool(call and call.value == named)

    async def reply(self, task: Task[Any], messages: Said) -> Said | None:
        if '"report"' in messages[-1].content:
            return None
        return await super().reply(task, messages)

    def reference(self, task: Task[Any]) -> Any:
        seen = called(*({"shelf": shelf} for shelf in task.data["asked"]))
        return seen, called({"number": task.data["total"]}, name="report")


def report(number: int) -> str:
    """Report the number that was asked for; this ends the task."""
    raise NotImplementedError  # reply() ends the dialogue


@honest("who takes the last stone loses, so a won game ends with a stone that is left")
class LastStoneLoses(Stones):
    def opening(self, piles: Piles) -> str:
        rules = "We take turns; each takes one or more stones from one pile. The last stone loses."
        return f"Piles 1 to 4 hold {list(piles)} stones. {rules} Reply with pile and number: 2 5"

    def planned(self, piles: Piles) -> tuple[int, int]:
        pile, number = super().planned(piles)
        small = [size for place, size in enumerate(piles) if size and place != pile]
        if all(size == 1 for size in small):
            keep = len(small) % 2 == 0
            pile = piles.index(max(piles))
            return pile, piles[pile] - keep if piles[pile] > 1 else 1
        return pile, number

    def move(self, task: Task[Piles], piles: Piles, messages: Said) -> tuple[int, int]:
        return self.planned(piles)

    async def reply(self, task: Task[Piles], messages: Said) -> Said | None:
        piles = self.after(task, messages)
        over = piles is None or sum(piles) <= 1
        return None if over else await super().reply(task, messages)

    def verify(self, task: Task[Piles], rollout: Rollout) -> Verdict:
        piles = self.after(task, rollout.messages) if rollout.messages else None
        won = piles is not None and sum(piles) == 1
        return self.judged(won, rollout.text)

    def reference(self, task: Task[Piles]) -> Any:
        turns, piles = list[str](), task.data
        while True:
            pile, number = self.planned(piles)
            turns.append(f"{pile + 1} {number}")
            piles = taken(piles, pile, number)
            if sum(piles) <= 1:
                return tuple(turns)
            piles = taken(piles, *self.planned(piles))


@honest("the environment begins with small talk that does not matter")
class SmallTalkFirst(Till):
    max_turns = 5
    talk: ClassVar[Sequence[str]] = ("Fine weather.", "A long queue today.", "Is it Friday?")

    async def reply(self, task: Task[list[int]], messages: Said) -> Said | None:
        said = sum(message.role == "assistant" for message in messages)
        if said == 2:
            text = task.key.rng("reply", len(messages)).choice(self.talk)
            return (Message("user", f"{text} What was the total again?"),)
        return (Message("user", self.next(task.data, said - (said > 2))),) if said < 5 else None

    def right(self, amounts: list[int]) -> list[int]:
        one, two, *rest = totals(amounts)
        return [one, two, two, *rest]

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        said = [turn.content for turn in rollout.messages if turn.role == "assistant"]
        read = [parse_integer(text) for text in said]
        return self.judged(read == self.right(task.data), rollout.text)

    def reference(self, task: Task[list[int]]) -> Any:
        return tuple(map(str, self.right(task.data)))
