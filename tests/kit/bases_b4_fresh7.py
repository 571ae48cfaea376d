"""Sound dialogues, and a sound episode in a sandbox, on which faults are planted elsewhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bases_b3_fresh7 import says, turns_of_policy
from bases_b_fresh7 import asks, clock, drawn_apart, paid, spoken

from grpo_core import (
    Environment,
    Episode,
    Limits,
    Message,
    Reward,
    Rollout,
    Sandbox,
    Session,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import fenced_code


class RiddleOfRemainders(Environment[int]):
    """Asks for a number by its remainders; each wrong guess is answered by a hint."""

    max_turns: ClassVar[int] = 6
    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[int]:
        divisors = (7, 9, 11) if key.level < 0.5 else (9, 11, 13)
        most = divisors[0] * divisors[1] * divisors[2]
        number = drawn_apart(key, lambda rng: rng.randint(20, most), str)
        facts = ", ".join(f"{number % divisor} by {divisor}" for divisor in divisors)
        question = (
            f"A number from 1 to {most} leaves these remainders on division: {facts}. Which is it? "
            "Reply with the number alone. A wrong reply gets you a hint, and another try."
        )
        return Task(key, asks(question), number)

    def hints(self, number: int) -> list[str]:
        """Return what is told after wrong guesses, in this order."""
        low = number // 100 * 100
        return [
            f"It is {'odd' if number % 2 else 'even'}.",
            f"It is at least {low} and less than {low + 100}.",
            f"Its digits add up to {sum(map(int, str(number)))}.",
            f"The remainder on division by 5 is {number % 5}.",
        ]

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content.strip(" \t\r\n") == str(task.data):
            return None
        hints = self.hints(task.data)
        wrong = sum(message.role == "assistant" for message in messages)
        hint = hints[wrong - 1] if wrong <= len(hints) else "There are no more hints."
        return (Message("user", f"No. {hint} Which number is it?"),)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == str(task.data), answer)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


@dataclass(frozen=True, slots=True)
class Table:
    """Holds what a guest wants, and which of it the guest tells only when asked."""

    day: str
    time: str
    people: str
    hidden: tuple[str, ...]

    @property
    def order(self) -> str:
        """Return the line that books the table."""
        return f"BOOK {self.day} {self.time} {self.people}"


class BookingDesk(Environment[Table]):
    """Has the policy book a table for a guest, who has to be asked for what is missing."""

    max_turns: ClassVar[int] = 5
    max_new_tokens = 24
    days: ClassVar[Sequence[str]] = ("tuesday", "wednesday", "thursday", "friday", "saturday")

    def task(self, key: TaskKey) -> Task[Table]:
        def draw(rng: random.Random) -> tuple[str, Table]:
            names = ("Ode", "Finn", "Grete", "Ilse", "Jonas", "Karla", "Milo", "Rosa", "Tove")
            guest = f"{rng.choice(names)}, telephone {rng.randint(1000, 9999)}"
            hidden = ("time", "people") if key.level < 0.5 else ("day", "time", "people")
            time = clock(15 * rng.randint(68, 84))
            return guest, Table(rng.choice(self.days), time, str(rng.randint(2, 9)), hidden)

        guest, table = drawn_apart(key, draw, lambda drawn: drawn[0])
        told = "a table" if "day" in table.hidden else f"a table on {table.day}"
        question = (
            f"You take bookings. {guest}, wants {told}. Ask for one thing in a turn: ASK day, ASK "
            "time or ASK people. When you know all, reply with BOOK, day, time and people, as in: "
            "BOOK sunday 12:30 14"
        )
        return Task(key, asks(question), table)

    async def reply(
        self, task: Task[Table], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        turn = messages[-1].content.strip(" \t\r\n")
        if turn.startswith("BOOK "):
            return None
        return (Message("user", self.told(task.data, turn)),)

    def told(self, table: Table, turn: str) -> str:
        """Return what the guest says to a turn of the policy."""
        answers = {
            "ASK day": f"On {table.day}.",
            "ASK time": f"At {table.time}.",
            "ASK people": f"We are {table.people}.",
        }
        return answers.get(turn, "I beg your pardon?")

    def verify(self, task: Task[Table], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == task.data.order, answer)

    def reference(self, task: Task[Table]) -> Sequence[str]:
        return (*(f"ASK {field}" for field in task.data.hidden), task.data.order)


@dataclass(frozen=True, slots=True)
class Orders:
    """Holds the lines of a file of orders, the customer asked for, and the sum."""

    lines: tuple[str, ...]
    customer: str
    total: str


class OrdersInACsv(Environment[Orders]):
    """Has the policy add up the orders of a customer in a shell, and write the sum to a file."""

    needs = frozenset({"sandbox"})
    timeout_seconds: ClassVar[float] = 60.0
    max_turns: ClassVar[int] = 4
    max_new_tokens = 128
    replayable = True

    def task(self, key: TaskKey) -> Task[Orders]:
        def draw(rng: random.Random) -> tuple[int, Orders]:
            customers = rng.sample(("ayla", "bruno", "chloe", "dario", "edith", "fritz"), 4)
            size = 8 if key.level < 0.5 else 60
            rows = [(rng.choice(customers), rng.randint(3, 400)) for _ in range(size)]
            rows += [(customers[0], rng.randint(3, 400)), (customers[0], rng.randint(3, 400))]
            total = sum(amount for name, amount in rows if name == customers[0])
            lines = tuple(f"{n},{name},{amount}" for n, (name, amount) in enumerate(rows, 1))
            return rng.randint(1000, 9999), Orders(lines, customers[0], str(total))

        number, orders = drawn_apart(key, draw, lambda drawn: str(drawn[0]))
        question = (
            f"Job {number}: the folder holds orders.csv with number, customer and amount in each "
            f"line. Write the sum of the amounts of {orders.customer} to total.txt. A ```sh block "
            "in your reply is run, and you see what it prints. Reply without a block when you are "
            "done."
        )
        return Task(key, asks(question), orders)

    def episode(self, task: Task[Orders]) -> Folder:
        return Folder(task.data, self.services.sandbox())

    def reference(self, task: Task[Orders]) -> Sequence[str]:
        return (f"```sh\necho {task.data.total} > total.txt\n```", "Done.")


class Folder(Episode):
    """Holds the session in which the policy's commands run."""

    def __init__(self, orders: Orders, sandbox: Sandbox) -> None:
        self.orders, self.sandbox, self.seen = orders, sandbox, 0
        self.session: Session | None = None

    def files(self) -> dict[str, str]:
        """Return what the folder holds at the start."""
        return {"orders.csv": "\n".join(self.orders.lines) + "\n"}

    async def open(self) -> Sequence[Message]:
        self.session = await self.sandbox.session(self.files(), limits=Limits(total_seconds=30.0))
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        printed = await self.run(messages[-1].content)
        return None if printed is None else says(printed)

    async def run(self, turn: str) -> str | None:
        """Run the block of a turn, and return what it prints; None for a turn without one."""
        assert self.session is not None, "open() comes first"
        self.seen += 1
        block = fenced_code(turn, languages=("sh", "bash", ""))
        if block is None or not block.content.strip(" \t\r\n"):
            return None
        result = await self.session.exec(block.content)
        return (result.stdout + result.stderr)[:800] or "[nothing was printed]"

    async def is_right(self) -> bool:
        """Return whether the file that the policy wrote holds the sum."""
        assert self.session is not None, "open() comes first"
        written = await self.session.read("total.txt", limit=200)
        return written is not None and written.strip(b" \t\r\n") == self.orders.total.encode()

    async def verdict(self, rollout: Rollout) -> Verdict:
        for turn in turns_of_policy(rollout)[self.seen :]:
            await self.run(turn)
        right = await self.is_right()
        return Verdict({"reward": Reward(float(right))}, passed=right)

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()
