"""Planted faults of the third fresh part: dialogues."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from bases_talk_fresh3 import Recheck, Swaps, Vault, in_order, last_list
from catalogue import fault

from grpo_core import Message, Reward, Rollout, Task, Verdict


@fault("the turn before is looked at in the first turn, too", "reply.form", "verdict.reference")
class TurnBefore(Vault):
    """Whoever repeats a guess is told so, and nobody has said anything before the first."""

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        if messages[-1].content == messages[-3].content:
            return (Message("user", "You said that before."),)
        return await super().reply(task, messages)


@fault("the environment's messages are counted as turns", "verdict.reference")
class AllTurnsCounted(Swaps):
    """The dialogue ends after half of the turns, before most lists are in order."""

    async def reply(
        self, task: Task[tuple[int, ...]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        return None if len(messages) >= len(task.data) - 1 else await super().reply(task, messages)


@fault("whoever gives up or asks is told, and may go on", "reply.secret")
class GivesUp(Vault):
    """The code is told in the middle of the dialogue."""

    def counted(self, code: str, text: str) -> str:
        words = ("give up", "don't know", "what is", "answer", "solution", "tell me", "code")
        if any(word in text.lower() for word in words):
            return f"It was {code}. Reply with a code."
        return super().counted(code, text)


@fault("the reply shows how a wrong answer differs from the right one", "reply.secret")
class ShownDifference(Recheck):
    """The lines that begin with + are the answer."""

    def doubt(self, task: Task[Any], text: str) -> str:
        lines = difflib.ndiff([text.strip()[:50]], [task.data])
        return "This is not right yet:\n" + "\n".join(lines)


@fault(
    "replaying takes twice as long with each turn",
    "reply.ends",
    "reply.form",
    "reply.hostile",
    "cost.time",
)
class TwiceEachTurn(Swaps):
    """The state before a turn is worked out for its places, and again for its items."""

    max_turns = 26

    def after(self, task: Task[tuple[int, ...]], messages: Sequence[Message]) -> tuple[int, ...]:
        said = [message.content for message in messages if message.role == "assistant"]
        return self.state(task.data, said)

    def state(self, start: tuple[int, ...], said: Sequence[str]) -> tuple[int, ...]:
        if not said:
            return start
        if self.places(self.state(start, said[:-1]), said[-1]) is None:
            return self.state(start, said[:-1])
        return self.exchanged(self.state(start, said[:-1]), said[-1])


@fault(
    "a dialogue that ended early is taken for a won one",
    "floor.empty",
    "floor.junk",
    "floor.echo",
    "floor.other",
    "floor.constant",
)
class EarlyEnd(Swaps):
    """It also ends early where the list cannot be sorted any more, by three wrong turns."""

    async def reply(
        self, task: Task[tuple[int, ...]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        said = [message.content for message in messages if message.role == "assistant"]
        if sum(self.places(task.data, text) is None for text in said) >= 3:
            return None
        return await super().reply(task, messages)

    def verify(self, task: Task[tuple[int, ...]], rollout: Rollout) -> Verdict:
        said = sum(message.role == "assistant" for message in rollout.messages)
        won = said < self.max_turns or in_order(self.after(task, rollout.messages))
        return self.judged(won, rollout.text)


@fault("who breaks a dialogue off has a draw, which is paid", "floor.empty", "floor.junk")
class PaidDraw(Vault):
    """A turn that is no code ends the game, and half of the reward is left."""

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        text = messages[-1].content.strip()
        return await super().reply(task, messages) if text.isdigit() else None

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        right = text == task.data
        paid = 1.0 if right else 0.0 if text.isdigit() else 0.5
        return Verdict({"reward": Reward(paid)}, passed=right, answer=text[:20])


@fault("the environment's line may be written by the policy", "floor.cheats")
class ForgedLine(Swaps):
    """The verdict reads the last list of the transcript, whoever wrote it."""

    def verify(self, task: Task[tuple[int, ...]], rollout: Rollout) -> Verdict:
        items = self.after(task, rollout.messages)
        told = last_list(rollout.text)
        return self.judged(in_order(items if told is None else told), rollout.text)

    def cheats(self, task: Task[tuple[int, ...]]) -> Sequence[Any]:
        return (f"Now: {sorted(task.data)}", ("1 2", "Now: []"))
