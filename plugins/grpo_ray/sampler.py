"""The sampler `ray`: the built-in engine, or a plugin's sampler, in each of several actors."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from grpo_core import GrpoError
from grpo_core.protocol.sampler import (
    Completion,
    ModelToSample,
    Request,
    UnsupportedSchemaError,
    Weights,
)
from grpo_ray.actor import node_versions
from grpo_ray.cluster import Cluster
from grpo_ray.config import BUILTIN, RaySamplerConfig, cluster_address
from grpo_ray.drawing import RayDrawing
from grpo_ray.pool import ActorLostError, ActorPool


class RaySampler:
    """Draw completions in actors, each with a copy of the model (see `Sampler`).

    A request goes to the actor that has the fewest. The weights go to all of them, and to one that
    is started later. Each completion says which version drew it.

    Raises:
        ConfigError: a setting cannot be used.
        MissingExtraError: Ray is not installed.
    """

    Config = RaySamplerConfig
    samples_during_updates: ClassVar[bool] = True  # the actors have weights of their own

    def __init__(self, config: RaySamplerConfig, model: ModelToSample) -> None:
        self._config = config
        self._cluster = Cluster(cluster_address(config.address))
        described = {
            **{name: getattr(model, name) for name in _MODEL_FIELDS},
            "path": str(model.path),
            "end_ids": sorted(model.end_ids),
        }
        self._description = json.dumps(
            {
                "sampler": config.sampler,
                "settings": dict(config.settings),
                "model": described,
                "versions": node_versions(),
            }
        )
        self._pool: ActorPool | None = None
        self._weights: tuple[Any, bool, int] | None = None

    @property
    def uses_uniforms(self) -> bool:
        """Return whether tokens are drawn with the numbers of a request (see `Sampler`)."""
        return self._config.sampler == BUILTIN

    @property
    def follows_schemas(self) -> bool:
        """Return whether the sampler in the actors is known to follow JSON schemas."""
        return self._config.sampler == BUILTIN

    async def generate(self, request: Request) -> Completion:
        """Return a completion of the request (see `Sampler.generate`).

        Raises:
            UnsupportedSchemaError: the JSON schema of the request cannot be followed.
            GrpoError: its actors were lost again and again, or the sampler in them failed.
        """
        assert self._pool is not None, "sync comes first"
        text = json.dumps({**asdict(request), "uniforms": list(request.uniforms)})
        problem = ""
        for _ in range(self._config.retries + 1):
            try:
                answer = json.loads(await self._pool.call("generate", text, self._version()))
            except ActorLostError as error:
                problem = str(error)
                continue
            if "stale" not in answer:
                break
            problem = f"an actor has the weights of step {answer['stale']}"
            await self._hand_over_to_all()
        else:
            raise GrpoError(f"no completion could be drawn: {problem}")
        if "error" in answer:
            kind = UnsupportedSchemaError if answer["unsupported"] else GrpoError
            raise kind(answer["error"])
        tuples = {name: tuple(answer[name]) for name in ("token_ids", "logprobs", "alternatives")}
        return Completion(**{**answer, **tuples})

    async def sync(self, weights: Weights, version: int) -> None:
        """Give the present weights to all actors, which the first call starts.

        Raises:
            ConfigError: the cluster cannot be used, or no actor can load the model.
            GrpoError: an actor does not take the weights.
        """
        import ray

        self._cluster.join()
        with tempfile.TemporaryDirectory(prefix="grpo-ray-") as folder:
            await weights.save(Path(folder))
            packed = await asyncio.to_thread(_pack, Path(folder))
        self._weights = (ray.put(packed), weights.is_adapter, version)
        if self._pool is None:
            config = self._config
            self._pool = ActorPool(
                lambda: self._cluster.start_actor(
                    RayDrawing, config.actors_taken(), self._description, calls=config.at_once
                ),
                what=f"draw with {config.sampler!r}",
                concurrency=config.at_once,
                start_seconds=config.start_seconds,
                describe=self._cluster.describe,
                prepare=self._hand_over,
            )
            await self._pool.open(config.actors)
            return
        await self._hand_over_to_all()

    async def rest(self) -> None:
        """Make the samplers leave their devices, if they can."""
        if self._pool is not None:
            futures = (handle.rest.remote().future() for handle in self._pool.handles)
            await asyncio.gather(*map(asyncio.wrap_future, futures))

    async def close(self) -> None:
        """End all actors, and leave the cluster."""
        pool, self._pool, self._weights = self._pool, None, None
        if pool is not None:
            await pool.close()
        await asyncio.to_thread(self._cluster.leave)

    def _version(self) -> int:
        assert self._weights is not None
        return self._weights[2]

    async def _hand_over(self, handle: Any) -> None:
        """Give the present weights to an actor."""
        assert self._weights is not None
        await asyncio.wait_for(
            asyncio.wrap_future(handle.sync.remote(*self._weights).future()),
            self._config.start_seconds,
        )

    async def _hand_over_to_all(self) -> None:
        """Give the present weights to all actors that live; one that dies meanwhile is left out.

        Raises:
            GrpoError: an actor does not take them.
        """
        from ray.exceptions import RayActorError, RayError

        assert self._pool is not None
        for result in await asyncio.gather(
            *map(self._hand_over, self._pool.handles), return_exceptions=True
        ):
            if isinstance(result, RayActorError):
                continue  # the next request to it finds that out, and it is replaced
            if isinstance(result, RayError | TimeoutError):
                raise GrpoError(f"a Ray actor did not take the weights: {result!r:.300}")
            if result is not None:
                raise result


_MODEL_FIELDS = ("trust_remote_code", "dtype", "device", "context", "adapter_rank")


def _pack(folder: Path) -> bytes:
    """Return the files of a folder as one archive, which is not compressed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()
