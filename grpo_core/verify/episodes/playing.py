"""Play dialogues: whose turn it is, when a rollout is over, and scripted turns of the policy.

The trainer and the author's kit share this, so that the kit plays what a run would play.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.protocol.endpoint import CompletionRequest
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Finish, Message, Rollout, Script, Task, Verdict
from grpo_core.verify.agents.agent_scripts import Answer, Asked, run_script
from grpo_core.verify.agents.agents import AgentConversation
from grpo_core.verify.episodes.conversation import Conversation, Conversations


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

    def add_turn(self, turn: Message, finish: Finish = "stop") -> None:
        """Append a turn of the policy, which was split where it was drawn or received."""
        self.messages.append(turn)
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


Player = Callable[[Sequence[Message]], str | Message | None]
"""Returns the policy's next turn after the messages so far; None to stop talking.

A text is split into thoughts and content by the default tags; a message is taken as it is.
"""


@dataclass(frozen=True, slots=True)
class Played:
    """Describe what happened in a dialogue with a scripted policy."""

    rollout: Rollout
    """As the trainer would hand it to the verifier; `rollout.error` says why a reply failed."""
    replies: tuple[Sequence[Message], ...]
    """The environment's replies; if the player stopped, the last one is not in the rollout."""
    ended: bool
    """Whether the environment ended the dialogue, and neither the player nor the most turns did."""
    verdict: Verdict | None = None
    """The verdict, if it was asked for."""
    asked: tuple[Asked, ...] = ()
    """What an agent asked for."""


async def play(
    conversations: Conversations,
    task: Task[Any],
    turns: Script | Sequence[Message] | Player,
    *,
    max_turns: int,
    judge: bool = False,
) -> Played:
    """Play a dialogue to its end, as a rollout does.

    A script ends after its last turn; the environment is still asked for a reply to it, which is
    not part of the rollout, as a rollout ends with a turn of the policy. To an agent, which asks
    until it is content, the last turn is said again (see `answer_agent`).

    Args:
        conversations: speak for the environment.
        task: the task of the dialogue.
        turns: what the policy says: the text of one turn, the texts of several, turns of a record,
            or a player.
        max_turns: most turns of the policy.
        judge: whether the verdict is asked for.
    """
    conversation = conversations.conversation(task)
    if isinstance(conversation, AgentConversation):
        talk = await run_script(
            conversation, task, lambda: answer_agent(turns), max_turns=max_turns
        )
        verdict = await conversation.verdict(talk.rollout) if judge else None
        return Played(talk.rollout, (), talk.ended, verdict, talk.asked)
    player = turns if callable(turns) else scripted(turns)
    transcript = Transcript(max_turns, conversation)
    received: list[Sequence[Message]] = []
    unanswered: Sequence[Message] = ()
    ended = False
    try:
        await transcript.open()
        while transcript.finish == "stop":
            turn = player((*transcript.messages, *unanswered))
            if turn is None:
                break
            transcript.messages += unanswered
            transcript.add_turn(Message.turn(turn) if isinstance(turn, str) else turn)
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


def scripted(script: Script | Sequence[Message]) -> Player:
    """Return a player that says the turns of a script or a record, whatever it hears."""
    turns: tuple[str | Message, ...] = (script,) if isinstance(script, str) else tuple(script)

    def next_turn(messages: Sequence[Message]) -> str | Message | None:
        number = sum(message.role == "assistant" for message in messages)
        return turns[number] if number < len(turns) else None

    return next_turn


def answer_agent(turns: Script | Sequence[Message] | Player) -> Answer:
    """Return what answers the requests of an agent in one attempt.

    The turns of a script are said in the order of the requests, whatever these hold, since an agent
    may rewrite its history. Then the last turn is said again: an agent that goes on to ask comes to
    its own end, as with a policy that has no more to say, and is not cut off by a refusal. A player
    that returns None refuses the request.
    """
    if callable(turns):
        player = turns

        async def play_on(request: CompletionRequest, heard: Sequence[Message]) -> str | None:
            turn = player(heard)
            return turn.raw if isinstance(turn, Message) else turn

        return play_on
    said = (turns,) if isinstance(turns, str) else turns
    texts = [turn.raw if isinstance(turn, Message) else turn for turn in said]
    *first, last = texts or ("",)
    rest = iter(first)

    async def say_next(request: CompletionRequest, heard: Sequence[Message]) -> str | None:
        return next(rest, last)

    return say_next
