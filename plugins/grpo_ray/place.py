"""A place of verification in the actors of a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable

from grpo_core.protocol.executor import Answer, EnvironmentToVerify, Request
from grpo_ray.actor import Verification
from grpo_ray.cluster import Cluster
from grpo_ray.config import Actors
from grpo_ray.pool import ActorLostError, ActorPool


class RayPlace:
    """Verify for one environment in actors (see `grpo_core.protocol.executor.Place`).

    A request whose actor is lost is answered "lost", and the caller asks again.
    """

    def __init__(
        self,
        cluster: Cluster,
        environment: EnvironmentToVerify,
        actors: Actors,
        *,
        count: Callable[[], int],
        start_seconds: float,
    ) -> None:
        """Prepare the place; nothing is started yet.

        Args:
            cluster: where the actors are.
            environment: what they verify.
            actors: what each takes.
            count: returns their number, once the cluster is joined.
            start_seconds: how long the start of one may take.
        """
        self._cluster, self._count = cluster, count
        description, calls = json.dumps(environment.to_json()), environment.concurrency
        self._pool = ActorPool(
            lambda: cluster.start_actor(Verification, actors, description, calls=calls),
            what=f"verify {environment.spec.name!r}",
            concurrency=calls,
            start_seconds=start_seconds,
            describe=cluster.describe,
        )

    async def open(self) -> None:
        """Join the cluster and start all actors.

        Raises:
            ConfigError: the cluster cannot be used or has no room, a node has other versions, or
                no actor can build the environment.
        """
        self._cluster.join()
        await self._pool.open(self._count())

    @property
    def actors(self) -> list[tuple[str, int]]:
        """Return node and process id of each actor that takes requests."""
        return self._pool.actors

    async def ask(self, request: Request, *, seconds: float) -> Answer:
        """Return the answer of an actor; see `Place.ask`."""
        try:
            text = json.dumps(request.to_json())
            answer = await self._pool.call("ask", text, seconds, session=request.session)
        except ActorLostError as error:
            return Answer("lost", text=str(error))
        return Answer.from_json(json.loads(answer))

    async def close(self) -> None:
        """Close the environment of each actor, and end all actors."""
        await self._pool.close()
