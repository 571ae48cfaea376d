"""The executor `ray`: verification in actors of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from grpo_core import ConfigError
from grpo_core.protocol.executor import EnvironmentToVerify
from grpo_ray.actor import node_versions
from grpo_ray.cluster import Cluster
from grpo_ray.config import Actors, RayConfig
from grpo_ray.place import RayPlace

_NODE_SECONDS = 60.0
"""How long a node may take to say which versions it has."""


class RayExecutor:
    """Verify in actors of a Ray cluster (see `grpo_core.protocol.executor.Executor`).

    Raises:
        ConfigError: a setting cannot be used.
        MissingExtraError: Ray is not installed.
    """

    Config = RayConfig
    in_process: ClassVar[bool] = False

    def __init__(self, config: RayConfig) -> None:
        self._config = config
        self._cluster = Cluster(config.cluster_address())
        self._places = 0

    def open(self, environment: EnvironmentToVerify) -> RayPlace:
        """Return a place with actors of its own; the cluster is joined when it opens."""
        self._places += 1
        one_worker = replace(environment, settings={**environment.settings, "workers": 1})
        return RayPlace(
            self._cluster,
            one_worker,
            self._config.actors_of(environment.spec.name),
            count=lambda: self._count(environment),
            start_seconds=self._config.start_seconds,
        )

    async def examine(self) -> Sequence[str]:
        """Return a line about each node of a cluster that runs already (see `Executor.examine`).

        Raises:
            ConfigError: the cluster does not answer, or its nodes have other versions.
        """
        if self._config.cluster_address() is None:
            return ()
        self._cluster.join()
        here = node_versions()
        lines = []
        for node in self._cluster.nodes():
            resources, address = node["Resources"], node["NodeManagerAddress"]
            found = await _versions_of(node["NodeID"])
            if found != here:
                raise ConfigError(
                    f"node {address} has {found or 'no grpo-core that answers'}, and this machine "
                    f"{here}; install the same versions on all nodes"
                )
            amounts = ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
            lines.append(f"node {address}: {amounts}, {found}")
        return lines

    async def close(self) -> None:
        """Leave the cluster; one that was started for the run ends."""
        await asyncio.to_thread(self._cluster.leave)

    def _count(self, environment: EnvironmentToVerify) -> int:
        """Return how many actors verify for an environment.

        Raises:
            ConfigError: the cluster has no room for one.
        """
        actors = self._config.actors_of(environment.spec.name)
        room = self._cluster.room_for(actors)
        if not room:
            raise ConfigError(_no_room(environment.spec.name, actors, self._cluster))
        if environment.stateful:
            return 1
        chosen = actors.actors or environment.settings.get("workers")
        return int(chosen) if chosen else max(1, room // self._places)


def _no_room(name: str, actors: Actors, cluster: Cluster) -> str:
    """Return the message for a cluster that has no room for an actor."""
    needs = ", ".join(f"{amount:g} {resource}" for resource, amount in actors.needs().items())
    return (
        f"no node of the Ray cluster has what an actor of {name!r} takes ({needs}); it has "
        f"{cluster.describe()}. Lower num_cpus, num_gpus or resources in verify.executor.settings"
    )


async def _versions_of(node_id: str) -> str:
    """Return the versions of a node; "" if it does not answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(node_versions).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    future = asyncio.wrap_future(task.remote().future())
    try:
        return str(await asyncio.wait_for(future, _NODE_SECONDS))
    except (ray.exceptions.RayError, TimeoutError):
        return ""
