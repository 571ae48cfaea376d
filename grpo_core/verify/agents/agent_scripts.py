"""Answer an agent's requests by a script, as the author's kit does in place of a policy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from grpo_core.calls.call import Call
from grpo_core.protocol.endpoint import (
    Access,
    Choice,
    Completer,
    CompletionAnswer,
    CompletionRequest,
    RefusedRequestError,
)
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.thoughts import DEFAULT_TAGS
from grpo_core.protocol.tool_calls import sendable_calls, text_beside_calls
from grpo_core.protocol.types import Finish, Message, Rollout, Task
from grpo_core.verify.agents.agents import AgentConversation
from grpo_core.verify.agents.sent_back import with_thoughts

Answer = Callable[[CompletionRequest, Sequence[Message]], Awaitable[str | None]]
"""Returns what the policy says to a request, whose messages are given without the task's prompt;
None to refuse it."""
Refusal = Literal["turns_exceeded", "context_length_exceeded"]
_WORDS: dict[Refusal, str] = {
    "turns_exceeded": "the attempt has no completion left",
    "context_length_exceeded": "the messages leave no room for an answer",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold an agent's request for a completion, and the answer."""

    request: CompletionRequest
    text: str | None
    """What the policy said; None if it was refused."""

    @property
    def content(self) -> str:
        """Return what the request holds, as text in which equal requests are equal.

        The ids of calls are left out: they are numbers of this attempt.
        """
        prompt: Any = self.request.prompt
        if not isinstance(prompt, str):
            prompt = [_without_ids(part) for part in prompt]
        tools = [dict(tool) for tool in self.request.tools]
        return json.dumps([prompt, tools, self.request.json_schema], sort_keys=True, default=str)


class ScriptedCompleter:
    """Answers requests by a script (a `Completer`).

    Args:
        answer: says what the policy says.
        max_turns: the most completions.
        prompt: the messages of the task.
        clock: the clock of the agent, which stands still while the policy is asked.
        refusal: the code with which requests are refused.
        is_cut: whether each turn is one that its token budget has ended.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        max_turns: int,
        prompt: str | tuple[Message, ...],
        clock: Call | None = None,
        refusal: Refusal = "turns_exceeded",
        is_cut: bool = False,
    ) -> None:
        self._answer, self._max_turns, self._prompt = answer, max_turns, prompt
        self._clock = clock or Call(math.inf)
        self._refusal, self._is_cut = refusal, is_cut
        self.messages: tuple[Message, ...] = ()
        """What followed the prompt, as the last request and its answer have it."""
        self.turns = 0
        self.asked: list[Asked] = []
        self._answers: list[Message] = []

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        """Return the next turns of the script; see `Completer.complete`."""
        heard = without_prompt(messages_of(request.prompt), self._prompt)
        heard = with_thoughts(heard, self._answers, DEFAULT_TAGS)
        choices = [await self._choice(request, heard) for _ in range(request.count)]
        self.messages = (*heard, choices[-1].message)
        self._answers += [choice.message for choice in choices]
        return CompletionAnswer(tuple(choices), prompt_tokens=len(heard))

    async def _choice(self, request: CompletionRequest, heard: Sequence[Message]) -> Choice:
        self.turns += 1
        number, text = self.turns, None
        if number <= self._max_turns:
            with self._clock.stopped():
                text = _as_decoded(await self._answer(request, heard))
        self.asked.append(Asked(request, text))
        if text is None:
            self.turns -= 1
            raise RefusedRequestError(_WORDS[self._refusal], code=self._refusal)
        message = Message.turn(text)
        content = message.content
        calls = sendable_calls(content, "hermes", request.tools) if request.tools else ()
        if calls:
            numbered = [
                replace(call, id=f"call{number}x{place}") for place, call in enumerate(calls)
            ]
            beside = text_beside_calls(content, "hermes").strip()
            message = replace(message, content=beside, tool_calls=tuple(numbered))
        if self._is_cut:
            return Choice(text, message, "length", (), (), ())
        is_call = message.tool_calls is not None
        return Choice(text, message, "tool_calls" if is_call else "stop", (), (), ())


class Recording(Completer, Protocol):
    """Answers the requests of an agent, and records what was said."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return what followed the prompt, as the last request and its answer have it."""
        ...

    @property
    def turns(self) -> int:
        """Return the number of completions."""
        ...


