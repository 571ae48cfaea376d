"""Play dialogues: whose turn it is, when a rollout is over, and scripted turns of the policy.

The trainer and the author's kit share this, so that the kit plays what a run would play.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from grpo_core.calls.deadline import DeadlineError
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import (
    Finish,
    Message,
    Rollout,
    Script,
    Task,
    ToolCall,
    Verdict,
)
from grpo_core.verify.checks import check_reply
from grpo_core.verify.conversation import Conversation, Conversations, StatelessConversations
from grpo_core.verify.hosts import Host, create_worker_host
from grpo_core.verify.inline import InlineHost
from grpo_core.verify.judging import describe_failure


@dataclass(slots=True)
class Transcript:
    """Holds the messages of a rollout in progress, and says whether the policy has another turn."""

    max_turns: int
    """Most turns of the policy."""
    conversation: Conversation | None = None
    """Speaks for the environment; None: it says nothing."""
    messages: list[Message] = field(default_factory=list)
    finish: Finish = "stop"
    error: str = ""
    """Why the dialogue failed, if `finish` is "error"."""
    turn: int = 0
    """Number of finished turns of the policy."""

    def add_turn(
        self,
        text: str,
        finish: Finish = "stop",
        tool_calls: tuple[ToolCall, ...] | None = None,
    ) -> None:
        """Append a turn of the policy, with its tool calls where its model has its own format."""
        self.messages.append(Message("assistant", text, tool_calls))
        self.finish = finish
        self.turn += 1

    async def open(self) -> Sequence[Message]:
        """Open the conversation, and append and return the messages with which it opens.

        If that fails, the dialogue is over.
        """
        opening: Sequence[Message] = ()
        if self.conversation is not None:
            try:
                opening = await self.conversation.open()
            except GrpoError as error:
                self.fail(str(error))
        self.messages += opening
        return opening

    async def next_reply(self) -> Sequence[Message] | None:
        """Return the environment's reply, which is not appended; None if the dialogue is over.

        A turn of the policy that was cut off ends it, and so does a reply that fails.
        """
        if self.conversation is None or self.finish != "stop" or self.turn >= self.max_turns:
            return None
        try:
            return await self.conversation.reply(tuple(self.messages))
        except GrpoError as error:
            self.fail(str(error))
            return None

    def fail(self, error: str) -> None:
        """End the dialogue with an error; such a rollout is never scored."""
        self.finish, self.error = "error", error


Player = Callable[[Sequence[Message]], str | None]
"""Returns the policy's next turn after the messages so far; None to stop talking."""


@dataclass(frozen=True, slots=True)
class Played:
    """Says what happened in a dialogue with a scripted policy."""

    rollout: Rollout
    """As the trainer would hand it to the verifier; `rollout.error` says why a reply failed."""
    replies: tuple[Sequence[Message], ...]
    """The environment's replies; if the player stopped, the last one is not in the rollout."""
    ended: bool
    """Whether the environment ended the dialogue, and neither the player nor the most turns did."""
    verdict: Verdict | None = None
    """The verdict, if it was asked for."""


async def play(
    conversations: Conversations,
    task: Task[Any],
    turns: Script | Player,
    *,
    max_turns: int,
    judge: bool = False,
) -> Played:
    """Play a dialogue to its end, as a rollout does.

    A script ends after its last turn; the environment is still asked for a reply to it, which is
    not part of the rollout, as a rollout ends with a turn of the policy.

    Args:
        conversations: speak for the environment.
        task: the task of the dialogue.
        turns: what the policy says: the text of one turn, the texts of several, or a player.
        max_turns: most turns of the policy.
        judge: whether the verdict is asked for.
    """
    player = turns if callable(turns) else scripted(turns)
    conversation = conversations.conversation(task)
    transcript = Transcript(max_turns, conversation)
    received: list[Sequence[Message]] = []
    unanswered: Sequence[Message] = ()
    ended = False
    try:
        await transcript.open()
        while transcript.finish == "stop":
            text = player((*transcript.messages, *unanswered))
            if text is None:
                break
            transcript.messages += unanswered
            transcript.add_turn(text)
            reply = await transcript.next_reply()
            unanswered = reply or ()
            if reply is None:
                ended = transcript.finish == "stop" and transcript.turn < max_turns
                break
            received.append(reply)
        rollout = Rollout(
            tuple(transcript.messages),
            transcript.finish,
            error=transcript.error,
            reply_dropped=bool(unanswered),
        )
        verdict = await conversation.verdict(rollout) if judge else None
    finally:
        await conversation.close()
    return Played(rollout, tuple(received), ended, verdict)


