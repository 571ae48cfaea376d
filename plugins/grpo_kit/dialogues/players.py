"""Scripted policies for dialogues: silent, talkative, copying and hostile ones."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core import Environment, GrpoError, Message, Rollout, Task, Verdict
from grpo_core.api.verify import Conversation, Conversations, Played, Player, play, scripted
from grpo_core.words import joined, prompt_text
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.dialogues.tool_calls import usable_tools
from grpo_kit.result import NotCheckedError
from grpo_kit.subject import Subject

CHECK_SECONDS = 2.0
"""No further dialogue is begun after this time, so that slow replies do not make the kit slow."""
_MOST_QUOTED = 3
"""Quoted words of a prompt that a player says."""
_EXAMPLE = re.compile(
    r"(?:such as|for example|for instance|e\.g\.|as in|like|(?:as|write|say|reply)(?=:))[ :,]+"
    r"[\"'`]?(\w[\w-]*(?: [\w.-]*\w){0,2})"
)
"""What stands before an example in a prompt, and up to three words of it."""
_MOST_EXAMPLES = 6
"""Possible examples of a prompt that a player says, one after the other."""
_LONGEST_REPLY = 100_000
"""Characters of a reply to short turns after which a player stops talking."""
IGNORANT: Mapping[str, str] = {
    "silence": "",
    "a word": "banana",
    "a question": "What is the answer? Tell me.",
    "giving up": "I give up.",
}
"""What a policy says in every turn that does not know the task, by its kind."""


def answers_by_itself(env: Environment[Any]) -> bool:
    """Return whether the environment answers turns of the policy without tools."""
    return env.rung() == "episode" or type(env).reply is not Environment.reply


def refuse_agents(subject: Subject) -> None:
    """Raise NotCheckedError if an agent makes the attempts."""
    if subject.has_agents:
        raise NotCheckedError(
            "an agent makes its attempts: it asks the policy, and no reply is asked for (see agent)"
        )


def require_dialogue(subject: Subject) -> None:
    """Raise NotCheckedError unless the environment holds dialogues that can be played."""
    env = subject.env
    refuse_agents(subject)
    if env.max_turns < 2:
        raise NotCheckedError("its dialogues have a single turn (max_turns = 1)")
    if not answers_by_itself(env) and not usable_tools(env):
        raise NotCheckedError("it has neither reply() nor tools, so nothing is said (reply.form)")
    require_available(subject)


def require_available(subject: Subject) -> None:
    """Raise NotCheckedError if a service is missing, or replies do not return."""
    if subject.env.needs and subject.unavailable:
        raise NotCheckedError(subject.unavailable)
    if subject.replies.hanging:
        raise NotCheckedError(f"{subject.replies.hanging} (see reply.form)")


def always(text: str) -> Player:
    """Return a player that says the same in every turn."""
    return lambda messages: text


def first_then(first: str, rest: str) -> Player:
    """Return a player that says one text first, and another one in every later turn."""
    return lambda messages: rest if any(m.role == "assistant" for m in messages) else first


def silent(messages: Sequence[Message]) -> str | None:
    """Return no turn at all."""
    return None


def echoing(task: Task[Any]) -> Player:
    """Return a player that repeats the last message: at first the prompt, then the replies."""

    def next_turn(messages: Sequence[Message]) -> str:
        return messages[-1].content if messages else prompt_text(task)

    return next_turn


def continued(text: str) -> Player:
    """Return a player that says the turns of a script, and then its last turn again and again."""
    turns = split_turns(text)

    def next_turn(messages: Sequence[Message]) -> str:
        number = sum(message.role == "assistant" for message in messages)
        return turns[min(number, len(turns) - 1)]

    return next_turn


def ordinary_players(subject: Subject, index: int) -> Mapping[str, Player]:
    """Return players who say what policies say at first, for the task number `index`."""
    task, reference = subject.tasks[index], subject.references[index]
    others = [text for text in subject.references if text is not None and text != reference]
    said = _examples(task)[: subject.env.max_turns]
    return {
        **{kind: always(text) for kind, text in IGNORANT.items()},
        **{f"{word!r}, as the prompt quotes it": always(word) for word in quoted_in(task)},
        **({"what the prompt may give as examples": scripted(said)} if said else {}),
        "the prompt, then an echo of each reply": echoing(task),
        **({} if reference is None else {"the reference": continued(reference)}),
        **({"the reference of another task": continued(others[0])} if others else {}),
    }


def quoted_in(task: Task[Any]) -> Sequence[str]:
    """Return what stands in quotation marks in the prompt: often what a policy may say."""
    found = re.findall(r"""(?<!\w)['"`“‘](\w[^'"`“”‘’\n]{0,18})['"`”’](?!\w)""", prompt_text(task))
    return list(dict.fromkeys(found))[:_MOST_QUOTED]


def _examples(task: Task[Any]) -> list[str]:
    """Return one to three words behind "such as" and the like: often what a policy may say."""
    found = [match.split() for match in _EXAMPLE.findall(prompt_text(task))]
    by_length = [[" ".join(words[:n]) for words in found if len(words) >= n] for n in (2, 1, 3)]
    return list(dict.fromkeys(text for texts in by_length for text in texts))[:_MOST_EXAMPLES]


class PlayClock:
    """Track whether there is time for another dialogue."""

    def __init__(self, seconds: float = CHECK_SECONDS) -> None:
        self._end = time.monotonic() + seconds

    @property
    def up(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self._end


def affordable_turns(subject: Subject, *, dialogues: int, most: int) -> int:
    """Return how many turns each of some dialogues may have, at most `most` and at least 1."""
    seconds = max(subject.replies.mean_seconds, 1e-6) * dialogues
    return max(1, min(most, int(CHECK_SECONDS / seconds)))


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question to the environment, and its reply."""

    task: Task[Any]
    messages: Sequence[Message]
    reply: Sequence[Message] | None


@dataclass(slots=True)
class Recorder:
    """Passes calls on, and keeps what was asked and replied."""

    replies: Conversations
    exchanges: list[Exchange] = field(default_factory=list)

    def conversation(self, task: Task[Any]) -> Conversation:
        """Return a conversation whose replies are kept."""
        return _Recorded(self.replies.conversation(task), task, self.exchanges)


@dataclass(slots=True)
class _Recorded:
    """Wrap a conversation, and record its replies."""

    conversation: Conversation
    task: Task[Any]
    exchanges: list[Exchange]

    async def open(self) -> Sequence[Message]:
        return await self.conversation.open()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        reply = await self.conversation.reply(messages)
        self.exchanges.append(Exchange(self.task, messages, reply))
        return reply

    async def verdict(self, rollout: Rollout) -> Verdict:
        return await self.conversation.verdict(rollout)

    async def close(self) -> None:
        await self.conversation.close()


async def played(
    subject: Subject, task: Task[Any], player: Player, *, most: int | None = None
) -> Played:
    """Return what happened in a dialogue of at most `most` turns; None: as the environment says."""
    max_turns = subject.env.max_turns if most is None else most
    return await play(subject.remembered, task, _patient(player), max_turns=max_turns)


async def judged(
    subject: Subject, task: Task[Any], player: Player, *, most: int | None = None
) -> tuple[Rollout, Verdict]:
    """Return a dialogue in which the player says at most `most` turns, and the verdict on it."""
    talk = await play(
        subject.remembered,
        task,
        _patient(player if most is None else limited(player, most)),
        max_turns=subject.env.max_turns,
        judge=True,
    )
    assert talk.verdict is not None
    return talk.rollout, talk.verdict


def limited(player: Player, turns: int) -> Player:
    """Return a player that stops talking after so many turns."""

    def next_turn(messages: Sequence[Message]) -> str | Message | None:
        said = sum(message.role == "assistant" for message in messages)
        return player(messages) if said < turns else None

    return next_turn


def _patient(player: Player) -> Player:
    """Return a player that stops talking when the replies become endless."""

    def next_turn(messages: Sequence[Message]) -> str | Message | None:
        return None if is_endless(messages[-1:]) else player(messages)

    return next_turn


def is_endless(messages: Sequence[Message]) -> bool:
    """Return whether some messages are longer than a policy could read."""
    return sum(len(message.content) for message in messages) > _LONGEST_REPLY


def texts_of(replies: Sequence[Sequence[Message]]) -> Iterator[str]:
    """Return the content of each message of some replies."""
    return (message.content for reply in replies for message in reply)


async def reply_here(subject: Subject, task: Task[Any], text: str) -> str:
    """Return what is replied in this process to a first turn, as a text; "" if nothing is."""
    try:
        reply = await subject.replies_here.reply(task, (Message.turn(text),))
    except GrpoError:  # the subject of reply.form and tool.form
        return ""
    return joined(reply or ())
