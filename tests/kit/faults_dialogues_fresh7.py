"""Dialogues with a planted fault each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bases_b2_fresh7 import CronCount
from bases_b4_fresh7 import BookingDesk, RiddleOfRemainders, Table
from catalogue import fault

from grpo_core import Message, Task


@fault("reply() hangs", "reply.form", "reply.hostile", "reply.ends")
class HintUnlikeTheOthers(RiddleOfRemainders):
    """Draws hints until there is one that was not given yet.

    After four wrong guesses all hints were given, and the fifth reply draws without end.
    """

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content.strip(" \t\r\n") == str(task.data):
            return None
        told = " ".join(message.content for message in messages if message.role == "user")
        rng = task.key.rng("reply", len(messages))
        hints = self.hints(task.data)
        hint = rng.choice(hints)
        while hint in told:
            hint = rng.choice(hints)
        return (Message("user", f"No. {hint} Which number is it?"),)


@fault("reply() is never asked", "reply.form", "declared.contract")
class SecondLookAtCron(CronCount):
    """Gives a second try, with a hint about the minutes, to a policy that counted wrongly.

    The class still has the single turn of the first version, so nobody gets the second try.
    """

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content.strip(" \t\r\n") == task.data:
            return None
        runs = "Count the minutes of an hour at which it runs, then the hours; both ends count."
        return (Message("user", f"That is not right. {runs} How many times a day?"),)


@fault("reply() raises for what a policy may say", "reply.form", "reply.hostile")
class FieldAfterASpace(BookingDesk):
    """Takes a turn apart into what is done and with which field.

    A turn of one word, a silent one and an unknown field raise.
    """

    def told(self, table: Table, turn: str) -> str:
        field = turn.split(" ")[1]
        answers = {"day": f"On {table.day}.", "time": f"At {table.time}."}
        answers["people"] = f"We are {table.people}."
        return answers[field]


@fault("reply() returns the wrong type", "reply.form")
class MessagesAndDone(BookingDesk):
    """Returns the guest's words and whether the dialogue is done, as the author's gym did."""

    async def reply(self, task: Task[Table], messages: Sequence[Message]) -> Any:
        turn = messages[-1].content.strip(" \t\r\n")
        done = turn.startswith("BOOK ")
        told = "Thank you." if done else self.told(task.data, turn)
        return [Message("user", told)], done
