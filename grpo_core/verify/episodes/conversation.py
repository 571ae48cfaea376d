"""Hold conversations: attempts in which the policy and its environment speak in turn.

An environment with episodes keeps state for each attempt, any other one keeps none; whoever plays
an attempt sees no difference.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.executor import Op
from grpo_core.protocol.types import Message, Rollout, Task, Verdict
from grpo_core.verify.episodes.printed import Printed
from grpo_core.verify.judge.checks import check_opening, check_reply
from grpo_core.verify.judge.judging import Ask, ReplayError, describe_failure
from grpo_core.verify.workers.hosts import Host
from grpo_core.verify.workers.pool import WorkerLostError
from grpo_core.words import cut

T = TypeVar("T")
_CLOSE_SECONDS = 10.0
"""How long an episode may take to close."""
_LOSSES_IN_COMPANY = 2
"""How often an episode may be lost with its worker before it gets one of its own."""
_LOSSES_ALONE = 5
"""How often it may then be lost; the last time counts as its own doing."""


class Conversation(Protocol):
    """Speaks for the environment in one attempt."""

    async def open(self) -> Sequence[Message]:
        """Return the messages that follow the prompt; call it once, before the first turn.

        Raises:
            GrpoError: the environment fails.
        """
        ...

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's messages after the policy's last turn; None at the end.

        Args:
            messages: all messages after the prompt, those of `open` included.

        Raises:
            GrpoError: the environment fails.
        """
        ...

    async def verdict(self, rollout: Rollout) -> Verdict:
        """Judge the attempt; a failure is a verdict, too."""
        ...

    async def close(self) -> None:
        """Release what the attempt holds; more than one call is harmless."""
        ...


class Conversations(Protocol):
    """Begins conversations (a `Verifier` does)."""

    def conversation(self, task: Task[Any]) -> Conversation:
        """Return a conversation about a task, which its owner opens and closes."""
        ...


class Replies(Protocol):
    """Answers for an environment that keeps no state of its dialogues."""

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's next messages; None if the dialogue is over.

        Raises:
            GrpoError: the environment could not answer.
        """
        ...


class PlainConversation:
    """Hold a conversation without state: replies and verdict depend on the messages alone."""

    def __init__(
        self,
        replies: Replies,
        task: Task[Any],
        judge: Callable[[Task[Any], Rollout], Awaitable[Verdict]] | None = None,
    ) -> None:
        """Prepare the conversation.

        Args:
            replies: answers for the environment.
            task: the task.
            judge: judges the attempt; None where nobody asks for a verdict.
        """
        self._replies, self._task, self._judge = replies, task, judge
        self._printed = Printed()

    async def open(self) -> Sequence[Message]:
        """Return nothing: the prompt is all that the environment says first."""
        return ()

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's reply; see `Conversation.reply`."""
        with self._printed.kept():
            return await self._replies.reply(self._task, messages)

    async def verdict(self, rollout: Rollout) -> Verdict:
        """Judge the attempt."""
        assert self._judge is not None, "this conversation has no judge"
        return self._printed.before(await self._judge(self._task, rollout))

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


class StatelessConversations:
    """Begins conversations without state; a base class of what has a method `reply`."""

    def conversation(self: Replies, task: Task[Any]) -> Conversation:
        """Return a conversation about a task."""
        return PlainConversation(self, task)


