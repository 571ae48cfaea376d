"""Run the far end of the executor in a Ray actor."""

from __future__ import annotations

import json
import os
import platform

from grpo_core import GrpoError
from grpo_core.protocol.executor import EnvironmentToVerify, Place
from grpo_core.verify.workers.local import LocalExecutor, answer_json, versions_that_differ


class Verification:
    """Verify for one environment, with worker processes, sandboxes and judges of its own.

    Deadlines are kept here, by `grpo_core.verify.workers.local`. Ray makes an actor of it.
    """

    def __init__(self, description: str) -> None:
        """Take the description of the environment, as JSON text; nothing is opened yet."""
        self._environment = EnvironmentToVerify.from_json(json.loads(description))
        self._place: Place | None = None

    async def open(self) -> str:
        """Open the environment; return JSON text that says where, and why it cannot be used.

        The fields are `node`, `pid`, `differing`, the versions that are not the run's, and
        `fault`, why the environment cannot be opened.
        """
        differing, fault = versions_that_differ(self._environment), ""
        if not differing:
            place = LocalExecutor().open(self._environment)
            try:
                await place.open()
                self._place = place
            except GrpoError as error:
                fault = str(error)
        return json.dumps(
            {"node": node_name(), "pid": os.getpid(), "differing": differing, "fault": fault}
        )

    async def ask(self, request: str, seconds: float) -> str:
        """Return the answer to a request; see `answer_json`."""
        assert self._place is not None, "open() comes first"
        return await answer_json(self._place, request, seconds=seconds)

    async def ping(self) -> None:
        """Show that the actor's event loop works."""

    async def close(self) -> None:
        """End worker processes, and close the environment and its services."""
        if self._place is not None:
            await self._place.close()


def node_name() -> str:
    """Return the name of this machine, with Ray's address and id of the node."""
    import ray

    address = ray.util.get_node_ip_address()
    return f"{platform.node()} ({address}, {ray.get_runtime_context().get_node_id():.8})"


def node_versions() -> str:
    """Return the versions of Python and grpo-core in this process, as a text for `grpo doctor`."""
    from grpo_core import Spec
    from grpo_core.verify.workers.local import versions_here

    return ", ".join(f"{name} {text}" for name, text in versions_here(Spec("", "")).items())
