"""Sound environments of the fourth fresh part: questions and dialogues."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_integer, parse_json, xml_tag


class Asked(Environment[Any]):
    """One question, one answer; the words of the question decide the split."""

    rules: ClassVar[str] = ""
    max_new_tokens = 96
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Any]:
        question, data = self.chosen(key, key.rng())
        return Task(key, (Message("user", f"{question}\n{self.rules}"),), data)

    def chosen(self, key: TaskKey, rng: random.Random) -> tuple[str, Any]:
        """Return a question that belongs to the split, and what the verifier needs."""
        while True:
            question, data = self.drawn(rng, key.level)
            if held_out(question) == (key.split == "eval"):
                return question, data

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        raise NotImplementedError

    def accepts(self, data: Any, text: str) -> bool:
        return text.strip() == self.written(data)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return self.judged(self.accepts(task.data, rollout.text), rollout.text)

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text.strip()[:60])

    def written(self, data: Any) -> str:
        return str(data)

    def reference(self, task: Task[Any]) -> Any:
        return self.written(task.data)


class Resistors(Asked):
    """The resistance of a chain, as a number with its unit."""

    rules = "They are in series. Reply with the whole resistance in ohm only, as in: 4700 ohm"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        total, told = 0, list[str]()
        for _ in range(3 + round(5 * level)):
            if rng.random() < 0.5:
                tenths = rng.randint(11, 99)
                total, told = total + 100 * tenths, [*told, f"{tenths / 10} kohm"]
            else:
                ohms = rng.randint(11, 999)
                total, told = total + ohms, [*told, f"{ohms} ohm"]
        return f"The resistors of a circuit are {', '.join(told)}.", total

    def written(self, data: Any) -> str:
        return f"{data} ohm"


class Registers(Asked):
    """What a short program leaves in a register, as a number in a block."""

    rules = "What is in r0 at the end? Think as you like, and end with <r0>number</r0>."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        cells = [rng.randint(101, 999), rng.randint(11, 99)]
        lines = [f"mov r0, {cells[0]}", f"mov r1, {cells[1]}"]
        for step in range(3 + round(7 * level)):
            word, into, other = rng.choice(("add", "sub")), step % 2, (step + 1) % 2
            cells[into] += cells[other] if word == "add" else -cells[other]
            lines.append(f"{word} r{into}, r{other}")
            add = rng.randint(3, 97)
            cells[0] += add
            lines.append(f"add r0, {add}")
        return "\n".join(lines), cells[0]

    def accepts(self, data: Any, text: str) -> bool:
        block = xml_tag(text, tag="r0")
        if block is None or text[block.end :].strip():
            return False
        return parse_integer(block.content, max_digits=9) == int(data)

    def written(self, data: Any) -> str:
        return f"<r0>{data}</r0>"


GUESTS = (
    *("Aino", "Bela", "Ciro", "Dina", "Emil", "Fleur", "Gero", "Hanna", "Ilja", "Jonna", "Kaya"),
    *("Levi", "Malin", "Nuri", "Olga", "Piet", "Rosa", "Stella", "Timur", "Ulla", "Viggo", "Wanda"),
)


class Seats(Asked):
    """Who sits where in a row, as a JSON list of names."""

    rules = (
        "Who sits where? Reply with the names from left to right as a JSON list of strings only."
    )

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        row = rng.sample(GUESTS, 5 + round(2 * level))
        return f"{len(row)} guests sit in a row. {self.told(rng, row)}", row

    def told(self, rng: random.Random, row: Sequence[str]) -> str:
        clues = [f"{right} sits directly right of {left}." for left, right in pairwise(row)]
        return " ".join(rng.sample(clues, len(clues)))

    def accepts(self, data: Any, text: str) -> bool:
        found = parse_json(text, max_chars=1000)
        return found is not None and bool(found.value == data)

    def written(self, data: Any) -> str:
        return json.dumps(data)


class Batch(Asked):
    """How much flour an order takes; the last line of the reply counts."""

    rules = "How much flour is that? Work it out, and end with a last line such as: Flour: 4500 g"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        total, told = 0, []
        for bread in rng.sample(("rye loaves", "rolls", "baguettes", "plaits", "buns"), 3):
            count, grams = rng.randint(2, 9 + round(90 * level)), rng.randint(41, 799)
            total += count * grams
            told.append(f"{count} {bread} with {grams} g of flour each")
        return f"A bakery makes {', '.join(told)}.", total

    def accepts(self, data: Any, text: str) -> bool:
        lines = text.strip().splitlines()
        return bool(lines) and lines[-1].strip() == self.written(data)

    def written(self, data: Any) -> str:
        return f"Flour: {data} g"


class Heaviest(Asked):
    """Which of twelve loads is the heaviest? The answer is its letter."""

    rules = "Which load is the heaviest? Reply with its letter only."
    max_new_tokens = 8

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        letters, hard = "ABCDEFGHIJKL", 2 + round(7 * level)
        loads = [(rng.randint(2, 9 * hard), rng.randint(11, 99)) for _ in letters]
        weights = [count * each for count, each in loads]
        told = "\n".join(
            f"{letter}: {count} crates of {each} kg"
            for letter, (count, each) in zip(letters, loads, strict=True)
        )
        if weights.count(max(weights)) > 1:
            return self.drawn(rng, level)
        return told, letters[weights.index(max(weights))]


class Strand(Asked):
    """The other strand of a piece of DNA, as text."""

    rules = "Reply with the complementary strand, read backwards, in capitals and nothing else."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        strand = "".join(rng.choice("ACGT") for _ in range(10 + round(14 * level)))
        other = strand.translate(str.maketrans("ACGT", "TGCA"))[::-1]
        return (f"A strand of DNA reads {strand}.", other)


class LampChain(Environment[int]):
    """A dialogue: find the broken lamp of a chain by measuring parts of it."""

    max_turns = 14
    max_new_tokens = 24
    timeout_seconds = 2.0
    rules = (
        "Measure a part of it by: test 1-40. I say whether the broken one is there. "
        "When you know it, end by: lamp 17"
    )

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        while True:
            count = rng.randint(200, 1200 + round(3000 * key.level))
            broken = rng.randint(1, count)
            if held_out(f"{count} lamps") == (key.split == "eval"):
                asked = f"One of {count} lamps in a chain is broken. {self.rules}"
                return Task(key, (Message("user", asked),), broken)

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = self.answered(task, messages[-1].content.strip())
        return None if said is None else (Message("user", said),)

    def answered(self, task: Task[int], text: str) -> str | None:
        if re.fullmatch(r"lamp \d{1,6}", text, re.ASCII):
            return None
        part = self.part(text)
        if part is None:
            return "Say: test FIRST-LAST, or: lamp NUMBER"
        return "It is there." if part[0] <= task.data <= part[1] else "It is not there."

    def part(self, text: str) -> tuple[int, int] | None:
        found = re.fullmatch(r"test (\d{1,6})-(\d{1,6})", text, re.ASCII)
        return None if found is None else (int(found[1]), int(found[2]))

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.judged(rollout.text.strip() == f"lamp {task.data}", rollout)

    def judged(self, right: bool, rollout: Rollout) -> Verdict:
        text = rollout.text.strip()[:40]
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text)

    def reference(self, task: Task[int]) -> Any:
        return f"test {task.data}-{task.data}", f"lamp {task.data}"


Balances = dict[str, int]
MOVE = re.compile(r"move ([1-9][0-9]{0,5}) from ([A-D]) to ([A-D])", re.ASCII)


class Accounts(Environment[tuple[Balances, Balances]]):
    """A dialogue: move money between accounts until each holds what it should."""

    max_turns = 8
    max_new_tokens = 24
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[tuple[Balances, Balances]]:
        rng, names = key.rng(), "ABCD"[: 3 + round(key.level)]
        while True:
            have = {name: rng.randint(200, 900) for name in names}
            want = {name: rng.randint(100, 800) for name in names[:-1]}
            want[names[-1]] = sum(have.values()) - sum(want.values())
            prompt = (
                f"The accounts hold {listed(have)}, and should hold {listed(want)}. In each turn "
                "move some, as by: move 30 from A to B. No account may be overdrawn."
            )
            fits = min(want.values()) > 0 and all(have[name] != want[name] for name in names)
            if fits and held_out(prompt) == (key.split == "eval"):
                return Task(key, (Message("user", prompt),), (have, want))

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        held = self.after(task, messages)
        if held == task.data[1]:
            return None
        return (Message("user", self.answered(task, held, messages)),)

    def answered(self, task: Task[Any], held: Balances, messages: Sequence[Message]) -> str:
        form = "" if self.move(messages[-1].content) else "I read no move there. "
        return f"{form}The accounts hold {listed(held)}."

    def after(self, task: Task[Any], messages: Sequence[Message]) -> Balances:
        """Return what the accounts hold after the policy's turns."""
        held = dict(task.data[0])
        for message in messages:
            if message.role == "assistant" and (move := self.move(message.content)):
                self.carry_out(held, *move)
        return held

    def move(self, text: str) -> tuple[int, str, str] | None:
        found = MOVE.fullmatch(text.strip())
        return None if found is None else (int(found[1]), found[2], found[3])

    def carry_out(self, held: Balances, amount: int, source: str, to: str) -> None:
        if source in held and to in held and held[source] >= amount:
            held[source] -= amount
            held[to] += amount

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = self.after(task, rollout.messages) == task.data[1]
        reward = {"reward": Reward(float(right))}
        return Verdict(reward, passed=right, answer=rollout.text.strip()[:40])

    def reference(self, task: Task[Any]) -> Any:
        held, want, turns = dict(task.data[0]), task.data[1], list[str]()
        while held != want:
            source = max(held, key=lambda name: held[name] - want[name])
            to = min(held, key=lambda name: held[name] - want[name])
            amount = min(held[source] - want[source], want[to] - held[to])
            turns.append(f"move {amount} from {source} to {to}")
            self.carry_out(held, amount, source, to)
        return tuple(turns)


def listed(held: Mapping[str, int]) -> str:
    """Return balances as text."""
    return ", ".join(f"{name} {amount}" for name, amount in held.items())