class LiveEpisode:
    """Call one episode of a host, wherever it lives; methods raise what `Host.call` raises."""

    def __init__(self, host: Host, task: Task[Any], *, seconds: float, alone: bool = False) -> None:
        """Name the episode; it is made by `open`.

        Args:
            host: calls the environment.
            task: the task.
            seconds: the timeout of each method.
            alone: whether it gets a worker process of its own.
        """
        self._host, self._task, self._seconds, self._alone = host, task, seconds, alone
        self._name = secrets.token_hex(16)

    async def open(self) -> Sequence[Message]:
        """Make the episode and return the messages with which it opens."""
        return check_opening(await self._call("open", alone=self._alone))

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return its answer to the policy's last turn."""
        return check_reply(await self._call("reply", tuple(messages)))

    async def verdict(self, rollout: Rollout) -> Any:
        """Return its verdict, unchecked."""
        return await self._call("verdict", rollout)

    async def close(self) -> None:
        """Close it; a failure is logged, since the results matter more."""
        try:
            await self._call("close", seconds=_CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            logging.getLogger(__name__).warning(
                "an episode could not be closed: %s",
                describe_failure(error, "close", _CLOSE_SECONDS),
            )

    async def _call(
        self, op: Op, *arguments: Any, seconds: float | None = None, alone: bool = False
    ) -> Any:
        return await self._host.call(
            op,
            self._task,
            *arguments,
            seconds=seconds or self._seconds,
            episode=self._name,
            alone=alone,
        )


class Fresh(Protocol):
    """Makes an episode that is not open."""

    def __call__(self, task: Task[Any], *, alone: bool) -> LiveEpisode:
        """Return it; `alone` says whether it gets a worker process of its own."""
        ...


class Losses:
    """Decide how often an episode that is lost with its worker is tried again, and where.

    A worker has many episodes, any of which may have ended it, and machines end workers, too. So
    the first losses are nobody's fault; after them the episode gets a worker of its own. What is
    lost there again and again has ended it itself.
    """

    def __init__(self) -> None:
        self._count = 0

    @property
    def alone(self) -> bool:
        """Return whether the next try has a worker of its own."""
        return self._count >= _LOSSES_IN_COMPANY

    def allow_another(self) -> bool:
        """Count a loss, and return whether the episode is tried again."""
        self._count += 1
        return self._count < _LOSSES_IN_COMPANY + _LOSSES_ALONE


class EpisodeConversation:
    """Hold a conversation with an episode.

    An episode that fails in a reply, or is lost with its process, is replaced by a fresh one that
    hears the same turns, if the environment is replayable.
    """

    def __init__(
        self,
        env: Environment[Any],
        task: Task[Any],
        fresh: Fresh,
        *,
        retries: int,
        seconds: float,
        judge: Callable[[Task[Any], Rollout, Sequence[Ask]], Awaitable[Verdict]],
    ) -> None:
        """Prepare the conversation; nothing is opened yet.

        Args:
            env: the environment.
            task: the task.
            fresh: returns a new episode, which is not open.
            retries: how often a failed method is tried again; an episode that was lost with its
                worker is tried again as `Losses` says.
            seconds: the timeout of each method, for messages.
            judge: gets a verdict in the given ways, one after the other.
        """
        self._env, self._task, self._fresh, self._judge = env, task, fresh, judge
        self._retries, self._seconds = retries, seconds
        self._episode: LiveEpisode | None = None
        self._losses, self._printed = Losses(), Printed()
        self._failure = ""
        """Why there is no open episode."""

    async def open(self) -> Sequence[Message]:
        """Open an episode; see `Conversation.open`."""

        async def attempt() -> Sequence[Message]:
            self._episode = self._fresh(self._task, alone=self._losses.alone)
            return await self._episode.open()

        return await self._with_retries("open", attempt, may_repeat=True)

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the episode's answer; see `Conversation.reply`."""

        async def attempt() -> Sequence[Message] | None:
            if self._episode is None:
                self._episode = self._fresh(self._task, alone=self._losses.alone)
                await replay(self._env, self._episode, messages)
            return await self._episode.reply(messages)

        return await self._with_retries("reply", attempt, may_repeat=self._env.replayable)

    async def verdict(self, rollout: Rollout) -> Verdict:
        """Judge the attempt: by the open episode, else by a replay."""
        ways: list[Ask] = [] if self._episode is None else [self._ask_episode]
        if self._env.replayable or not ways:
            ways.append(
                lambda task, rollout: replayed(self._env, task, self._fresh, rollout, self._losses)
            )
        return self._printed.before(await self._judge(self._task, rollout, ways))

    async def close(self) -> None:
        """Close the episode, if one is open."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await _closed(episode)

    async def _ask_episode(self, task: Task[Any], rollout: Rollout) -> Any:
        if self._episode is None:
            raise WorkerLostError(self._failure)
        return await self._episode.verdict(rollout)

    async def _with_retries(
        self, op: Op, attempt: Callable[[], Awaitable[T]], *, may_repeat: bool
    ) -> T:
        """Return the result of a method of the episode; a failed one is closed before the next.

        Args:
            op: name of the method, for messages.
            attempt: calls the method, of a fresh episode if there is none.
            may_repeat: whether a fresh episode may take the place of one that failed.

        Raises:
            GrpoError: every attempt failed.
        """
        failures, again = 0, True
        while again:
            try:
                with self._printed.kept():
                    return await attempt()
            except WorkerLostError as error:  # and nothing is left to close
                self._failure, self._episode = describe_failure(error, op, self._seconds), None
                again = may_repeat and self._losses.allow_another()
            except Exception as error:  # noqa: BLE001 - environments raise what they like
                self._failure = describe_failure(error, op, self._seconds)
                await self.close()
                failures += 1
                again = may_repeat and failures <= self._retries
        key = self._task.key
        raise GrpoError(f"environment {key.env!r} failed in {op}() for {key}: {self._failure}")


def check_replayable(env: Environment[Any]) -> None:
    """Raise ReplayError if recorded attempts at tasks of `env` cannot be played again."""
    if env.rung() == "episode" and not env.replayable:
        raise ReplayError(
            f"{type(env).__qualname__} is not replayable, so an attempt can be judged only by its "
            "own episode, while that is open; set replayable = True in the class if a fresh "
            "episode that hears the same turns does the same"
        )


async def replay(env: Environment[Any], episode: LiveEpisode, messages: Sequence[Message]) -> None:
    """Open an episode and let it hear recorded turns of the policy but the last one.

    Args:
        env: its environment.
        episode: the episode.
        messages: all messages after the prompt, the last one the policy's.

    Raises:
        ReplayError: the environment is not replayable, or the episode says something else.
    """
    check_replayable(env)
    opening = await episode.open()
    if not messages:  # the policy had no turn at all
        return
    compare_messages(opening, messages[: len(opening)])
    place = len(opening)
    while place < len(messages):
        if messages[place].role != "assistant":
            compare_messages((), messages[place : place + 1], place)
        if place + 1 == len(messages):
            return
        reply = await episode.reply(messages[: place + 1]) or ()
        compare_messages(
            reply or (), messages[place + 1 : place + 1 + max(1, len(reply))], place + 1
        )
        place += 1 + len(reply)


async def replayed(
    env: Environment[Any], task: Task[Any], fresh: Fresh, rollout: Rollout, losses: Losses
) -> Any:
    """Return the verdict, unchecked, of a fresh episode that a recorded attempt is played to.

    Raises:
        ReplayError: as `replay`.
        WorkerLostError: it was lost as often as `losses` allows.
    """
    while True:
        try:
            return await _verdict_of(env, fresh(task, alone=losses.alone), rollout)
        except WorkerLostError:
            if not losses.allow_another():
                raise


async def _verdict_of(env: Environment[Any], episode: LiveEpisode, rollout: Rollout) -> Any:
    """Return the verdict of one episode, which is opened, hears an attempt, and is closed."""
    try:
        messages = rollout.messages
        await replay(env, episode, messages)
        turns = sum(message.role == "assistant" for message in messages)
        was_cut_off = rollout.finish != "stop" and not rollout.reply_dropped
        if 0 < turns < env.max_turns and not was_cut_off:
            reply = await episode.reply(messages)
            if (reply is not None) != rollout.reply_dropped:
                compare_messages(reply or (), (), len(messages))
        return await episode.verdict(rollout)
    finally:
        await _closed(episode)


async def _closed(episode: LiveEpisode) -> None:
    """Close an episode; a cancellation comes only afterwards.

    Whoever cancels an attempt goes on to close what the episode needs for its end.
    """
    closing, cancelled = asyncio.create_task(episode.close()), False
    while not closing.done():
        try:
            await asyncio.wait([closing])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def compare_messages(said: Sequence[Message], recorded: Sequence[Message], place: int = 0) -> None:
    """Raise ReplayError if messages differ from the recorded ones, which begin at `place`."""
    for number in range(max(len(said), len(recorded))):
        pair = [_shown(messages, number) for messages in (said, recorded)]
        if pair[0] != pair[1]:
            raise ReplayError(
                f"replay diverged at message {place + number + 1} after the prompt: the episode "
                f"says {pair[0]}, and the record has {pair[1]}"
            )


def _shown(messages: Sequence[Message], number: int) -> str:
    if number >= len(messages):
        return "nothing"
    message = messages[number]
    return f"{message.role}: {cut(message.content, 100)!r}"
