"""Ask an environment for replies where one that blocks or never returns cannot hold the caller."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from grpo_core.calls.deadline import DeadlineError
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.spec import Spec
from grpo_core.protocol.types import Message, Rollout, Task, Verdict
from grpo_core.verify.episodes.conversation import (
    Conversation,
    LiveEpisode,
    PlainConversation,
    replay,
)
from grpo_core.verify.judge.checks import check_reply, check_verdict
from grpo_core.verify.judge.judging import describe_failure
from grpo_core.verify.workers.hosts import Host, create_worker_host
from grpo_core.verify.workers.inline import InlineHost

T = TypeVar("T")


class IsolatedReplies:
    """Asks an environment, or its episodes, for replies.

    It does so in a worker process, or in a thread where there is none.

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
        self.env = env
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
        if settings.isolation != "inline" and (not env.needs or env.rung() == "episode"):
            try:
                self._host = create_worker_host(env, spec, overrides, settings, size=1)
                self._untried = True
            except ConfigError:  # another process cannot import the class
                pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._host.close()

    def conversation(self, task: Task[Any]) -> Conversation:
        """Return a conversation about a task; only one with an episode gives a verdict."""
        if self.env.rung() == "episode":
            return _IsolatedEpisode(self, task)
        return PlainConversation(self, task)

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's next turn after `messages`; None if it ends the dialogue.

        Those of an episode are played to a fresh one, for which the environment is replayable.

        Raises:
            GrpoError: it fails, or does not answer in time; the message does not name the task.
        """

        async def ask(host: Host) -> Sequence[Message] | None:
            if self.env.rung() != "episode":
                return check_reply(await host.call("reply", task, messages, seconds=self.seconds))
            episode = LiveEpisode(host, task, seconds=self.seconds)
            try:
                await replay(self.env, episode, messages)
                return await episode.reply(messages)
            finally:
                await episode.close()

        return await self.guarded("reply", task, ask)

    async def guarded(self, op: str, task: Task[Any], ask: Callable[[Host], Awaitable[T]]) -> T:
        """Return what a call of the environment returns.

        Args:
            op: name of the method, for messages.
            task: the task.
            ask: makes the call.

        Raises:
            GrpoError: as `reply`.
        """
        if self.hanging:
            raise GrpoError(self.hanging)
        host = await self._working_host(task)
        started = time.monotonic()
        try:
            result = await ask(host)
            self._patience, self._hanging_calls = 2, 0
            return result
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            failure = describe_failure(error, op, self.seconds).partition("; its last output")
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
                await self._host.open()
                await self._host.task(task.key, seconds=self.seconds)
            except Exception:  # noqa: BLE001 - the reason is another check's subject
                await self._host.close()
                self._host = self._thread_host
        return self._host


class _IsolatedEpisode:
    """Hold a conversation with an episode, within the time limits of `IsolatedReplies`."""

    def __init__(self, replies: IsolatedReplies, task: Task[Any]) -> None:
        self._replies, self._task = replies, task
        self._episode: LiveEpisode | None = None

    async def open(self) -> Sequence[Message]:
        """Open the episode."""

        async def ask(host: Host) -> Sequence[Message]:
            self._episode = LiveEpisode(host, self._task, seconds=self._replies.seconds)
            return await self._episode.open()

        return await self._replies.guarded("open", self._task, ask)

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the episode's answer."""
        episode = self._episode
        assert episode is not None, "open() comes first"
        return await self._replies.guarded(
            "reply", self._task, lambda host: episode.reply(messages)
        )

    async def verdict(self, rollout: Rollout) -> Verdict:
        """Return the verdict of the open episode, and of no other; a failure is one, too."""
        try:
            if rollout.error or self._episode is None:
                raise GrpoError(rollout.error or "there is no open episode")
            return check_verdict(await self._episode.verdict(rollout), self._replies.env, rollout)
        except Exception as error:  # noqa: BLE001 - environments raise what they like
            return Verdict.failed(describe_failure(error, "verdict", self._replies.seconds))

    async def close(self) -> None:
        """Close the episode."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.close()
