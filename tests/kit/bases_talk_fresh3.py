"""Sound environments of the third fresh part, for answers, dialogues, tools and rows."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bases_talk_fresh2 import Posed, called, coined_words

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_integer, parse_json
from grpo_env_dataset.env import Config

ROWS = Path(__file__).with_name("rows_fresh3.jsonl")
REWARDS = Path(__file__).with_name("rewards_fresh3.py")


class TrainArrival(Posed):
    """The time at which a train arrives."""

    rules = "When does it arrive? Reply with the time only, as in 07:05."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        start, count = rng.randrange(1440), 2 + round(3 * level)
        legs = [rng.randint(61, 500) for _ in range(count)]
        listed = ", then ".join(f"{leg // 60} h {leg % 60} min" for leg in legs)
        asked = f"A train leaves at {clock(start)} and travels for {listed}."
        return asked, clock(start + sum(legs))


def clock(minutes: int) -> str:
    """Return a time of the day, given in minutes."""
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


class Dive(Posed):
    """How high a drone is, below or above the rim of a canyon."""

    rules = "How high is it above the rim? Reply with a whole number only, negative if below."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        moves = [rng.choice((-1, 1)) * rng.randint(21, 999) for _ in range(3 + round(4 * level))]
        listed = ", ".join(f"{'up' if move > 0 else 'down'} {abs(move)} m" for move in moves)
        return ("" if not sum(moves) else f"A drone starts at the rim: {listed}."), sum(moves)

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=9)


class Runs(Posed):
    """A text as its letters and how often each comes in a row."""

    rules = "Reply with each letter and its number in a row, as in: x3 y12 x1"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        letters = [rng.choice("abc")]
        while len(letters) < 4 + round(4 * level):
            letters.append(rng.choice("abcde".replace(letters[-1], "")))
        runs = [(letter, rng.randint(1, 11)) for letter in letters]
        return f"Shorten {''.join(a * b for a, b in runs)!r}.", " ".join(f"{a}{b}" for a, b in runs)


class Spans(Posed):
    """The union of intervals, as JSON."""

    rules = "Reply with a JSON list of the merged intervals, each as [from, to], in rising order."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        count = 4 + round(3 * level)
        ends = rng.sample(range(10, 999), 2 * count)
        spans = [sorted(pair) for pair in zip(ends[::2], ends[1::2], strict=True)]
        union = merged(spans)
        fine = 2 <= len(union) < count
        listed = ", ".join(map(str, spans))
        return f"Merge those that overlap: {listed}." if fine else "", union

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=1000)
        return None if value is None else value.value

    def accepts(self, right: Any, text: str) -> bool:
        return json.dumps(self.read(text)) == json.dumps(right)

    def written(self, data: Any) -> str:
        return json.dumps(data)


def merged(spans: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the union of intervals."""
    union: list[list[int]] = []
    for low, high in sorted(map(tuple, spans)):
        if union and low <= union[-1][1]:
            union[-1][1] = max(high, union[-1][1])
        else:
            union.append([low, high])
    return union


