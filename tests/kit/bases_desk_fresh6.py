"""Sound environments of the sixth fresh part: questions."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_json, xml_tag

SPACE = " \t\r\n"


class Desk(Environment[Any]):
    """A question with data, by which what was said last is marked."""

    timeout_seconds = 2.0
    max_new_tokens = 120

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            words, data = self.posed(rng, key.level)
            if held_out(words) == (key.split == "eval"):
                return Task(key, (Message("user", words),), data)

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        """Return the words of a question, and the data of its task."""
        raise NotImplementedError

    def answer(self, data: Any) -> str:
        """Return what a policy would best say at the end."""
        raise NotImplementedError

    def marks(self, data: Any, text: str) -> float:
        """Return what a text earns; 1.0 is right."""
        return float(text.strip(SPACE) == self.answer(data))

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return marked(self.marks(task.data, rollout.text), rollout.text)

    def reference(self, task: Task[Any]) -> Any:
        return self.answer(task.data)


def marked(marks: float, text: str) -> Verdict:
    """Return the verdict of a text with these marks."""
    return Verdict({"reward": Reward(marks)}, passed=marks == 1.0, answer=text.strip()[:80])


MEMBERS = (
    *("Ada", "Ben", "Cleo", "Dov", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon", "Kim", "Lou", "Mia"),
    *("Ned", "Ola", "Pia", "Quin", "Ray", "Sue", "Tom", "Una", "Vic", "Wyn", "Xia", "Yan", "Zoe"),
)


class Transfers(Desk):
    """What is in some accounts after transfers? The answer is a JSON list of numbers."""

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        names = sorted(rng.sample(MEMBERS, 3 + round(3 * level)))
        held = {name: rng.randint(200, 900) for name in names}
        told = ", ".join(f"{name} has {euros}" for name, euros in held.items())
        moves = list[str]()
        for _ in range(3 + round(4 * level)):
            giver, taker = rng.sample(names, 2)
            euros = rng.randint(11, 99)
            held[giver] -= euros
            held[taker] += euros
            moves.append(f"{giver} pays {taker} {euros}")
        words = (
            f"In euros, {told}. Then {', '.join(moves)}. What do they have in the end? Reply with "
            "a JSON list of numbers only, in the order of the alphabet: [310, 42]"
        )
        return words, list(held.values())

    def answer(self, data: Any) -> str:
        return str(data)

    def marks(self, data: Any, text: str) -> float:
        return float(self.read(text) == data)

    def read(self, text: str) -> Any:
        found = parse_json(text, max_chars=2000)
        fits = found is not None and isinstance(found.value, list)
        if found is None or not fits or any(type(item) is not int for item in found.value):
            return None
        return found.value


class Votes(Desk):
    """Who has the most votes? The answer is a name in a block; the alphabet breaks a tie."""

    answer_in_prompt = True

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        names = rng.sample(MEMBERS, 4 + round(2 * level))
        votes = [rng.choice(names) for _ in range(9 + round(8 * level))]
        words = (
            f"The votes are: {', '.join(votes)}. Who is elected? If several have the most votes, it "
            "is the first of them by the alphabet. End with the name, as in <elected>Bo</elected>."
        )
        return words, votes

    def answer(self, data: Any) -> str:
        return f"<elected>{self.elected(data)}</elected>"

    def elected(self, votes: Sequence[str]) -> str:
        return max(sorted(set(votes)), key=votes.count)

    def marks(self, data: Any, text: str) -> float:
        block = xml_tag(text, tag="elected")
        if block is None or text[block.end :].strip(SPACE):
            return 0.0
        return float(block.content.strip(SPACE) == self.elected(data))


SLICE = re.compile(r"\[([0-9]{1,3}):([0-9]{1,3}):([1-9][0-9]{0,2})\]", re.ASCII)
LENGTHS = range(1, 90)


class Slices(Desk):
    """Which slice takes certain items of any list? The answer is a piece of code."""

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        first, step, count = rng.randint(2, 15), rng.randint(2, 9), 3 + round(4 * level)
        places = list(range(first, first + step * count, step))
        words = (
            f"Which slice takes the items {', '.join(map(str, places))} of every list that has "
            "them, counted from 0, and no other ones? It ends right after the last of them. Reply with "
            "the slice alone: [first:end:step]"
        )
        return words, places

    def answer(self, data: Any) -> str:
        return f"[{data[0]}:{data[-1] + 1}:{data[1] - data[0]}]"

    def marks(self, data: Any, text: str) -> float:
        taken = self.taken(text)
        if taken is None:
            return 0.0
        lengths = [length for length in self.lengths() if length > data[0]]
        share = [self.common({n for n in data if n < length}, length, taken) for length in lengths]
        right = text.strip(SPACE) == self.answer(data)
        return 1.0 if right else round(0.3 * sum(share) / len(share), 6)

    def common(self, wanted: set[int], length: int, taken: slice) -> float:
        """Return the share of the items, wanted or taken, that are both."""
        items = set(range(length)[taken])
        return len(wanted & items) / len(wanted | items)

    def lengths(self) -> Sequence[int]:
        """Return the lengths of the lists on which a slice is tried."""
        return LENGTHS

    def taken(self, text: str) -> slice | None:
        found = SLICE.fullmatch(text.strip(SPACE))
        return None if found is None else slice(*map(int, found.groups()))


def double(number: int) -> int:
    return 2 * number


def mirror(number: int) -> int:
    return int(str(number)[::-1])


def digits(number: int) -> int:
    return number + sum(map(int, str(number)))


def shrink(number: int) -> int:
    return number // 3


def square(number: int) -> int:
    return number * number % 1000


STEPS: dict[Callable[[int], int], str] = {
    double: "twice the number",
    mirror: "its digits backwards",
    digits: "the number and all of its digits together",
    shrink: "a third of it, rounded down",
    square: "the last three digits of its square",
}


class Registers(Desk):
    """What do some steps make of a number? The answer is in the last line."""

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        number = start = rng.randint(1000, 9999)
        steps = [rng.choice(list(STEPS)) for _ in range(3 + round(4 * level))]
        for step in steps:
            number = step(number)
        if number < 10:
            return self.posed(rng, level)
        rules = "; ".join(f"{step.__name__}: {rule}" for step, rule in STEPS.items())
        words = (
            f"The steps are {rules}. Begin with {start} and do: {self.listed(steps)}. What is the "
            "result? End with a line such as: Result: 420"
        )
        return words, number

    def listed(self, steps: Sequence[Callable[[int], int]]) -> str:
        return ", ".join(step.__name__ for step in steps)

    def answer(self, data: Any) -> str:
        return f"Result: {data}"

    def marks(self, data: Any, text: str) -> float:
        return float(text.strip(SPACE).rpartition("\n")[2].strip(SPACE) == self.answer(data))


class Change(Desk):
    """In how many ways can an amount be paid? The answer is a number."""

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        coins = sorted(rng.sample(range(3, 60), 3 + round(level)))
        amount = rng.randint(3000, 4000 + round(2000 * level))
        if self.ways(amount, coins)[amount] < 100:
            return self.posed(rng, level)
        words = (
            f"There are stamps of {', '.join(map(str, coins))} ct, any number of each. With how "
            f"many sets of stamps can exactly {amount} ct be paid? Reply with the number only."
        )
        return words, {"coins": coins, "amount": amount}

    def ways(self, amount: int, coins: Sequence[int]) -> list[int]:
        """Return in how many ways each amount up to this one can be paid."""
        table = [1] + [0] * amount
        for coin in coins:
            for total in range(coin, amount + 1):
                table[total] += table[total - coin]
        return table

    def answer(self, data: Any) -> str:
        return str(self.ways(data["amount"], data["coins"])[data["amount"]])
