"""Sound environments from which the fresh half is made by changing one thing."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FOODS = ("bread", "butter", "cheese", "coffee", "eggs", "flour", "honey", "milk", "olives", "rice")
PRICES = {"anvil": 731, "bellows": 212, "chisel": 94, "drill": 387, "etau": 168, "file": 59}


def kept_back(*parts: object) -> bool:
    """Return whether content is held out; the order and the case of its parts do not matter."""
    text = " ".join(sorted(re.findall(r"\w+", str(parts).lower())))
    return hashlib.sha256(text.encode()).digest()[0] % 5 == 0


def scrambled(rng: random.Random, length: int) -> str:
    """Return random letters."""
    return "".join(rng.choices(LETTERS, k=length))


class Asks(Environment[str]):
    """Asks for one text: a subclass says what is drawn, how it is asked, and what is right."""

    timeout_seconds = 2.0
    max_new_tokens = 64

    def task(self, key: TaskKey) -> Task[str]:
        return self.made(key, self.chosen(key, self.generator(key)))

    def generator(self, key: TaskKey) -> random.Random:
        return key.rng()

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        """Return content of the split."""
        while True:
            content = self.content(key, rng)
            if kept_back(*content) == (key.split == "eval"):
                return content

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        raise NotImplementedError

    def question(self, *content: Any) -> str:
        raise NotImplementedError

    def solution(self, *content: Any) -> str:
        raise NotImplementedError

    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        prompt = (Message("user", self.question(*content)),)
        return Task(key, prompt, self.solution(*content))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return self.paid(rollout.text.strip() == task.data, rollout.text)

    def paid(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text.strip()[:80])

    def reference(self, task: Task[str]) -> Any:
        return task.data


class Arrival(Asks):
    """When does a train arrive? Longer journeys, over midnight, at higher levels."""

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        longest = 50 + round(3000 * key.level)
        minutes = rng.randrange(11 + longest // 3, 11 + longest)
        return (rng.randrange(24 * 60), minutes + (minutes % 1440 == 0))

    def question(self, *content: Any) -> str:
        start, minutes = content
        left = f"{start // 60:02}:{start % 60:02}"
        return f"A train leaves at {left} and takes {minutes} minutes. Reply with hh:mm of arrival."

    def solution(self, *content: Any) -> str:
        end = sum(content) % (24 * 60)
        return f"{end // 60:02}:{end % 60:02}"


class Basket(Asks):
    """What does a basket cost, in cents? More items at higher levels."""

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        foods = rng.sample(FOODS, 2 + round(6 * key.level))
        return tuple((food, rng.randrange(105, 995)) for food in foods)

    def question(self, *content: Any) -> str:
        lines = "\n".join(f"{food} {cents}" for food, cents in content)
        return f"Prices in cents:\n{lines}\nReply with the sum and nothing else."

    def solution(self, *content: Any) -> str:
        return str(sum(cents for _, cents in content))


class Shifted(Asks):
    """Decode a Caesar cipher; longer texts at higher levels."""

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (scrambled(rng, 5 + round(10 * key.level)), rng.randrange(2, 12))

    def question(self, *content: Any) -> str:
        word, steps = content
        coded = "".join(LETTERS[(LETTERS.index(letter) + steps) % 26] for letter in word)
        return f"Each letter was moved {steps} places on in the alphabet: {coded}. Decode it."

    def solution(self, *content: Any) -> str:
        return str(content[0])


class Binary(Asks):
    """Which number is it? More bits at higher levels."""

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        bits = 11 + round(10 * key.level)
        return (rng.randrange(2 ** (bits - 1), 2**bits),)

    def question(self, *content: Any) -> str:
        return f"Write the binary number {content[0]:b} in decimal, digits only."

    def solution(self, *content: Any) -> str:
        return str(content[0])


class Initials(Asks):
    """Which word do the first letters make? More words at higher levels."""

    words: ClassVar[Sequence[str]] = (
        *("apple", "bridge", "candle", "desert", "engine", "forest", "garden", "hammer"),
        *("island", "jacket", "kettle", "ladder", "mirror", "needle", "orange", "pencil"),
        *("quarry", "river", "saddle", "timber", "umbrella", "valley", "window", "yellow"),
    )

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple(rng.sample(self.words, 4 + round(6 * key.level)))

    def question(self, *content: Any) -> str:
        return f"Join the first letters of these words: {' '.join(content)}"

    def solution(self, *content: Any) -> str:
        return "".join(word[0] for word in content)


class Ladder(Asks):
    """A dialogue: find a hidden number in a range that the prompt names, by asking "above N?"."""

    max_turns = 12
    max_new_tokens = 16

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            content = self.content(key, rng)
            if kept_back(*content[:2]) == (key.split == "eval"):  # what the prompt tells
                return content

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        low = rng.randrange(100, 5000)
        high = low + 20 + round(200 * key.level)
        return (low, high, rng.randrange(low + 1, high))

    def question(self, *content: Any) -> str:
        low, high, _ = content
        return f"Find my number between {low} and {high}: ask 'above N?', or state it alone."

    def solution(self, *content: Any) -> str:
        return str(content[2])

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        return self.response(task, messages[-1].content.strip())

    def response(self, task: Task[str], said: str) -> Sequence[Message] | None:
        if said.isdecimal():
            return None
        number = said.removeprefix("above ").removesuffix("?")
        if len(number) > 6 or not (number.isascii() and number.isdecimal()):
            return (Message("user", "Ask 'above N?', or state the number."),)
        return (Message("user", "yes" if int(task.data) > int(number) else "no"),)

    def reference(self, task: Task[str]) -> Any:
        number = int(task.data)
        return (f"above {number - 3}?", f"above {number + 2}?", task.data)


class Rooms(Environment[dict[str, Any]]):
    """A dialogue: walk on a grid from a start to a goal, both of which are told."""

    max_turns = 14
    max_new_tokens = 8
    timeout_seconds = 2.0
    steps: ClassVar[dict[str, tuple[int, int]]] = {
        "north": (0, 1),
        "south": (0, -1),
        "east": (1, 0),
        "west": (-1, 0),
    }

    def task(self, key: TaskKey) -> Task[dict[str, Any]]:
        rng, far = key.rng(), 3 + round(3 * key.level)
        while True:
            start, goal = (rng.randrange(90), rng.randrange(90)), (0, 0)
            goal = (start[0] + rng.choice((-far, far)), start[1] + rng.choice((-far, far)))
            if kept_back(start, goal) == (key.split == "eval"):
                break
        text = f"You are at {start}; go to {goal}. Each turn is north, south, east or west."
        return Task(key, (Message("user", text),), {"start": start, "goal": goal})

    async def reply(
        self, task: Task[dict[str, Any]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        x, y = self.place(task, messages)
        if (x, y) == task.data["goal"]:
            return None
        return (Message("user", self.news(messages[-1].content, x, y)),)

    def place(self, task: Task[Any], messages: Sequence[Message]) -> tuple[int, int]:
        x, y = task.data["start"]
        for message in messages:
            if message.role == "assistant":
                east, north = self.step(message.content)
                x, y = x + east, y + north
        return x, y

    def step(self, text: str) -> tuple[int, int]:
        return self.steps.get(text.strip(), (0, 0))

    def news(self, said: str, x: int, y: int) -> str:
        return f"You are at {x}, {y}." if said.strip() in self.steps else "That is no direction."

    def verify(self, task: Task[dict[str, Any]], rollout: Rollout) -> Verdict:
        there = self.place(task, rollout.messages) == task.data["goal"]
        return Verdict({"reward": Reward(float(there))}, passed=there, answer=rollout.text[:20])

    def reference(self, task: Task[dict[str, Any]]) -> Any:
        (x, y), (goal_x, goal_y) = task.data["start"], task.data["goal"]
        along = ["east" if goal_x > x else "west"] * abs(goal_x - x)
        return along + ["north" if goal_y > y else "south"] * abs(goal_y - y)


class Shop(Asks):
    """What does an order cost? The prices are known to a tool only."""

    max_turns = 6
    levels = False

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return tuple((thing, rng.randrange(3, 60)) for thing in rng.sample(sorted(PRICES), 2))

    def question(self, *content: Any) -> str:
        order = " and ".join(f"{count} of {thing}" for thing, count in content)
        return f"What does an order of {order} cost? Ask the tools; reply with digits only."

    def solution(self, *content: Any) -> str:
        return str(sum(PRICES[thing] * count for thing, count in content))

    def tools(self) -> Sequence[Callable[..., object]]:
        return (price,)


def price(thing: str) -> int:
    """Return the price of one thing."""
    return PRICES[thing]
