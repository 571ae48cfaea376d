"""Run an agent again that hears what it heard before, alone or beside others."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core import AgentEnvironment, Message, Rollout, Task, Verdict
from grpo_core.api.verify import AgentConversation, Answer, Asked, Verifier, run_script
from grpo_core.protocol.endpoint import CompletionRequest
from grpo_core.words import shorten
from grpo_kit.answers.verdicts import comparable_fields


@dataclass(frozen=True, slots=True)
class Attempted:
    """Hold an attempt by an agent: its requests, its rollout and its verdict."""

    task: Task[Any]
    kind: str
    """What the policy says, as the end of a sentence."""
    asked: Sequence[Asked]
    """What the agent asked for."""
    rollout: Rollout
    verdict: Verdict


@dataclass(slots=True)
class Meeting:
    """Holds up the requests of several agents until each of them has one.

    Args:
        size: The number of agents.
        seconds: After this time the requests that are there are answered.
    """

    size: int
    seconds: float
    least: int = 0
    """How many requests were there when the time was up; 0 if it never was."""
    _waiting: int = 0
    _next: asyncio.Event = field(default_factory=asyncio.Event)

    async def join(self) -> None:
        """Wait for the others, unless that took too long before."""
        if self.least:
            return
        self._waiting += 1
        together = self._next
        self._let_go_if_complete()
        try:
            await asyncio.wait_for(together.wait(), self.seconds)
        except TimeoutError:
            if not together.is_set():
                self.least = self._waiting
                self._let_go()

    def leave(self) -> None:
        """Note that an agent has come to its end."""
        self.size -= 1
        self._let_go_if_complete()

    def _let_go_if_complete(self) -> None:
        if self._waiting >= self.size:
            self._let_go()

    def _let_go(self) -> None:
        self._next.set()
        self._waiting, self._next = 0, asyncio.Event()


class Replay:
    """Answers an agent's requests as they were answered before, whatever their order.

    Args:
        asked: What was answered before.
        meeting: Lets the requests of several agents meet; None: each is answered at once.
    """

    def __init__(self, asked: Sequence[Asked], meeting: Meeting | None = None) -> None:
        self._asked, self._meeting = asked, meeting
        self.stray: CompletionRequest | None = None
        """The first request that was not made before."""

    def answers(self) -> Answer:
        """Return what answers the requests of one run."""
        texts: dict[str, deque[str | None]] = defaultdict(deque)
        for completion in self._asked:
            texts[completion.content].append(completion.text)
        self.stray = None

        async def answer(request: CompletionRequest, heard: Sequence[Message]) -> str | None:
            if self._meeting is not None:
                await self._meeting.join()
            known = texts[Asked(request, None).content]
            if known:
                return known.popleft()
            self.stray = self.stray or request
            return None

        return answer


async def difference(verifier: Verifier, before: Attempted, meeting: Meeting | None = None) -> str:
    """Return how an agent that hears the same differs from before, as the end of a sentence; or "".

    Args:
        verifier: Runs the agent.
        before: What came of the attempt before.
        meeting: As for `Replay`.
    """
    conversation = verifier.conversation(before.task)
    assert isinstance(conversation, AgentConversation)
    replay, env = Replay(before.asked, meeting), verifier.env
    try:
        played = await run_script(
            conversation, before.task, replay.answers, max_turns=env.max_turns
        )
    finally:
        if meeting is not None:
            meeting.leave()
    if replay.stray is not None:
        return f"asks something else ({shorten(last_words(replay.stray))})"
    if played.rollout.error:
        return f"fails ({played.rollout.error})"
    old, new = (_returned(env, rollout) for rollout in (before.rollout, played.rollout))
    if old != new:
        return f"returns {shorten(new)} instead of {shorten(old)}"
    verdict = await conversation.verdict(played.rollout)
    if comparable_fields(verdict) != comparable_fields(before.verdict):
        return "gets another verdict"
    return ""


def last_words(request: CompletionRequest) -> str:
    """Return the end of what a request asks to continue."""
    prompt = request.prompt
    if isinstance(prompt, str) or not prompt:
        return str(prompt)
    last = prompt[-1]
    return last.content if isinstance(last, Message) else str(last)


def _returned(env: Any, rollout: Rollout) -> Any:
    """Return what has to be the same again: of a command, not what it says beside its output."""
    returned = rollout.returned
    if isinstance(env, AgentEnvironment) and env.has_command() and isinstance(returned, dict):
        return {name: value for name, value in returned.items() if name != "stderr"}
    return returned
