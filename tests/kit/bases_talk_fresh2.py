"""Sound environments of the second fresh part, for answers, dialogues, tools and rows."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any, ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_integer, parse_json
from grpo_core.protocol.tools import answers
from grpo_env_dataset.env import Config, Dataset

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
HEADINGS = ("north", "east", "south", "west")
STEPS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
ROWS = Path(__file__).with_name("rows_fresh2.jsonl")
REWARDS = Path(__file__).with_name("rewards_fresh2.py")


def coined(rng: random.Random, count: int) -> str:
    """Return an invented word of `count` syllables."""
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(count))


def coined_words(rng: random.Random, number: int, count: int) -> list[str]:
    """Return different invented words of `count` syllables."""
    words: dict[str, None] = {}
    while len(words) < number:
        words[coined(rng, count)] = None
    return list(words)


class Posed(Environment[Any]):
    """One question, whose content decides the split, and one answer that is read as a whole."""

    timeout_seconds = 2.0
    rules: ClassVar[str] = ""

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            asked, data = self.drawn(rng, key.level)
            if asked and held_out(asked) == (key.split == "eval"):
                return self.posed(key, asked, data)

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        """Return what is asked, "" if it is no good, and the right answer."""
        raise NotImplementedError

    def posed(self, key: TaskKey, asked: str, data: Any) -> Task[Any]:
        return Task(key, (Message("user", f"{asked} {self.rules}"),), data)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return self.judged(self.accepts(task.data, rollout.text), rollout.text)

    def accepts(self, right: Any, text: str) -> bool:
        read = self.read(text)
        return read is not None and bool(read == right)

    def read(self, text: str) -> Any:
        return text.strip()

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text.strip()[:100])

    def reference(self, task: Task[Any]) -> Any:
        return self.written(task.data)

    def written(self, data: Any) -> str:
        return str(data)


class Ledger(Posed):
    """The balance of an account, in a line of its own form."""

    rules = "Reply with one line: Balance: N"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        bookings = [rng.choice((-1, 1)) * rng.randint(11, 999) for _ in range(4 + round(4 * level))]
        listed = ", ".join(f"{booking:+}" for booking in bookings)
        return f"An account was empty. Booked: {listed}. What is its balance?", sum(bookings)

    def read(self, text: str) -> int | None:
        label, _, number = text.strip().partition("Balance:")
        return None if label else parse_integer(number)

    def written(self, data: int) -> str:
        return f"Balance: {data}"


class Blend(Posed):
    """The mean of some colours, as a hexadecimal code."""

    rules = "Reply with its code only, # and six digits in lower case."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        colours = [[rng.randrange(256) for _ in range(3)] for _ in range(2 + round(2 * level))]
        mean = [sum(channel) // len(colours) for channel in zip(*colours, strict=True)]
        listed = " and ".join(map(self.code, colours))
        return f"Mix {listed} in equal parts, rounding each channel down.", self.code(mean)

    def code(self, channels: Sequence[int]) -> str:
        return "#" + bytes(channels).hex()


class Ranking(Posed):
    """Towns in the order of their heights."""

    rules = "Reply with the names only, the lowest first, as in: x < y < z"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        count = 4 + round(3 * level)
        names = coined_words(rng, count, 3)
        heights = rng.sample(range(20, 3000), count)
        listed = ", ".join(
            f"{name} {height} m" for name, height in zip(names, heights, strict=True)
        )
        right = sorted(names, key=dict(zip(names, heights, strict=True)).__getitem__)
        return ("" if right == names else f"Order these towns by height: {listed}."), right

    def read(self, text: str) -> Any:
        return [name.strip() for name in text.split("<")]

    def written(self, data: list[str]) -> str:
        return " < ".join(data)


class Stroll(Posed):
    """Where a walk ends, as a pair of coordinates."""

    rules = "Reply with the coordinates only, as (x, y)."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        legs = [(rng.randint(2, 60), rng.choice(HEADINGS)) for _ in range(4 + round(5 * level))]
        x = sum(many * STEPS[heading][0] for many, heading in legs)
        y = sum(many * STEPS[heading][1] for many, heading in legs)
        listed = ", ".join(f"{many} {heading}" for many, heading in legs)
        return f"Start at (0, 0); x counts east, y north. Walk {listed}. Where are you?", (x, y)

    def read(self, text: str) -> Any:
        found = re.fullmatch(r"\((-?[0-9]{1,6}), ?(-?[0-9]{1,6})\)", text.strip())
        return None if found is None else (int(found[1]), int(found[2]))

    def written(self, data: tuple[int, int]) -> str:
        return f"({data[0]}, {data[1]})"


class Depot(Posed):
    """What is left in a store, as a JSON object."""

    rules = "Reply with a JSON object of what is there now: names and numbers."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        names = coined_words(rng, 3 + round(2 * level), 2)
        stock = {name: rng.randint(20, 90) for name in names}
        lines = [f"{number} {name}" for name, number in stock.items()]
        for name in rng.choices(names, k=3 + round(3 * level)):
            change = rng.choice((-1, 1)) * rng.randint(1, 15)
            stock[name] += change
            lines.append(f"{'in' if change > 0 else 'out'}: {abs(change)} {name}")
        fine = all(number > 0 for number in stock.values())
        return f"A store holds {'; '.join(lines)}." if fine else "", stock

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=1000)
        return None if value is None else value.value

    def accepts(self, right: Any, text: str) -> bool:
        return self.written(self.read(text)) == self.written(right)

    def written(self, data: Any) -> str:
        return json.dumps(data, sort_keys=True)


class Parcel(Posed):
    """Whether a parcel fits into a box, yes or no, each of them in half of the tasks."""

    rules = "It may be turned, edges parallel. Reply with yes or no."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        fits, top = rng.random() < 0.5, 30 + round(90 * level)
        while True:
            parcel, box = ([rng.randint(5, top) for _ in range(3)] for _ in range(2))
            pairs = zip(sorted(parcel), sorted(box), strict=True)
            if all(one <= other for one, other in pairs) == fits:
                sizes = (" x ".join(map(str, sides)) for sides in (parcel, box))
                asked = "A parcel of {} cm, a box of {} cm: does it fit?".format(*sizes)
                return asked, "yes" if fits else "no"


class Thirds(Posed):
    """The sum of two fractions, in lowest terms."""

    rules = "Reply with a fraction in lowest terms only, as in 7/12."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        top = 30 + round(60 * level)
        one, two = (Fraction(rng.randint(1, top), rng.randint(2, top)) for _ in range(2))
        both = one + two
        fine = min(one.denominator, two.denominator, both.denominator) > 1
        return f"What is {one} + {two}?" if fine else "", (both.numerator, both.denominator)

    def read(self, text: str) -> Any:
        above, _, below = text.strip().partition("/")
        pair = (parse_integer(above), parse_integer(below))
        return None if None in pair else pair

    def written(self, data: tuple[int, int]) -> str:
        return f"{data[0]}/{data[1]}"


class Weave(Posed):
    """Two invented words, letter by letter."""

    rules = "Reply with the new word only."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        one, two = coined_words(rng, 2, 3 + round(3 * level))
        woven = "".join(first + second for first, second in zip(one, two, strict=True))
        return f"Take letters in turn, one of {one!r}, then one of {two!r}, to the end.", woven


class Compass(Posed):
    """The direction in which somebody looks after some turns."""

    rules = "In which direction do you look now? Reply with north, east, south or west."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        start = rng.randrange(4)
        turns = [rng.choice((1, 2, 3)) for _ in range(8 + round(6 * level))]
        words = ", ".join({1: "right", 2: "about", 3: "left"}[turn] for turn in turns)
        asked = f"You look {HEADINGS[start]} and turn {words}."
        return asked, HEADINGS[(start + sum(turns)) % 4]


class Subnet(Posed):
    """The network address of an address."""

    rules = "Reply with the network address only."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        lengths = ((8, 16, 24), (12, 20, 28), (11, 13, 18, 21, 23, 26, 29))
        bits, length = rng.getrandbits(32), rng.choice(lengths[round(2 * level)])
        network = bits >> (32 - length) << (32 - length)
        fine = bits != network and bits >> 24
        asked = f"To which network does {dotted(bits)}/{length} belong?" if fine else ""
        return asked, dotted(network)


def dotted(bits: int) -> str:
    """Return an address of 32 bits as four numbers."""
    return ".".join(map(str, bits.to_bytes(4, "big")))


class Treasure(Environment[tuple[int, int]]):
    """A dialogue: find a cell of a field; the environment names the direction."""

    max_turns = 8
    max_new_tokens = 12
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[tuple[int, int]]:
        rng, size = key.rng(), 40 + round(40 * key.level)
        while True:
            x, y = rng.randint(1, size), rng.randint(1, size)
            if held_out(f"{size} {x} {y}") == (key.split == "eval"):
                asked = f"A treasure lies in a field of {size} by {size} cells, (1, 1) southwest."
                prompt = f"{asked} Guess its cell: reply with two numbers, as in 3 5."
                return Task(key, (Message("user", prompt),), (x, y))

    async def reply(
        self, task: Task[tuple[int, int]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        guess = self.guessed(messages[-1].content)
        if guess == task.data:
            return None
        return (Message("user", self.hint(task.data, guess)),)

    def guessed(self, text: str) -> tuple[int, int] | None:
        found = re.fullmatch(r"([0-9]{1,2}) ([0-9]{1,2})", text.strip())
        return None if found is None else (int(found[1]), int(found[2]))

    def hint(self, place: tuple[int, int], guess: tuple[int, int] | None) -> str:
        if guess is None:
            return "Reply with two numbers."
        (x, y), (left, low) = place, guess
        upward = "north" if y > low else "south" if y < low else ""
        return f"It lies {upward}{'east' if x > left else 'west' if x < left else ''} of there."

    def verify(self, task: Task[tuple[int, int]], rollout: Rollout) -> Verdict:
        return self.judged(self.guessed(rollout.text) == task.data, rollout.text)

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text[:20])

    def reference(self, task: Task[tuple[int, int]]) -> Any:
        """Return the turns of two bisections at once."""
        low, high, turns = [1, 1], [80, 80], list[str]()
        while True:
            guess = tuple((one + two) // 2 for one, two in zip(low, high, strict=True))
            turns.append(f"{guess[0]} {guess[1]}")
            if guess == task.data:
                return tuple(turns)
            for axis in (0, 1):
                if guess[axis] <= task.data[axis]:
                    low[axis] = guess[axis] + (guess[axis] < task.data[axis])
                if guess[axis] >= task.data[axis]:
                    high[axis] = guess[axis] - (guess[axis] > task.data[axis])


Piles = tuple[int, ...]


class Stones(Environment[Piles]):
    """A game against the environment: whoever takes the last stone wins."""

    max_turns = 8
    max_new_tokens = 12
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Piles]:
        rng, top = key.rng(), 9 + round(9 * key.level)
        while True:
            piles = tuple(rng.randint(1, top) for _ in range(4))
            if reduce(xor, piles) and held_out(f"{piles}") == (key.split == "eval"):
                return Task(key, (Message("user", self.opening(piles)),), piles)

    def opening(self, piles: Piles) -> str:
        rules = "We take turns; each takes one or more stones from one pile. The last stone wins."
        return f"Piles 1 to 4 hold {list(piles)} stones. {rules} Reply with pile and number: 2 5"

    async def reply(
        self, task: Task[Piles], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        piles = self.after(task, messages)
        if piles is None or not any(piles):
            return None
        pile, number = self.move(task, piles, messages)
        left = list(taken(piles, pile, number))
        return (Message("user", f"I take {number} from pile {pile + 1}. Left: {left}"),)

    def after(self, task: Task[Piles], messages: Sequence[Message]) -> Piles | None:
        """Return the piles after the policy's last move, None if a move was against the rules."""
        piles, earlier = task.data, list[Message]()
        for message in messages:
            earlier.append(message)
            if message.role != "assistant":
                pile, number = self.move(task, piles, earlier[:-1])
                piles = taken(piles, pile, number)
                continue
            mine = self.legal(piles, message.content)
            if mine is None:
                return None
            piles = taken(piles, *mine)
        return piles

    def move(self, task: Task[Piles], piles: Piles, messages: Sequence[Message]) -> tuple[int, int]:
        """Return the environment's move: the best one, or the whole of the largest pile."""
        return best_move(piles)

    def legal(self, piles: Piles, text: str) -> tuple[int, int] | None:
        found = re.fullmatch(r"([1-4]) ([0-9]{1,2})", text.strip())
        if found is None:
            return None
        pile, number = int(found[1]) - 1, int(found[2])
        return (pile, number) if 1 <= number <= piles[pile] else None

    def verify(self, task: Task[Piles], rollout: Rollout) -> Verdict:
        piles = self.after(task, rollout.messages) if rollout.messages else task.data
        return self.judged(piles is not None and not any(piles), rollout.text)

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text[:20])

    def reference(self, task: Task[Piles]) -> Any:
        piles, said = task.data, list[Message]()
        while True:
            pile, number = self.planned(piles)
            said.append(Message("assistant", f"{pile + 1} {number}"))
            piles = taken(piles, pile, number)
            if not any(piles):
                return tuple(message.content for message in said if message.role == "assistant")
            piles = taken(piles, *self.move(task, piles, said))
            said.append(Message("user", ""))

    def planned(self, piles: Piles) -> tuple[int, int]:
        return best_move(piles)


