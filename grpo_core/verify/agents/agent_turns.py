"""Hold an attempt by an agent as a conversation, for somebody who takes the policy's part by hand.

What the agent asks next is the reply to a turn, and the attempt is over when the agent has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.protocol.endpoint import CompletionRequest
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Message, Rollout, Task, Verdict
from grpo_core.verify.agents.agent_scripts import AgentPlay, run_script
from grpo_core.verify.agents.agents import AgentConversation


class AgentTurns:
    """Present an attempt by an agent as a `Conversation`.

    Args:
        conversation: runs the agent, once, and judges the attempt.
        task: the task.
        max_turns: the most completions.
    """

    def __init__(self, conversation: AgentConversation, task: Task[Any], *, max_turns: int) -> None:
        self._conversation = conversation.without_retries()
        self._task, self._max_turns = task, max_turns
        self._requests: asyncio.Queue[tuple[CompletionRequest, Sequence[Message]]] = asyncio.Queue()
        self._texts: asyncio.Queue[str] = asyncio.Queue()
        self._running: asyncio.Task[AgentPlay] | None = None
        self._known: tuple[Message, ...] = ()
        """The history that the last request and its answer have."""
        self.is_new_history = False
        """Whether the last request goes on from another history than the one before had."""
        self.tools: Sequence[Mapping[str, Any]] = ()
        """What the last request offers the policy to call."""

    async def open(self) -> Sequence[Message]:
        """Start the agent, and return what its first request adds to the prompt.

        Raises:
            GrpoError: it fails, or ends without a request.
        """
        self._running = asyncio.create_task(
            run_script(self._conversation, self._task, lambda: self._ask, max_turns=self._max_turns)
        )
        messages = await self._next()
        if messages is None:
            raise GrpoError(self._running.result().rollout.error)
        return messages

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Answer the request by the last message, and return what the next one adds.

        None: the agent has ended.

        Raises:
            GrpoError: the agent failed.
        """
        self._known = (*self._known, messages[-1])
        self._texts.put_nowait(messages[-1].raw)
        following = await self._next()
        if following is None and self._running is not None:
            error = self._running.result().rollout.error
            if error:
                raise GrpoError(error)
        return following

    async def verdict(self, rollout: Rollout) -> Verdict:
        """Judge what came of the attempt: what the agent returned, and not the messages alone."""
        assert self._running is not None, "open() comes first"
        play = await self._running
        return await self._conversation.verdict(play.rollout)

    async def close(self) -> None:
        """End the agent; more than one call is harmless."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running

    async def _ask(self, request: CompletionRequest, heard: Sequence[Message]) -> str:
        """Ask for the next turn of the policy: requests that come at once, one after the other."""
        self._requests.put_nowait((request, heard))
        return await self._texts.get()

    async def _next(self) -> Sequence[Message] | None:
        """Return what the next request adds to the history; None if the agent has ended."""
        assert self._running is not None
        asking = asyncio.ensure_future(self._requests.get())
        await asyncio.wait({asking, self._running}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            return None
        request, messages = asking.result()
        heard, known = tuple(messages), self._known
        self.tools, self._known = request.tools, heard
        self.is_new_history = not all(map(_is_same, heard, known)) or len(heard) < len(known)
        return heard if self.is_new_history else heard[len(known) :]


def _is_same(first: Message, second: Message) -> bool:
    """Return whether two messages say the same; calls of tools may have become a part of one."""
    if first.role == "assistant" == second.role and (first.tool_calls or second.tool_calls):
        return True
    return (first.role, first.content) == (second.role, second.content)
