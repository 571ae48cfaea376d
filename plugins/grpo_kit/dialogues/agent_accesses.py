"""Give agents that run in the second process addresses and keys at which scripts answer here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grpo_core import Message, Task
from grpo_core.api.verify import Answer, ScriptedCompleter, answer_agent
from grpo_core.protocol.endpoint import CompletionRequest
from grpo_core.words.hostile_texts import COMMANDS, EXECUTABLE
from grpo_kit.dialogues.agent_ends import ENDS
from grpo_kit.dialogues.agent_policies import tools_of
from grpo_kit.dialogues.endings import ATTEMPTS
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.scaffold.recorded import address
from grpo_kit.subject import Attempt, Subject

_HANG_SECONDS = 5.0
"""How long a request waits in vain: an agent that blocks its process must not do so for long."""
_EXECUTED = 2
"""Tasks at which the policy says what is code."""


class AgentAccesses:
    """Admits agents of another process to the endpoint, each with a script of its own.

    Args:
        subject: The environment.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._endpoint = subject.env.services.endpoint()
        self._keys: list[str] = []

    async def plan(self) -> dict[str, Any]:
        """Return the runs that the second process is to make, as JSON data.

        They are lists of task, text and access: runs in which the policy says code, and those that
        end in each of the ways of `ENDS`.
        """
        attempts = self._subject.answered or [(task, "") for task in self._subject.tasks]
        task, text = attempts[0]
        played = await self._subject.agents.play(task, split_turns(text))
        calls = [
            call
            for tool in tools_of(played.asked)
            for code in COMMANDS
            for call in tool.calls_with_text(code)
        ]
        code = [
            (task, reply)
            for task in self._subject.tasks[:_EXECUTED]
            for reply in (*calls, *_variants(self._subject, EXECUTABLE))
        ]
        last = max(1, len(played.asked))
        return {
            "code": [self._run(task, text) for task, text in code],
            **{how: self._runs(attempts, how, last) for how in ENDS},
        }

    async def close(self) -> None:
        """End all requests, and forget the keys."""
        keys, self._keys = self._keys, []
        for key in keys:
            await self._endpoint.dismiss(key)

    def _runs(self, attempts: Sequence[Attempt], how: str, last: int) -> list[Any]:
        """Return runs that end in one way, at their last request or after it."""
        chosen = [attempts[number % len(attempts)] for number in range(ATTEMPTS + 1)]
        if how == "ended":
            return [self._run(task, text) for task, text in chosen]
        hangs = how == "cancelled"
        return [self._run(task, text, stops_at=last, hangs=hangs) for task, text in chosen]

    def _run(
        self, task: Task[Any], text: str, *, stops_at: int | None = None, hangs: bool = False
    ) -> list[Any]:
        """Return a run.

        Args:
            task: The task.
            text: What the policy says.
            stops_at: The number of the request that gets no answer; None: none.
            hangs: Whether it waits for long, instead of being refused at once.
        """
        answer = answer_agent(split_turns(text))
        if stops_at is not None:
            answer = _stopped(answer, stops_at, hangs=hangs)
        completer = ScriptedCompleter(
            answer, max_turns=self._subject.env.max_turns, prompt=task.prompt
        )
        access = self._endpoint.admit(completer)
        self._keys.append(access.key)
        return [address(task), text, asdict(access)]


def _variants(subject: Subject, texts: Sequence[str]) -> list[str]:
    """Return each text as a whole reply, and in the form of an answer."""
    return [reply for text in texts for reply in subject.answers.reply_variants(text)]


def _stopped(answer: Answer, at: int, *, hangs: bool) -> Answer:
    """Return an answer that stops at the request of a number: it is refused, or gets none."""
    count = 0

    async def say(request: CompletionRequest, heard: Sequence[Message]) -> str | None:
        nonlocal count
        count += 1
        if count < at:
            return await answer(request, heard)
        if hangs:
            await asyncio.sleep(_HANG_SECONDS)
        return None

    return say
