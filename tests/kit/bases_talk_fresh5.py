"""Sound environments of the fifth fresh part: dialogues."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bases_asked_fresh5 import Posed, judged

from grpo_core import Message, Rollout, Task, Verdict

GOODS = ("tea", "rice", "salt", "soap", "wool", "nuts", "wine", "corn", "milk", "figs")
ASK = re.compile(r"ask ([1-9][0-9]?) ([a-z]{2,8})", re.ASCII)


def cost(price: int, count: int) -> int:
    """Return what so many of a thing cost, of which each further one is a cent cheaper."""
    return sum(max(price - number, price // 2) for number in range(count))


class Clerk(Posed):
    """A dialogue: ask for prices, and say what a list of goods costs."""

    max_turns = 8
    max_new_tokens = 24
    help: ClassVar[str] = "Say: ask NUMBER THING, or: total NUMBER"

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        things = rng.sample(GOODS, 3 + round(2 * level))
        wanted = {thing: rng.randint(2, 40) for thing in things}
        prices = {thing: rng.randint(101, 899) for thing in GOODS}
        question = (
            f"Buy {', '.join(f'{count} {thing}' for thing, count in wanted.items())}. Ask me what "
            "they cost, as by: ask 3 tea. At the end say what all of them cost, as by: total 420"
        )
        return question, {"wanted": wanted, "prices": prices}

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = self.told(task, messages)
        return None if said is None else (Message("user", said),)

    def told(self, task: Task[Any], messages: Sequence[Message]) -> str | None:
        text = messages[-1].content.strip()
        if re.fullmatch(r"total [0-9]{1,9}", text, re.ASCII):
            return None
        asked = self.asked(text)
        return self.help if asked is None else self.offer(task, *asked)

    def asked(self, text: str) -> tuple[int, str] | None:
        found = ASK.fullmatch(text)
        return None if found is None or found[2] not in GOODS else (int(found[1]), found[2])

    def offer(self, task: Task[Any], count: int, thing: str) -> str:
        return f"{count} {thing}: {cost(task.data['prices'][thing], count)} ct"

    def right(self, data: Any, text: str) -> bool:
        return text.strip() == self.solution(data)

    def solution(self, data: Any) -> str:
        spent = sum(cost(data["prices"][thing], n) for thing, n in data["wanted"].items())
        return f"total {spent}"

    def reference(self, task: Task[Any]) -> Any:
        asked = (f"ask {count} {thing}" for thing, count in task.data["wanted"].items())
        return *asked, self.solution(task.data)


STEPS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
Place = tuple[int, int]
SIDE = 15


class Mule(Posed):
    """A dialogue: lead a mule to a place by words; it leaves out what would end at a rock."""

    max_turns = 20
    max_new_tokens = 12

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        places = [(x, y) for x in range(SIDE) for y in range(SIDE)]
        start, goal, *others = rng.sample(places, 36 + round(24 * level))
        data = {"start": start, "goal": goal, "rocks": others}
        if abs(start[0] - goal[0]) + abs(start[1] - goal[1]) < 6 or way(data) is None:
            return self.made(rng, level)
        question = (
            f"A mule stands at {at(start)} of a field of {SIDE} by {SIDE}, and shall go to {at(goal)}. "
            f"There are rocks, such as at {', '.join(map(at, others[:5]))}. Lead it by one word in "
            "each turn: north, east, south or west."
        )
        return question, data

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        place = self.after(task, messages)
        return (
            None if place == task.data["goal"] else (Message("user", self.told(place, messages)),)
        )

    def told(self, place: Place, messages: Sequence[Message]) -> str:
        known = messages[-1].content.strip() in STEPS
        return f"{'' if known else 'It knows four words only. '}The mule is at {at(place)}."

    def after(self, task: Task[Any], messages: Sequence[Message]) -> Place:
        place: Place = task.data["start"]
        for message in messages:
            if message.role == "assistant":
                place = moved(task.data, place, message.content.strip())
        return place

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return judged(self.after(task, rollout.messages) == task.data["goal"], rollout.text)

    def reference(self, task: Task[Any]) -> Any:
        return tuple(way(task.data) or ())


def at(place: Place) -> str:
    """Return a place as text."""
    return f"{place[0]},{place[1]}"


def moved(data: Mapping[str, Any], place: Place, word: str) -> Place:
    """Return where the mule is after a word."""
    step = STEPS.get(word, (0, 0))
    new = place[0] + step[0], place[1] + step[1]
    free = all(0 <= number < SIDE for number in new) and new not in data["rocks"]
    return new if free else place


def way(data: Mapping[str, Any]) -> list[str] | None:
    """Return the words of a shortest way to the goal, of at most 16; None if there is none."""
    ways: deque[tuple[Place, list[str]]] = deque([(data["start"], [])])
    seen = {data["start"]}
    while ways:
        place, words = ways.popleft()
        if place == data["goal"]:
            return words if len(words) <= 16 else None
        for word in STEPS:
            if (new := moved(data, place, word)) not in seen:
                seen.add(new)
                ways.append((new, [*words, word]))
    return None
