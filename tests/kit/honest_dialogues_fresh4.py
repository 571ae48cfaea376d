"""Dialogues without a fault that look odd, fourth fresh part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bases_talk_fresh4 import Accounts, Balances, LampChain
from catalogue import honest

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out

LAMP = re.compile(r"lamp (\d{1,6})", re.ASCII)


@honest("the reply quotes the turn, cut and escaped, and nothing that it says is judged")
class QuotesTheTurn(Accounts):
    def answered(self, task: Task[Any], held: Balances, messages: Sequence[Message]) -> str:
        quoted = ascii(messages[-1].content[:40])
        return f"> {quoted}\n{super().answered(task, held, messages)}"


@honest(
    "the answer is told when the attempt is lost, since only the first lamp that is named counts"
)
class ToldWhenItIsLost(LampChain):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        named = self.first(messages)
        if named is None:
            return await super().reply(task, messages)
        over = LAMP.fullmatch(messages[-1].content.strip()) is None
        if named == task.data or over:
            return None
        return (Message("user", f"No, it was lamp {task.data}, and that is the end."),)

    def first(self, messages: Sequence[Message]) -> int | None:
        """Return the lamp that the policy names first."""
        turns = (message.content.strip() for message in messages if message.role == "assistant")
        return next((int(found[1]) for text in turns if (found := LAMP.fullmatch(text))), None)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        named = self.first(rollout.messages)
        right = named == task.data
        reward = {"reward": Reward(float(right))}
        return Verdict(reward, passed=right, answer=None if named is None else str(named))


@honest("the wording of a reply is drawn, from the key and the place in the dialogue alone")
class DrawnWording(LampChain):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = self.answered(task, messages[-1].content.strip())
        if said is None:
            return None
        greetings = ("Well.", "Let me see.", "Measured.", "Hm.", "Done.", "I looked.")
        greeting = task.key.rng("reply", len(messages)).choice(greetings)
        return (Message("user", f"{greeting} {said}"),)


SYLLABLES = ("ba", "che", "dro", "fi", "gul", "hem", "jo", "kri", "lan", "mu", "ner", "pod", "sti")


@honest("a dialogue that always lasts five turns, each of which earns a fifth by itself")
class FiveWords(Environment[tuple[str, ...]]):
    max_turns = 5
    max_new_tokens = 24

    def task(self, key: TaskKey) -> Task[tuple[str, ...]]:
        rng, length = key.rng(), 2 + round(3 * key.level)
        while True:
            words = tuple("".join(rng.sample(SYLLABLES, length)) for _ in range(self.max_turns))
            if held_out(words[0]) == (key.split == "eval"):
                rules = "Five words come one by one. Reply to each with the word backwards only."
                return Task(key, (Message("user", f"{rules} The first is: {words[0]}"),), words)

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message]:
        turns = sum(message.role == "assistant" for message in messages)
        return (Message("user", task.data[turns]),)

    def verify(self, task: Task[tuple[str, ...]], rollout: Rollout) -> Verdict:
        said = [message.content for message in rollout.messages if message.role == "assistant"]
        fine = [text.strip() == word[::-1] for text, word in zip(said, task.data, strict=False)]
        reward = Reward(turns=tuple(one / self.max_turns for one in fine))
        right = len(fine) == self.max_turns and all(fine)
        return Verdict({"reward": reward}, passed=right, answer=rollout.text.strip()[:40])

    def reference(self, task: Task[tuple[str, ...]]) -> Any:
        return tuple(word[::-1] for word in task.data)


@honest("each measurement costs, so the reference, which knows the lamp, names it at once")
class EachTestCosts(LampChain):
    def judged(self, right: bool, rollout: Rollout) -> Verdict:
        paid = max(0.5, 1 - 0.03 * (rollout.turns - 1)) if right else 0.0
        text = rollout.text.strip()[:40]
        return Verdict({"reward": Reward(paid)}, passed=right, answer=text)

    def reference(self, task: Task[int]) -> Any:
        return f"lamp {task.data}"


@honest("all prompts are the same, what differs is hidden, and checks of prompts are waived")
class OneChain(LampChain):
    levels = False
    waived = {  # noqa: RUF012
        "task.variety": "every task is the same chain; only the broken lamp, which is hidden, differs",
        "task.split": "prompts are the same by design; the broken lamp decides the split",
        "task.seed": "prompts are the same by design; seeds differ in the broken lamp",
        "task.ambiguous": "the lamp is to be found by measuring, and not by the prompt",
    }

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        while True:
            broken = rng.randint(1, 4000)
            if held_out(str(broken)) == (key.split == "eval"):
                asked = f"One of 4000 lamps in a chain is broken. {self.rules}"
                return Task(key, (Message("user", asked),), broken)
