"""Faults of dialogues."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from typing import Any

from bases_d_fresh8 import CoatCheck, CoinOnTheField, Field, PlankTrainer, Rack
from catalogue import fault

from grpo_core import Message, Rollout, Services, Task


@fault("reply() cannot write what the policy said", "reply.hostile", "reply.form")
class SlipOfTheCloakroom(CoatCheck):
    """Each question is printed on a slip, and the printer's code page lacks many characters."""

    async def reply(
        self, task: Task[Rack], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        slip = io.TextIOWrapper(io.BytesIO(), encoding="cp437")
        for message in messages:
            if message.role == "assistant":
                slip.write(f"> {message.content[:40]}\n")
        slip.flush()
        return await super().reply(task, messages)


@fault("reply() depends on earlier dialogues", "reply.repeat")
class HolesOfYesterday(CoinOnTheField):
    """The digger notices squares that are dug up already, also by other attempts."""

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self.holes: dict[str, set[str]] = {}

    async def reply(
        self, task: Task[Field], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        square = self.square(task.data, messages[-1].content)
        holes = self.holes.setdefault(self.question(task.data), set())
        if square is not None and square in holes:
            return (Message("user", f"There is a hole at {square} already. Another square?"),)
        holes |= {square} if square is not None and square != task.data.coin else set()
        return await super().reply(task, messages)


@fault("reply() draws at random", "reply.repeat")
class NoisyDetector(CoinOnTheField):
    """The detector is off by a step now and then, as real ones are."""

    def steps(self, task: Task[Field], square: str, turn: int) -> int:
        exact = super().steps(task, square, turn)
        return max(1, exact + random.choice((-1, 0, 0, 1)))


@fault("reply() is not async", "reply.form")
class GuestInAHurry(CoatCheck):
    """The guest answers at once; the method was copied from a script without an event loop."""

    def reply(  # type: ignore[override]
        self, task: Task[Rack], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        said = messages[-1].content
        if self.named(said) is not None:
            return None
        return (Message("user", self.told(task.data, said)),)


@fault("the environment speaks for the policy", "reply.form", "reply.echo")
class AttendantTakesNotes(CoatCheck):
    """After each answer the environment adds a note as if the policy had written it."""

    async def reply(
        self, task: Task[Rack], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        said = messages[-1].content
        if self.named(said) is not None:
            return None
        told = self.told(task.data, said)
        return (
            Message("user", told),
            Message("assistant", f"I note: {told.lower()}"),
            Message("user", "Your next question?"),
        )

    def reference(self, task: Task[Rack]) -> Sequence[str]:
        return (f"coat {task.data.mine}",)


@fault("the verifier reads what the environment said", "reply.echo", "reply.secret")
class TranscriptOfTheTrainer(PlankTrainer):
    """Any sentence of the transcript counts as a try, the trainer's own among them."""

    def tries(self, rollout: Rollout) -> list[int | None]:
        return [self.length(message.content) for message in rollout.messages]
