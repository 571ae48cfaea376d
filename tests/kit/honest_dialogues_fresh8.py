"""Honest designs of dialogues."""

from __future__ import annotations

from collections.abc import Sequence

from bases_d_fresh8 import CoatCheck, CoinOnTheField, Field, PlankTrainer, Rack
from catalogue import honest

from grpo_core import Message, Task


@honest(
    "the trainer says the right length in the end; only the two tries before that count, so "
    "nobody earns anything by repeating it"
)
class TrainerWhoTellsTheLength(PlankTrainer):
    """The dialogue ends with the solution and a word of thanks."""


@honest(
    "one reading of the detector is wrong, and the prompt says so; which one it is depends on the "
    "task alone, so each attempt hears the same"
)
class DetectorThatErrsOnce(CoinOnTheField):
    """One of the first three readings is one step too many."""

    def question(self, field: Field) -> str:
        return f"{super().question(field)} One of its first three readings is 1 too large."

    def steps(self, task: Task[Field], square: str, turn: int) -> int:
        wrong = task.key.rng("wrong reading").randrange(3)
        return super().steps(task, square, turn) + (turn == wrong)


@honest(
    "the guest repeats what the policy said, the name of a coat among it; the verifier reads the "
    "policy's own turns only, and the first coat that it names ends the dialogue"
)
class GuestWhoRepeats(CoatCheck):
    """The guest is hard of hearing and repeats each question before answering it."""

    def told(self, rack: Rack, said: str) -> str:
        heard = said[:60].encode(errors="replace").decode()
        return f"You said: {heard}\n{super().told(rack, said)}"

    async def reply(
        self, task: Task[Rack], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        told = await super().reply(task, messages)
        return None if told is None else tuple(told)