def taken(piles: Piles, pile: int, number: int) -> Piles:
    """Return the piles without `number` stones of one."""
    return tuple(size - number * (place == pile) for place, size in enumerate(piles))


def best_move(piles: Piles) -> tuple[int, int]:
    """Return a winning move (pile, number), or the whole largest pile where there is none."""
    total = reduce(xor, piles)
    for pile, size in enumerate(piles):
        if size ^ total < size:
            return pile, size - (size ^ total)
    return piles.index(max(piles)), max(piles)


class Till(Environment[list[int]]):
    """A dialogue: amounts are named one after the other, and each reply is the total so far."""

    max_turns = 4
    max_new_tokens = 12
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[list[int]]:
        rng, top = key.rng(), 300 + round(900 * key.level)
        while True:
            amounts = [rng.randint(11, top) for _ in range(5)]
            if held_out(f"{amounts[:2]}") == (key.split == "eval"):
                begun = f"The first amounts are {amounts[0]} and {amounts[1]}."
                prompt = f"{begun} Reply with the total so far, a number only, after each message."
                return Task(key, (Message("user", prompt),), amounts)

    async def reply(
        self, task: Task[list[int]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        said = sum(message.role == "assistant" for message in messages)
        return (Message("user", self.next(task.data, said)),) if said < 4 else None

    def next(self, amounts: list[int], said: int) -> str:
        return f"And {amounts[said + 1]}."

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        said = [turn.content for turn in rollout.messages if turn.role == "assistant"]
        right = [parse_integer(text) for text in said] == totals(task.data)
        return self.judged(right, rollout.text)

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text[:20])

    def reference(self, task: Task[list[int]]) -> Any:
        return tuple(map(str, totals(task.data)))


def totals(amounts: list[int]) -> list[int]:
    """Return the right replies: the total of the first two, three, ... amounts."""
    return [sum(amounts[:count]) for count in range(2, len(amounts) + 1)]


TOWNS = coined_words(random.Random("towns"), 14, 3)


def far(start: str, end: str) -> int:
    """Return the distance between two towns, in km."""
    one, two = sorted((TOWNS.index(start), TOWNS.index(end)))
    return 17 + (one * 37 + two * 53 + one * two * 11) % 211 if one != two else 0


class Atlas(Posed):
    """A task with a tool: the distances are known to it only."""

    max_turns = 4
    rules = "Reply with the kilometres only, as a number."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        stops, times = rng.sample(TOWNS, 3 + round(2 * level)), rng.randint(12, 99)
        length = sum(far(*pair) for pair in itertools.pairwise(stops))
        return f"A driver goes {' - '.join(stops)}, {times} times. How far is it?", times * length

    def read(self, text: str) -> int | None:
        return parse_integer(text, max_digits=9)

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.distance,)

    def distance(self, start: str, end: str) -> int:
        """Return the distance between two towns in km."""
        if start not in TOWNS or end not in TOWNS:
            raise ValueError("there is no such town")
        return far(start, end)


