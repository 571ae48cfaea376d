"""Hold an attempt that an agent makes: it asks for the policy's turns through an endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpo_core.calls.call import Call
from grpo_core.protocol.endpoint import Access
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Rollout, Task
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.rollout.capture import Capture, Drawing
from grpo_core.train.rollout.draws import Draws
from grpo_core.verify.agents.agents import AgentConversation, AgentResult
from grpo_core.verify.episodes.conversation import Conversation


class AgentAttempt:
    """Run one attempt by an agent, and record its rollout.

    Args:
        task: the task.
        budget: limits its tokens and turns.
        draws: fixes its random numbers.
    """

    def __init__(self, task: Task[Any], budget: Budget, draws: Draws) -> None:
        self.task, self.budget, self._draws = task, budget, draws
        self.conversation: Conversation | None = None
        """Starts the agent and judges the attempt."""
        self._capture: Capture | None = None
        self._result = AgentResult()
        self._error = "the agent was not started"
        self._rollout: Rollout | None = None
        """What the attempt became; None before its end."""

    @property
    def kept_mass(self) -> float:
        """Return the least probability mass that top-p, top-k and min-p kept in any draw."""
        return 1.0 if self._capture is None else self._capture.kept_mass

    async def play(self, drawing: Drawing) -> None:
        """Run the agent to its end.

        Args:
            drawing: how and by what the policy is drawn.

        Raises:
            Exception: the policy cannot be sampled.
        """
        conversation = self.conversation
        assert isinstance(conversation, AgentConversation)

        @asynccontextmanager
        async def admit(clock: Call) -> AsyncIterator[Access]:
            self._capture = Capture(self.task, self.budget, drawing, self._draws, clock)
            access = conversation.endpoint.admit(self._capture)
            try:
                yield access
            finally:
                await conversation.endpoint.dismiss(access.key)

        try:
            self._result, self._error = await conversation.run(admit), ""
        except GrpoError as error:
            self._error = str(error)
        if self._capture is not None and self._capture.failure is not None:
            raise self._capture.failure
        if not self._error and not (self._capture and self._capture.turn_lengths()):
            reason = self._result.cut_off or "it ended without a request"
            self._error = f"the agent got nothing from the policy: {reason}"

    async def close(self) -> None:
        """Close the conversation."""
        if self.conversation is not None:
            await self.conversation.close()

    def rollout(self) -> Rollout:
        """Return the rollout of the attempt, which has ended; it is built once."""
        if self._rollout is None:
            self._rollout = self._build_rollout()
        return self._rollout

    def _build_rollout(self) -> Rollout:
        capture = self._capture
        if self._error or capture is None:
            return Rollout((), "error", error=self._error)
        first, *later = capture.segments()
        is_cut_off = bool(self._result.cut_off) or capture.was_cut_off
        return Rollout(
            messages=capture.messages(),
            finish="length" if is_cut_off else "stop",
            prompt_ids=first.prompt_ids,
            token_ids=first.token_ids,
            logprobs=first.logprobs,
            trainable=first.trainable,
            versions=capture.versions(),
            turn_lengths=capture.turn_lengths(),
            later_segments=tuple(later),
            returned=self._result.returned,
        )
