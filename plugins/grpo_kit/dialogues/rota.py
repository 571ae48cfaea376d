"""Conversations that checks watch: they go on in turn, or are asked for their verdict twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from grpo_core import Message, Rollout, Task, Verdict
from grpo_core.api.verify import Conversation, Conversations

T = TypeVar("T")


@dataclass(slots=True)
class Rota:
    """Lets conversations go on one step each, in turn, until each is closed."""

    conversations: Conversations
    size: int
    """How many conversations there are; the first step waits until all have begun."""
    _members: list[_Member] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def conversation(self, task: Task[Any]) -> Conversation:
        """Return a conversation that takes its turn."""
        member = _Member(self, self.conversations.conversation(task))
        self._members.append(member)
        return member

    async def step(self, member: _Member, work: Awaitable[T], *, leaves: bool = False) -> T:
        """Return the result of a step of one conversation, when it is its turn.

        Args:
            member: The conversation.
            work: The step.
            leaves: Whether it is the last step.
        """
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(
                lambda: len(self._members) >= self.size and self._members[0] is member
            )
            try:
                return await work
            finally:
                self._members.remove(member)
                if leaves:
                    self.size -= 1
                else:
                    self._members.append(member)
                self._changed.notify_all()


@dataclass(slots=True, eq=False)
class _Member:
    """Wrap a conversation, and wait for its turn in the rota before each step."""

    rota: Rota
    inner: Conversation

    async def open(self) -> Sequence[Message]:
        return await self.rota.step(self, self.inner.open())

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        return await self.rota.step(self, self.inner.reply(messages))

    async def verdict(self, rollout: Rollout) -> Verdict:
        return await self.rota.step(self, self.inner.verdict(rollout))

    async def close(self) -> None:
        await self.rota.step(self, self.inner.close(), leaves=True)


def asked_twice(conversations: Conversations) -> tuple[Conversations, list[Verdict]]:
    """Return conversations whose verdict is asked for twice, and where both verdicts go."""
    verdicts: list[Verdict] = []
    return _Twice(conversations, verdicts), verdicts


@dataclass(slots=True)
class _Twice:
    conversations: Conversations
    verdicts: list[Verdict]

    def conversation(self, task: Task[Any]) -> Conversation:
        return _TwiceJudged(self.conversations.conversation(task), self.verdicts)


@dataclass(slots=True)
class _TwiceJudged:
    """Wrap a conversation, and ask for each verdict twice."""

    inner: Conversation
    verdicts: list[Verdict]

    async def open(self) -> Sequence[Message]:
        return await self.inner.open()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        return await self.inner.reply(messages)

    async def verdict(self, rollout: Rollout) -> Verdict:
        self.verdicts += [await self.inner.verdict(rollout) for _ in range(2)]
        return self.verdicts[-1]

    async def close(self) -> None:
        await self.inner.close()
