"""Dialogues without a fault that look odd, sixth fresh part."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from bases_desk_fresh6 import SPACE, STEPS, Desk, marked
from bases_talk_fresh6 import Archive
from catalogue import honest

from grpo_core import Message, Rollout, Task, Verdict


@honest("replies say back which folder the policy has just named, and ask for it once more")
class ConfirmsTheFolder(Archive):
    """The last turn counts, so naming a folder only tells whose it is, as opening it does."""

    max_turns = 10

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        words, data = super().posed(rng, level)
        rules = "You have ten turns, and the last one counts. To take a folder, say so twice."
        return f"{words.partition(' You have ')[0]} {rules}", data

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        own = [message.content.strip(SPACE) for message in messages if message.role == "assistant"]
        said = self.told(task, own[-1])
        if said is not None:
            return said
        if own[-2:-1] == own[-1:]:
            return None
        return (Message("user", f"You {own[-1]}. If that is right, say it again."),)

    def reference(self, task: Task[Any]) -> Any:
        turns = super().reference(task)
        return *turns, turns[-1]


@honest("what is replied is random, by the task's key and the length of the dialogue")
class ClerkIsAway(Archive):
    """In some turns nobody is there, and the policy has to ask again."""

    max_turns = 20

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        words, data = super().posed(rng, level)
        return words.replace("nine turns", "20 turns, but I am often away"), data

    def away(self, task: Task[Any], length: int) -> bool:
        return length < 24 and task.key.rng("reply", length).random() < 0.3

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = self.told(task, messages[-1].content.strip(SPACE))
        if said is None or not self.away(task, len(messages)):
            return said
        return (Message("user", "Nobody is there. Ask again."),)

    def reference(self, task: Task[Any]) -> Any:
        turns = list[str]()
        for turn in super().reference(task):
            turns.append(turn)
            while turn.startswith("open") and self.away(task, 2 * len(turns) - 1):
                turns.append(turn)
        return tuple(turns)


@honest("a dialogue that always lasts as long as it may, and never says what was right")
class StepByStep(Desk):
    """Each turn does the step that was said last, and all four numbers have to be right."""

    max_turns = 4
    max_new_tokens = 8

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        start = number = rng.randint(10**3, 10 ** (4 + round(level)))
        steps = [rng.choice(list(STEPS)) for _ in range(4)]
        rules = "; ".join(f"{step.__name__}: {rule}" for step, rule in STEPS.items())
        numbers = list[str]()
        for step in steps:
            number = step(number)
            numbers.append(str(number))
        names = [step.__name__ for step in steps]
        words = (
            f"I say four steps, one in each turn. They are {rules}. Reply with the new number "
            f"alone, and go on with it in the next turn. Begin with {start}: {names[0]}"
        )
        return words, {"names": names, "numbers": numbers}

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        turns = sum(message.role == "assistant" for message in messages)
        return (Message("user", task.data["names"][min(turns, 3)]),)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        said = [m.content.strip(SPACE) for m in rollout.messages if m.role == "assistant"]
        return marked(float(said == task.data["numbers"]), " ".join(said))

    def reference(self, task: Task[Any]) -> Any:
        return tuple(task.data["numbers"])