def turns_of(script: Script) -> tuple[str, ...]:
    """Return the turns of a script."""
    return (script,) if isinstance(script, str) else tuple(script)


def scripted(script: Script) -> Player:
    """Return a player that says the turns of a script, whatever it hears."""
    turns = turns_of(script)

    def next_turn(messages: Sequence[Message]) -> str | None:
        number = sum(message.role == "assistant" for message in messages)
        return turns[number] if number < len(turns) else None

    return next_turn


class IsolatedReplies(StatelessConversations):
    """Asks an environment for replies in a worker process, or in a thread where there is none.

    A reply() that blocks, or that never returns, cannot hold the caller. If it hangs at first, or
    twice in a row, further calls fail at once.
    """

    def __init__(
        self,
        env: Environment[Any],
        *,
        settings: VerifyConfig,
        spec: Spec | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare the calls; no process is started yet.

        Args:
            env: the environment.
            settings: the deadline and the workers; "inline" keeps the calls in this process.
            spec: Spec by which a worker builds its own copy of `env`; None: derived from its class.
            overrides: settings of that copy; None: those of `env`.
        """
        self._env = env
        self.seconds = settings.timeout_seconds or env.timeout_seconds
        """The deadline of a reply."""
        self.hanging = ""
        """Why no reply is asked for any longer; "" while replies are asked for."""
        self._patience = 1
        """How many calls in a row may hang before no further one is made."""
        self._hanging_calls = 0
        self._calls, self._busy_seconds = 0, 0.0
        self._thread_host = InlineHost(env, max_concurrency=1, replies_in_thread=True)
        self._host: Host = self._thread_host
        self._untried = False
        if settings.isolation != "inline" and not env.needs:
            try:
                self._host = create_worker_host(env, spec, overrides, settings, size=1)
                self._untried = True
            except ConfigError:  # another process cannot import the class
                pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._host.close()

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's next turn after `messages`; None if it ends the dialogue.

        Raises:
            GrpoError: it fails, or does not answer in time; the message does not name the task.
        """
        if self.hanging:
            raise GrpoError(self.hanging)
        host = await self._working_host(task)
        started = time.monotonic()
        try:
            reply = check_reply(await host.call("reply", task, messages, seconds=self.seconds))
            self._patience, self._hanging_calls = 2, 0
            return reply
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            failure = describe_failure(error, "reply", self.seconds).partition("; its last output")
            if isinstance(error, DeadlineError):
                self._hanging_calls += 1
                if self._hanging_calls >= self._patience:
                    self.hanging = failure[0]
            raise GrpoError(failure[0]) from None
        finally:
            self._calls += 1
            self._busy_seconds += time.monotonic() - started

    @property
    def mean_seconds(self) -> float:
        """Return the mean seconds of a reply so far."""
        return self._busy_seconds / max(1, self._calls)

    def try_again(self) -> None:
        """Ask for replies again, since what was hanging was one that hardly comes again."""
        self.hanging, self._hanging_calls = "", 0

    async def _working_host(self, task: Task[Any]) -> Host:
        """Return the worker's host, or the thread's if a worker cannot make the task."""
        if self._untried:
            self._untried = False
            try:
                await self._host.task(task.key, seconds=self.seconds)
            except Exception:  # noqa: BLE001 - the reason is another check's subject
                await self._host.close()
                self._host = self._thread_host
        return self._host
