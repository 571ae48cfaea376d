"""Planted faults: replies of dialogues, of the second fresh part."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

from bases_talk_fresh2 import Piles, Stones, Till, Treasure, best_move, taken, totals
from catalogue import fault

from grpo_core import Message, Rollout, Task, Verdict

Said = Sequence[Message]
Place = Task[tuple[int, int]]


@fault(
    "several moves may be made in one turn",
    "floor.cheats",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.constant",
)
class ManyMovesAtOnce(Stones):
    def after(self, task: Task[Piles], messages: Said) -> Piles | None:
        piles, earlier = task.data, list[Message]()
        for message in messages:
            moves = [self.move(task, piles, earlier)]
            if message.role == "assistant":
                said = (self.legal(piles, text) for text in message.content.split(","))
                moves = [move for move in said if move is not None]
            for pile, number in moves:
                piles = taken(piles, pile, min(number, piles[pile]))
            earlier.append(message)
            if not moves:
                return None
        return piles

    def cheats(self, task: Task[Piles]) -> Sequence[Any]:
        return (", ".join(f"{pile} {size}" for pile, size in enumerate(task.data, 1)),)


@fault("an example in an error message is the answer", "reply.secret")
class ExampleIsThePlace(Treasure):
    async def reply(self, task: Place, messages: Said) -> Said | None:
        if self.guessed(messages[-1].content) is None:
            x, y = task.data
            return (Message("user", f"I cannot read that. Write a cell like this: {x} {y}"),)
        return await super().reply(task, messages)


@fault("each reply quotes all messages so far", "reply.hostile", "reply.ends", "reply.form")
class QuotesEverything(Treasure):
    async def reply(self, task: Place, messages: Said) -> Said | None:
        new = await super().reply(task, messages)
        quoted = "\n".join(f"> {message.content}" for message in messages)
        return None if new is None else (Message("user", f"{quoted}\n{new[0].content}"),)


@fault("two turns in a row that say nothing break a comparison", "reply.form", "reply.hostile")
class WarmerThanNothing(Treasure):
    async def reply(self, task: Place, messages: Said) -> Said | None:
        new = await super().reply(task, messages)
        if new is None or len(messages) < 3:
            return new
        (x, y), places = task.data, [self.guessed(messages[at].content) for at in (-3, -1)]
        before, now = (abs(at[0] - x) + abs(at[1] - y) for at in places)  # type: ignore[index]
        return (Message("user", f"{'Warmer' if now < before else 'Colder'}. {new[0].content}"),)


@fault("the policy itself may say that it has won", "reply.echo", "floor.cheats", "floor.constant")
class SaysThatItWon(Treasure):
    async def reply(self, task: Place, messages: Said) -> Said | None:
        found = self.guessed(messages[-1].content) == task.data
        told = any("You found it" in message.content for message in messages)
        if found and not told:
            return (Message("user", "You found it! Say goodbye."),)
        return None if told else await super().reply(task, messages)

    def verify(self, task: Place, rollout: Rollout) -> Verdict:
        told = any("You found it" in message.content for message in rollout.messages)
        return self.judged(told, rollout.text)

    def reference(self, task: Place) -> Any:
        return (f"{task.data[0]} {task.data[1]}", "Goodbye.")

    def cheats(self, task: Place) -> Sequence[Any]:
        return ("You found it! Say goodbye.",)


@fault("the right result is read out before the last turn", "reply.secret")
class ReadsTheTotalOut(Till):
    max_turns = 5

    async def reply(self, task: Task[list[int]], messages: Said) -> Said | None:
        said = sum(message.role == "assistant" for message in messages)
        if said == 4:
            total = totals(task.data)[-1]
            return (Message("user", f"I get {total}. What is the total?"),)
        return await super().reply(task, messages) if said < 4 else None

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == str(totals(task.data)[-1])
        return self.judged(right, rollout.text)

    def reference(self, task: Task[list[int]]) -> Any:
        return (*map(str, totals(task.data)), str(sum(task.data)))


@fault("reply() depends on hash() of a text", "reply.repeat", "verdict.process")
class MovesByHash(Stones):
    def move(self, task: Task[Piles], piles: Piles, messages: Said) -> tuple[int, int]:
        full = [pile for pile, size in enumerate(piles) if size] or [0]
        pile = full[hash(messages[-1].content) % len(full)]
        return pile, piles[pile]


@fault("replies are cached by the number of turns alone", "reply.repeat")
class CachedByTurn(Treasure):
    told: ClassVar[dict[int, str]] = {}

    async def reply(self, task: Place, messages: Said) -> Said | None:
        new = await super().reply(task, messages)
        if new is None:
            return None
        return (Message("user", self.told.setdefault(len(messages), new[0].content)),)


@fault("reply() changes the messages that it is given", "reply.form", "reply.repeat")
class TidiesTheMessages(Till):
    async def reply(self, task: Task[list[int]], messages: Said) -> Said | None:
        new = await super().reply(task, messages)
        mine = [message for message in messages if message.role == "assistant"]
        messages[:] = mine  # type: ignore[index]
        return new


@fault(
    "reply() returns the whole dialogue",
    "reply.form",
    "reply.echo",
    "reply.ends",
    "verdict.reference",
)
class WholeDialogueAgain(Till):
    async def reply(self, task: Task[list[int]], messages: Said) -> Said | None:
        new = await super().reply(task, messages)
        return None if new is None else (*messages, *new)


@fault("messages are dictionaries, as of an interface", "reply.form", "verdict.reference")
class DictionariesInstead(Treasure):
    async def reply(self, task: Place, messages: Said) -> Any:
        new = await super().reply(task, messages)
        return new and [{"role": "user", "content": message.content} for message in new]


@fault("the game needs more turns than there are", "verdict.reference")
class TooFewTurns(Treasure):
    max_turns = 4


@fault(
    "the opponent searches its whole tree of moves",
    "reply.form",
    "reply.hostile",
    "cost.time",
    "verdict.reference",
)
class WholeTree(Stones):
    def move(self, task: Task[Piles], piles: Piles, messages: Said) -> tuple[int, int]:
        moves = [(pile, number + 1) for pile in range(4) for number in range(piles[pile])]
        winning = [each for each in moves if not self.wins(taken(piles, *each))]
        return winning[0] if winning else best_move(piles)

    def wins(self, piles: Piles) -> bool:
        return any(
            not self.wins(taken(piles, pile, number + 1))
            for pile in range(4)
            for number in range(piles[pile])
        )

    def reference(self, task: Task[Piles]) -> Any:
        """Return the game against the best moves, which are the same."""
        turns, piles = list[str](), task.data
        while any(piles):
            pile, number = best_move(piles)
            turns.append(f"{pile + 1} {number}")
            piles = taken(piles, pile, number)
            piles = taken(piles, *best_move(piles)) if any(piles) else piles
        return tuple(turns)


@fault(
    "the opponent resigns when it cannot read a move",
    "floor.junk",
    "floor.empty",
    "floor.text",
    "floor.constant",
    "floor.other",
    "floor.spelling",
    "floor.echo",
    "floor.listed",
    "floor.superset",
    "floor.suffix",
    "floor.near",
    "floor.digits",
    "floor.nested",
    "floor.large",
)
class ResignsToNonsense(Stones):
    def verify(self, task: Task[Piles], rollout: Rollout) -> Verdict:
        piles = self.after(task, rollout.messages) if rollout.messages else task.data
        return self.judged(piles is None or not any(piles), rollout.text)


@fault("a reply has a role that no template knows", "reply.form")
class RoleOfItsOwn(Till):
    async def reply(self, task: Task[list[int]], messages: Said) -> Said | None:
        new = await super().reply(task, messages)
        role: Any = "cashier"
        return new and [Message(role, message.content) for message in new]


@fault(
    "an event loop is started within another one",
    "reply.form",
    "reply.hostile",
    "verdict.reference",
)
class LoopWithinALoop(Treasure):
    async def reply(self, task: Place, messages: Said) -> Said | None:
        return asyncio.run(super().reply(task, messages))


@fault(
    "all places may be guessed in one turn",
    "floor.listed",
    "floor.cheats",
    "floor.superset",
    "floor.suffix",
    "floor.constant",
)
class ManyGuessesAtOnce(Treasure):
    def verify(self, task: Place, rollout: Rollout) -> Verdict:
        guesses = re.findall(r"\b([0-9]{1,2}) ([0-9]{1,2})\b", rollout.text)
        right = tuple(map(str, task.data)) in guesses
        return self.judged(right, rollout.text)

    async def reply(self, task: Place, messages: Said) -> Said | None:
        guesses = re.findall(r"\b([0-9]{1,2}) ([0-9]{1,2})\b", messages[-1].content)
        if tuple(map(str, task.data)) in guesses:
            return None
        return await super().reply(task, messages)

    def cheats(self, task: Place) -> Sequence[Any]:
        return (", ".join(f"{x} {y}" for x, y in product(range(1, 81), repeat=2)),)


@fault(
    "a reply waits as a person would",
    "reply.form",
    "reply.hostile",
    "cost.time",
    "verdict.reference",
)
class TypesSlowly(Till):
    async def reply(self, task: Task[list[int]], messages: Said) -> Said | None:
        await asyncio.sleep(2.5)
        return await super().reply(task, messages)
