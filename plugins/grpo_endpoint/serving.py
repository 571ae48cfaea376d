"""Serve a policy to programs that speak the OpenAI API, until it is asked to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from grpo_core import Message
from grpo_core.api.training import Actor
from grpo_core.protocol.endpoint import Access, Endpoint
from grpo_endpoint.policy import PolicyCompleter

_POLL_SECONDS = 0.1


async def serve(
    actor: Actor,
    endpoint: Endpoint,
    *,
    before: Sequence[Message],
    key: str,
    on_open: Callable[[Access], None],
) -> None:
    """Serve the policy of an actor until the actor is asked to stop.

    Args:
        actor: the actor.
        endpoint: the server; it is opened and closed here.
        before: messages that are put before each chat.
        key: the key that clients have to send; "" for none.
        on_open: is told how clients reach the server, once they can.

    Raises:
        UserError: the policy cannot be served, or the server cannot listen.
    """
    completer = PolicyCompleter(actor, before)
    async with actor.sampling():
        await actor.sync()
        await endpoint.open()
        try:
            on_open(endpoint.admit(completer, key=key))
            while not actor.stop.is_made:  # noqa: ASYNC110 - signals set no event of a loop
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await endpoint.close()