@dataclass(frozen=True, slots=True)
class AgentPlay:
    """Hold the outcome of an attempt by an agent with a scripted policy."""

    rollout: Rollout
    """The rollout, without tokens."""
    asked: tuple[Asked, ...]
    """What the agent asked for, in the order in which the policy answered."""
    ended: bool
    """Whether the agent ended by itself, and no refusal of a request ended it."""


async def run_script(
    conversation: AgentConversation,
    task: Task[Any],
    answers: Callable[[], Answer],
    *,
    max_turns: int,
    refusal: Refusal = "turns_exceeded",
    is_cut: bool = False,
) -> AgentPlay:
    """Run one attempt by an agent with a scripted policy.

    Args:
        conversation: runs the agent.
        task: the task.
        answers: returns what answers the requests of one run; an agent that failed is run again.
        max_turns: the most completions.
        refusal: as for `ScriptedCompleter`.
        is_cut: as for `ScriptedCompleter`.
    """
    completers: list[ScriptedCompleter] = []

    def begin(clock: Call) -> ScriptedCompleter:
        completer = ScriptedCompleter(
            answers(),
            max_turns=max_turns,
            prompt=task.prompt,
            clock=clock,
            refusal=refusal,
            is_cut=is_cut,
        )
        completers.append(completer)
        return completer

    rollout, ended = await run_agent(conversation, begin)
    if is_cut and rollout.finish == "stop":
        rollout = replace(rollout, finish="length")
    asked = completers[-1].asked if completers else ()
    return AgentPlay(rollout, tuple(asked), ended)


async def run_agent(
    conversation: AgentConversation, begin: Callable[[Call], Recording]
) -> tuple[Rollout, bool]:
    """Run one attempt by an agent, and record it.

    Args:
        conversation: runs the agent.
        begin: returns what answers its requests, each time it is started; it gets the clock of the
            agent, to be stopped while the agent waits.

    Returns:
        The rollout, without tokens, and whether the agent ended by itself.
    """
    completer: Recording | None = None

    @asynccontextmanager
    async def admit(clock: Call) -> AsyncIterator[Access]:
        nonlocal completer
        completer = begin(clock)
        access = conversation.endpoint.admit(completer)
        try:
            yield access
        finally:
            await conversation.endpoint.dismiss(access.key)

    try:
        result = await conversation.run(admit)
    except GrpoError as error:
        said = () if completer is None else completer.messages
        return Rollout(said, "error", error=str(error)), False
    assert completer is not None, "an agent that ended was started"
    ended = not result.cut_off
    if not completer.turns:
        reason = result.cut_off or "it ended without a request"
        error_text = f"the agent got nothing from the policy: {reason}"
        return Rollout((), "error", error=error_text), ended
    finish: Finish = "stop" if ended else "length"
    return Rollout(completer.messages, finish, returned=result.returned), ended


def _as_decoded(text: str | None) -> str | None:
    """Return a text as a policy's tokens give it: without halves of characters of UTF-16."""
    return None if text is None else re.sub("[\ud800-\udfff]", "\ufffd", text)


def without_prompt(
    messages: tuple[Message, ...], prompt: str | tuple[Message, ...]
) -> tuple[Message, ...]:
    """Return the messages of a request without those of the task's prompt, if it begins so."""
    if isinstance(prompt, str) or messages[: len(prompt)] != prompt:
        return messages
    return messages[len(prompt) :]


def messages_of(prompt: str | tuple[int, ...] | tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages of a request; a text is one of the user, tokens are none."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    return tuple(part for part in prompt if isinstance(part, Message))


def _without_ids(part: int | Message) -> Any:
    if isinstance(part, int):
        return part
    calls = [(call.name, dict(call.arguments)) for call in part.tool_calls or ()]
    return [part.role, part.content, calls]