class Swaps(Environment[tuple[int, ...]]):
    """A dialogue: sort a list by exchanging two of its items in each turn."""

    max_turns = 8
    max_new_tokens = 12
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[tuple[int, ...]]:
        rng, count = key.rng(), 6 + round(2 * key.level)
        while True:
            items = tuple(rng.sample(range(10, 100), count))
            if held_out(f"{items}") == (key.split == "eval") and items != tuple(sorted(items)):
                rules = "In each turn exchange two: reply with their places, the smaller first: 2 5"
                prompt = f"Sort this list, the smallest first: {list(items)}. {rules}"
                return Task(key, (Message("user", prompt),), items)

    async def reply(
        self, task: Task[tuple[int, ...]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        items = self.after(task, messages)
        if in_order(items):
            return None
        fine = self.places(items, messages[-1].content) is not None
        return (Message("user", f"{'' if fine else 'That is no exchange. '}Now: {list(items)}"),)

    def after(self, task: Task[tuple[int, ...]], messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the list after the policy's turns."""
        items = task.data
        for message in messages:
            if message.role == "assistant":
                items = self.exchanged(items, message.content)
        return items

    def exchanged(self, items: tuple[int, ...], text: str) -> tuple[int, ...]:
        places = self.places(items, text)
        if places is None:
            return items
        changed, (one, two) = list(items), places
        changed[one], changed[two] = changed[two], changed[one]
        return tuple(changed)

    def places(self, items: Sequence[int], text: str) -> tuple[int, int] | None:
        found = re.fullmatch(r"([1-9]) ([1-9])", text.strip())
        if found is None or not int(found[1]) < int(found[2]) <= len(items):
            return None
        return int(found[1]) - 1, int(found[2]) - 1

    def verify(self, task: Task[tuple[int, ...]], rollout: Rollout) -> Verdict:
        return self.judged(in_order(self.after(task, rollout.messages)), rollout.text)

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text[:20])

    def reference(self, task: Task[tuple[int, ...]]) -> Any:
        """Return the exchanges of sorting by selection, of which there are as few as can be."""
        items, turns = task.data, list[str]()
        for place, item in enumerate(sorted(items)):
            if items[place] != item:
                turns.append(f"{place + 1} {items.index(item) + 1}")
                items = self.exchanged(items, turns[-1])
        return tuple(turns)


def in_order(items: Sequence[int]) -> bool:
    """Return whether items rise."""
    return list(items) == sorted(items)


def last_list(text: str) -> list[int] | None:
    """Return the list of a text's end, such as "Now: [3, 4]"."""
    found = re.search(r"Now: (\[[0-9, ]*\])\Z", text.strip())
    return None if found is None else list(ast.literal_eval(found[1]))


class Vault(Environment[str]):
    """A dialogue: find a code of different digits; the environment counts what is right."""

    max_turns = 10
    max_new_tokens = 12
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[str]:
        rng, count = key.rng(), 4 + round(key.level)
        while True:
            code = "".join(rng.sample("12345678", count))
            if held_out(code) == (key.split == "eval"):
                rules = "I say how many digits are in their place, and how many elsewhere."
                prompt = f"Open a lock of {count} different digits from 1 to 8. {rules}"
                asked = f"{prompt} Reply with {count} digits."
                return Task(key, (Message("user", asked),), code)

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        text = messages[-1].content.strip()
        if text == task.data:
            return None
        return (Message("user", self.counted(task.data, text)),)

    def counted(self, code: str, text: str) -> str:
        if len(text) != len(code) or not set(text) <= set("12345678"):
            return f"Reply with {len(code)} digits from 1 to 8."
        placed = sum(one == two for one, two in zip(code, text, strict=True))
        return f"In place: {placed}. Elsewhere: {len(set(code) & set(text)) - placed}."

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return self.judged(rollout.text.strip() == task.data, rollout.text)

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text[:20])

    def reference(self, task: Task[str]) -> Any:
        return "12345678"[: len(task.data)], task.data


class Recheck(TrainArrival):
    """A dialogue of two turns, of which the last one counts."""

    max_turns = 2

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = sum(message.role == "assistant" for message in messages)
        return (Message("user", self.doubt(task, messages[-1].content)),) if said == 1 else None

    def doubt(self, task: Task[Any], text: str) -> str:
        return "Check it, and reply with the time again."


PEOPLE = coined_words(random.Random("people"), 150, 3)
NUMBERS = dict(zip(PEOPLE, random.Random("numbers").sample(range(1000, 9999), 150), strict=True))
MOTHERS = dict(zip(PEOPLE, [*PEOPLE[7:], *PEOPLE[:7]], strict=True))


class Registry(Posed):
    """A task with two tools, which know people's numbers and their mothers."""

    max_turns = 6
    rules = "Reply with the sum only, as a number."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        one, two = rng.sample(PEOPLE, 2)
        up = 1 + round(level)
        relative = "mother" if up == 1 else "mother's mother"
        asked = f"Add the registered numbers of the {relative} of {one} and that of {two}."
        return asked, {"asked": [one, two], "up": up, "total": sum(self.numbers([one, two], up))}

    def numbers(self, names: Sequence[str], up: int) -> list[int]:
        for _ in range(up):
            names = [MOTHERS[name] for name in names]
        return [NUMBERS[name] for name in names]

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.number, self.mother)

    def number(self, name: str) -> object:
        """Return the registered number of a person."""
        return NUMBERS[known(name)]

    def mother(self, name: str) -> object:
        """Return the name of a person's mother."""
        return MOTHERS[known(name)]

    def accepts(self, right: Any, text: str) -> bool:
        return bool(parse_integer(text, max_digits=9) == right["total"])

    def reference(self, task: Task[Any]) -> Any:
        names, turns = task.data["asked"], list[str]()
        for _ in range(task.data["up"]):
            turns.append(called(*({"name": name} for name in names), name="mother"))
            names = [MOTHERS[name] for name in names]
        turns.append(called(*({"name": name} for name in names), name="number"))
        return *turns, str(task.data["total"])


def known(name: str) -> str:
    """Return a name that is in the register."""
    if name not in NUMBERS:
        raise ValueError("there is nobody of that name")
    return name


def settings3(reward: str = "exact", **others: Any) -> Config:
    """Return the settings for the rows of this part; `reward` may name a function of it."""
    own = reward not in ("exact", "number")
    plain = {"system": "Reply with the answer only.", "tag": ""} if own else {}
    return Config(
        path=str(ROWS), reward=f"{REWARDS}:{reward}" if own else reward, **{**plain, **others}
    )