class Shelves(Posed):
    """A task with a tool that knows it: how much lies on a shelf."""

    max_turns = 4
    max_new_tokens = 512
    rules = "Reply with the number only."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        order, count = rng.randint(10_000, 99_999), 2 + round(3 * level)
        asked = sorted(rng.sample(range(1, 21), count))
        boxes = [random.Random(f"{order} {shelf}").randint(30, 400) for shelf in range(1, 21)]
        total = sum(boxes[shelf - 1] for shelf in asked)
        listed = " and ".join(map(str, asked))
        question = f"Order {order}: how many boxes lie on the shelves {listed} together?"
        return question, {"boxes": boxes, "asked": asked, "total": total}

    def tools(self) -> Sequence[Callable[..., object]]:
        return (count,)

    def known(self, task: Task[Any]) -> Sequence[Callable[..., object]]:
        """Return the tools that know the task."""

        def count(shelf: int) -> int:
            boxes: list[int] = task.data["boxes"]
            if not 1 <= shelf <= len(boxes):
                raise ValueError("the shelves have the numbers from 1 to 20")
            return boxes[shelf - 1]

        return (count,)

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        return answers(self.known(task), messages[-1].content)

    def accepts(self, right: Any, text: str) -> bool:
        return bool(parse_integer(text, max_digits=9) == right["total"])

    def reference(self, task: Task[Any]) -> Any:
        return called(*({"shelf": shelf} for shelf in task.data["asked"])), str(task.data["total"])


def count(shelf: int) -> int:
    """Return how many boxes lie on a shelf, by its number."""
    raise NotImplementedError  # reply() answers


def called(*arguments: dict[str, Any], name: str = "count") -> str:
    """Return a turn with calls of a tool."""
    calls = ({"name": name, "arguments": each} for each in arguments)
    return "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


class Rows(Dataset):
    """Rows of a file of the bundled environment's form."""

    timeout_seconds = 2.0


def settings(reward: str = "exact", **others: Any) -> Config:
    """Return the settings for the rows of this part; `reward` may name a function of it."""
    own = reward not in ("exact", "number")
    plain = {"system": "Reply with the answer only.", "tag": ""} if own else {}
    return Config(
        path=str(ROWS), reward=f"{REWARDS}:{reward}" if own else reward, **{**plain, **others}
    )
