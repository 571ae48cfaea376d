"""Answer an agent's requests by a script, as the author's kit does in place of a policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

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
from grpo_core.protocol.tool_calls import read_calls, text_beside_calls
from grpo_core.protocol.types import Finish, Message, Rollout, Task
from grpo_core.verify.agents import AgentConversation

NextText = Callable[[Sequence[Message]], str | None]
"""Returns the policy's next turn after the messages so far; None to say no more."""


class ScriptedCompleter:
    """Answers requests by a script (a `Completer`).

    Args:
        next_text: says what the policy says; it hears the policy's turns and what the agent added
            to them.
        max_turns: the most completions.
        prompt: the messages of the task, which it does not hear.
    """

    def __init__(
        self, next_text: NextText, *, max_turns: int, prompt: str | tuple[Message, ...]
    ) -> None:
        self._next_text, self._max_turns, self._prompt = next_text, max_turns, prompt
        self.messages: tuple[Message, ...] = ()
        """What followed the prompt, as the last request and its answer have it."""
        self.turns = 0

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        """Return the next turns of the script; see `Completer.complete`."""
        heard = without_prompt(messages_of(request.prompt), self._prompt)
        choices = [self._choice(request, heard) for _ in range(request.count)]
        self.messages = (*heard, choices[-1].message)
        return CompletionAnswer(tuple(choices), prompt_tokens=len(heard))

    def _choice(self, request: CompletionRequest, heard: Sequence[Message]) -> Choice:
        text = self._next_text(heard) if self.turns < self._max_turns else None
        if text is None:
            raise RefusedRequestError("the policy says no more", code="turns_exceeded")
        self.turns += 1
        message = Message("assistant", text)
        calls = read_calls(text, "hermes", request.tools) if request.tools else ()
        if calls and not any(call.error for call in calls):
            numbered = [
                replace(call, id=f"call{self.turns}x{number}") for number, call in enumerate(calls)
            ]
            beside = text_beside_calls(text, "hermes").strip()
            message = Message("assistant", beside, tuple(numbered))
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


async def run_script(
    conversation: AgentConversation, task: Task[Any], next_text: NextText, *, max_turns: int
) -> tuple[Rollout, bool]:
    """Let an agent make an attempt with a scripted policy.

    Returns:
        The rollout, without tokens, and whether the agent ended by itself.
    """
    return await run_agent(
        conversation,
        lambda clock: ScriptedCompleter(next_text, max_turns=max_turns, prompt=task.prompt),
    )


async def run_agent(
    conversation: AgentConversation, begin: Callable[[Call], Recording]
) -> tuple[Rollout, bool]:
    """Let an agent make an attempt.

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
    if not completer.turns and not result.cut_off:
        return Rollout((), "error", error="the agent ended without a request"), True
    finish: Finish = "length" if result.cut_off else "stop"
    rollout = Rollout(completer.messages, finish, returned=result.returned)
    return rollout, not result.cut_off


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
