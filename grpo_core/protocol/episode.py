"""Define the episode: one attempt at a task with state of its own, such as a game or a shell.

An environment whose method `episode` returns one needs no `verify`: the episode answers the
policy's turns and judges the state that it has reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from grpo_core.protocol.types import Message, Rollout, Verdict


class Episode(ABC):
    """Holds the state of one attempt.

    It is opened before the attempt's first token and closed whatever happens. Many episodes are
    open at once, and none may see another: what one changes belongs on `self`, never on the
    environment. Like `verify` it simply raises where it cannot go on.
    """

    async def open(self) -> Sequence[Message]:
        """Prepare the state, and return the messages that follow the prompt; none by default.

        Take here what only so many episodes can have at once, such as a session of a sandbox. One
        that waits for it in `reply`, while others hold theirs, may keep them from going on.
        """
        return ()

    @abstractmethod
    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the answer to the policy's last turn, or None to end the episode.

        It is asked once after each turn, in order, except after the last of `max_turns` and after
        one that was cut off. Any text can be a turn, silence included.

        Args:
            messages: all messages after the prompt so far, those of `open` included; the last one
                is the policy's.
        """

    @abstractmethod
    async def verdict(self, rollout: Rollout) -> Verdict:
        """Judge the attempt by the state that it has reached.

        It is asked after the policy's last turn, which `reply` has not seen if it was the last of
        `max_turns` or was cut off, and again if it failed.
        """

    async def close(self) -> None:  # noqa: B027 - most episodes hold nothing
        """Release what the episode holds; it is called once, also if `open` has failed."""
