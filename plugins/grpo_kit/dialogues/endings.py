"""End episodes in several ways, and see what is left of them in this process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from grpo_core import Message, Task
from grpo_core.api.verify import Conversation, Verifier, play
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.process.watch import UNFINISHED, FileWatch, new_resources, open_resources

ENDS: Mapping[str, str] = {
    "judged": "were judged and closed",
    "unjudged": "were closed without a verdict",
    "unused": "were closed without a turn",
    "cancelled": "were closed when their reply was cancelled",
}
"""How episodes end, as the end of a sentence about them."""
ATTEMPTS = 6
"""How many attempts end in each way."""
_CANCELLED_AFTER_SECONDS = 0.02
_SETTLE_SECONDS = 0.3
"""How long threads and processes get to end before the leftovers are counted."""
_POOL = "asyncio_"
"""How the threads are called that the event loop keeps for further calls."""


async def end(verifier: Verifier, task: Task[Any], text: str, how: str) -> None:
    """Begin an episode and end it in one of the ways; what it raises is another check's subject.

    Args:
        verifier: Holds the episode in this process.
        task: Its task.
        text: A script that the policy says.
        how: A key of `ENDS`.
    """
    if how in ("judged", "unjudged"):
        max_turns, judge = verifier.env.max_turns, how == "judged"
        with contextlib.suppress(Exception):
            await play(verifier, task, split_turns(text), max_turns=max_turns, judge=judge)
        return
    conversation = verifier.conversation(task)
    try:
        with contextlib.suppress(Exception):
            opening = await conversation.open()
            if how == "cancelled":
                turn = Message.turn(split_turns(text)[0])
                await _cancelled(conversation, (*opening, turn))
    finally:
        await conversation.close()


async def _cancelled(conversation: Conversation, messages: tuple[Message, ...]) -> None:
    """Ask for a reply, and cancel the call."""
    reply = asyncio.ensure_future(conversation.reply(messages))
    await asyncio.wait([reply], timeout=_CANCELLED_AFTER_SECONDS)
    reply.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reply


async def leftovers_by_end(
    verifier: Verifier, attempts: Sequence[tuple[Task[Any], str]], files: FileWatch
) -> dict[str, Any] | None:
    """Return what episodes leave behind that end in each way; None where nothing tells it.

    Args:
        verifier: Holds the episodes in this process.
        attempts: What the policy says in them, in turn.
        files: Watches files; what it has seen so far is forgotten.
    """
    if open_resources() is None or not attempts:
        return None

    def ends_in(how: str) -> Callable[[int], Awaitable[None]]:
        return lambda number: end(verifier, *attempts[number % len(attempts)], how)

    return {how: await leftovers(ends_in(how), files) for how in ENDS}


@contextlib.contextmanager
def _destroyed_tasks() -> Iterator[list[str]]:
    """Collect the coroutines that the loop drops unfinished, as nothing refers to them any more."""
    destroyed = list[str]()
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "was destroyed" in context["message"]:
            destroyed.append(str(context["task"].get_coro()))
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(note)
    try:
        yield destroyed
    finally:
        loop.set_exception_handler(before)


async def leftovers(end_one: Callable[[int], Awaitable[None]], files: FileWatch) -> dict[str, Any]:
    """Return the resources that attempts leave behind in this process, by kind.

    Args:
        end_one: Makes attempt number n and ends it. The first one does not count, since something
            that is left behind once may be a cache.
        files: Watches files; what it has seen so far is forgotten.
    """
    await end_one(0)
    before = open_resources()
    files.begin()
    with _destroyed_tasks() as destroyed:
        for number in range(1, 1 + ATTEMPTS):
            await end_one(number)
        gc.collect()
        await asyncio.sleep(_SETTLE_SECONDS)
    left = new_resources(before, before, open_resources()) or {}
    unfinished = left[UNFINISHED]
    unfinished["late"] += len(destroyed)
    unfinished["first"] = [*unfinished["first"], *destroyed[:1]]
    threads = left["threads"]
    own = [name for name in threads["first"] if not name.startswith(_POOL)]
    left["threads"] = {"late": len(own), "first": own}
    new = files.report()
    left["files"] = {"late": new["count"], "first": [item["path"] for item in new["first"]]}
    return left
