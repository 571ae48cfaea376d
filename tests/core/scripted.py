"""Scripted policies that play in environments, and the endpoint that those of agents need."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpo_core import Services, TaskKey
from grpo_core.config.settings import EndpointConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import open_endpoint
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import Played, play


@asynccontextmanager
async def with_endpoint(
    kind: Any, config: Any = None, *, socket: Path | None = None, **sandboxes: Any
) -> AsyncIterator[Any]:
    """Yield an environment that is lent an endpoint, which is closed at the end."""
    settings = {} if socket is None else {"socket": str(socket)}
    endpoint = open_endpoint(PluginHost(), EndpointConfig(settings=settings))
    try:
        yield kind(config, Services(sandboxes, endpoints={"default": endpoint}))
    finally:
        await endpoint.close()


async def played(verifier: Verifier, *scripts: str | Sequence[str]) -> list[Played]:
    """Play each script at a task of its own, all at once."""
    keys = [TaskKey("scripted", "train", index) for index in range(len(scripts))]
    playing = (
        play(verifier, task, script, max_turns=verifier.env.max_turns, judge=True)
        for task, script in zip(await verifier.tasks(keys), scripts, strict=True)
    )
    return list(await asyncio.gather(*playing))
