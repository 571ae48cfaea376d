"""Sound environments of the sixth fresh part: dialogues."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any, ClassVar

from bases_desk_fresh6 import SPACE, Desk

from grpo_core import Message, Task


class Stones(Desk):
    """A dialogue: a balance takes stones two at a time. The answer is a list of numbers."""

    max_turns = 8
    max_new_tokens = 40
    weighing = re.compile(r"weigh ([1-6]) ([1-6])", re.ASCII)
    ending = re.compile(r"stones:( [0-9]{1,4},?){1,9}", re.ASCII)

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        weights = [rng.randint(101, 999) for _ in range(3 + round(3 * level))]
        words = (
            f"There are {len(weights)} stones from the place {rng.randint(100, 999)}-"
            f"{rng.choice('ABCDEF')}{rng.randint(100, 999)}, numbered from 1. The balance takes two "
            "of them at once: say, for instance, weigh 1 2. At the end say what each weighs, in "
            "order, as in: stones: 310, 42"
        )
        return words, weights

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        text = messages[-1].content.strip(SPACE)
        if self.ending.fullmatch(text):
            return None
        return (Message("user", self.balance(task, text)),)

    def balance(self, task: Task[Any], text: str) -> str:
        found = self.weighing.fullmatch(text)
        one, other = map(int, found.groups()) if found else (0, 0)
        if one == other or max(one, other) > len(task.data):
            return self.help(task)
        return f"{one} and {other} weigh {task.data[one - 1] + task.data[other - 1]} g"

    def help(self, task: Task[Any]) -> str:
        return "Name two stones that there are, and nothing else, or say what all of them weigh."

    def answer(self, data: Any) -> str:
        return f"stones: {', '.join(map(str, data))}"

    def reference(self, task: Task[Any]) -> Any:
        pairs = [*combinations((1, 2, 3), 2), *((1, n) for n in range(4, len(task.data) + 1))]
        return *(f"weigh {one} {other}" for one, other in pairs), self.answer(task.data)


SYLLABLES = ("ba", "den", "fol", "gri", "hart", "kem", "lin", "mor", "nes", "pol", "sa", "wick")


class Archive(Desk):
    """A dialogue: find a name in an archive that is sorted. At the end its number is said."""

    max_turns = 9
    max_new_tokens = 12
    folders: ClassVar[tuple[int, int]] = (60, 60)
    said = re.compile(r"(open|take) ([1-9][0-9]{0,2})", re.ASCII)

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        names = {"".join(rng.choices(SYLLABLES, k=3)).title() for _ in range(200)}
        least, more = self.folders
        kept = sorted(rng.sample(sorted(names), least + round(more * level)))
        place = rng.randrange(len(kept))
        words = (
            f"An archive has {len(kept)} folders, numbered from 1 and sorted by name. The one of "
            f"{kept[place]} is wanted. Say, for instance, open 7, to hear whose folder 7 is, and at "
            "the end, for instance, take 7. You have nine turns, and take a folder once."
        )
        return words, {"names": kept, "place": place + 1}

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        return self.told(task, messages[-1].content.strip(SPACE))

    def told(self, task: Task[Any], text: str) -> Sequence[Message] | None:
        found, names = self.said.fullmatch(text), task.data["names"]
        if found is None or int(found[2]) > len(names):
            return (Message("user", "Say open or take, and the number of a folder."),)
        if found[1] == "take":
            return self.taken(task, int(found[2]))
        return (Message("user", f"Folder {found[2]} is that of {names[int(found[2]) - 1]}."),)

    def taken(self, task: Task[Any], number: int) -> Sequence[Message] | None:
        return None

    def answer(self, data: Any) -> str:
        return f"take {data['place']}"

    def reference(self, task: Task[Any]) -> Any:
        turns, place = list[str](), task.data["place"]
        low, high = 1, len(task.data["names"])
        while low < high:
            middle = (low + high) // 2
            turns.append(f"open {middle}")
            if middle == place:
                break
            low, high = (middle + 1, high) if middle < place else (low, middle - 1)
        return *turns, self.answer(task.data)
