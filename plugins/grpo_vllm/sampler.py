"""The sampler `vllm`: it hands weights over, asks a server for completions, and restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, TypeVar

from grpo_core import ConfigError, GrpoError
from grpo_core.protocol.sampler import (
    Completion,
    ModelToSample,
    Request,
    UnsupportedSchemaError,
    Weights,
)
from grpo_vllm.client import RefusedError, ServerFailedError, VllmClient
from grpo_vllm.completions import (
    completion_body,
    is_narrowed,
    read_completion,
    read_scores,
    scoring_bodies,
    with_full_logprobs,
)
from grpo_vllm.config import VLLMConfig, check, interpreter
from grpo_vllm.handover import Handover, remove
from grpo_vllm.server import MODEL, Server

_logger = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
T = TypeVar("T")


class VLLM:
    """Draws completions with a vLLM server (see `grpo_core.protocol.sampler.Sampler`).

    The first `sync` starts the server. With an adapter only the adapter is handed over, and it is
    loaded under a new name each time; where all weights are trained, all are reloaded.

    Raises:
        ConfigError: a setting cannot be used, vLLM is not installed, or it cannot sample from the
            model.
    """

    Config = VLLMConfig
    uses_uniforms: ClassVar[bool] = False
    follows_schemas: ClassVar[bool] = True

    def __init__(self, config: VLLMConfig, model: ModelToSample) -> None:
        check(config, model)
        self._config, self._model = config, model
        self._python = "" if config.url else interpreter(config)
        self._server: Server | None = None
        self._client: VllmClient | None = None
        self._handover: Handover | None = None
        self._present: Path | None = None  # the folder with the present weights
        self._version = self._loads = self._repairs = 0
        self._base = self._name = MODEL  # the server's names of base model and present weights
        self._sleeps = False
        self._repair = asyncio.Lock()

    @property
    def samples_during_updates(self) -> bool:
        """Return True unless the server frees its memory for each update."""
        return not self._config.sleep

    async def generate(self, request: Request) -> Completion:
        """Return a completion of the request (see `Sampler.generate`).

        Raises:
            UnsupportedSchemaError: the server refuses a request with a JSON schema.
            GrpoError: the server refuses the request, or failed again after being restarted.
        """
        if not len(request.uniforms):
            return Completion(version=self._version)
        return await self._persistently(lambda: self._complete(request))

    async def sync(self, weights: Weights, version: int) -> None:
        """Make the server use the present weights (see `Sampler.sync`).

        Raises:
            ConfigError: the server cannot be started.
            GrpoError: it does not take the weights.
        """
        if self._client is None:
            await self._open()
        assert self._handover is not None
        previous = self._present
        self._present = await self._handover.save(weights, version)
        self._version = version
        await self._persistently(self._load)
        if previous is not None:
            await asyncio.to_thread(remove, previous)

    async def rest(self) -> None:
        """Make the server free its memory on the device, if the settings say so.

        The weights of the base model wait in the computer's memory (vLLM's sleep level 1).
        """
        if self._config.sleep and self._client is not None:
            # A server that has failed frees its memory, too; the next `sync` starts it again.
            with contextlib.suppress(ServerFailedError):
                await self._client.post("/sleep?level=1")
            self._sleeps = True

    async def close(self) -> None:
        """End the server and remove all files."""
        client, server, handover = self._client, self._server, self._handover
        self._client = self._server = self._handover = self._present = None
        if client is not None:
            await client.close()
        if server is not None:
            await server.close()
        if handover is not None:
            handover.close()

    async def _open(self) -> None:
        """Start the server, or find the one that runs already."""
        config = self._config
        self._repair = asyncio.Lock()  # of the present event loop
        self._handover = Handover(config.folder, self._model)
        if not config.url:
            self._server = Server(config, self._model, self._python)
        address = self._server.socket if self._server else config.url
        self._client = VllmClient(address, at_once=config.at_once, seconds=config.request_seconds)
        self._base, self._sleeps = MODEL, False
        self._name = self._base
        try:
            if self._server:
                await self._server.start(self._client)
            else:
                self._base = self._name = (await self._client.models())[0]
        except ServerFailedError as error:
            raise ConfigError(
                f"there is no vLLM server at sampler.settings.url={config.url}: {error}"
            ) from None
        except GrpoError as error:
            raise ConfigError(str(error)) from None

    async def _complete(self, request: Request) -> Completion:
        assert self._client is not None, "sync comes first"
        model, version, name = self._model, self._version, self._name
        body = completion_body(request, name, model.end_ids)
        try:
            answer = await self._client.post("/v1/completions", body)
        except RefusedError as error:
            if request.json_schema is None:
                raise
            raise UnsupportedSchemaError(f"the JSON schema cannot be followed: {error}") from None
        completion = read_completion(answer, request, model, version)
        if not is_narrowed(request):
            return completion
        logprobs: list[float] = []
        for token_ids, scoring in scoring_bodies(request, completion.token_ids, name):
            scores = await self._client.post("/v1/completions", scoring)
            logprobs += read_scores(scores, token_ids)
        return with_full_logprobs(completion, logprobs)

    async def _load(self) -> None:
        """Make the server use the weights in the present folder.

        An adapter gets a name that was never used: what vLLM has cached for a name stays valid, and
        a name that is loaded again would make it read the files for every request.
        """
        assert self._client is not None
        assert self._present is not None
        if self._sleeps:
            await self._client.post("/wake_up")
            self._sleeps = False
        if self._model.adapter_rank is None:
            reload = {"method": "reload_weights", "kwargs": {"weights_path": str(self._present)}}
            await self._client.post("/collective_rpc", reload)
            await self._client.post("/reset_prefix_cache")
            return
        self._loads += 1
        previous, name = self._name, f"{self._present.name}-{self._loads}"
        adapter = {"lora_name": name, "lora_path": str(self._present)}
        await self._client.post("/v1/load_lora_adapter", adapter)
        self._name = name
        if previous != self._base:
            # A server that was started again by somebody else does not know it.
            with contextlib.suppress(ServerFailedError, GrpoError):
                await self._client.post("/v1/unload_lora_adapter", {"lora_name": previous})

    async def _persistently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call, which is repeated after the server failed and came back.

        Raises:
            GrpoError: it failed in every attempt.
        """
        attempts = self._config.retries + 1
        for attempt in range(attempts):
            async with self._repair:  # wait while another call repairs the server
                repairs = self._repairs
            try:
                return await call()
            except ServerFailedError as error:
                problem = str(error)
            if attempt + 1 < attempts:
                await self._recover(repairs, problem)
        log = self._server.last_words() if self._server else ""
        raise GrpoError(f"the vLLM server failed {attempts} times: {problem}{log}")

    async def _recover(self, repairs: int, problem: str) -> None:
        """Bring the server back with the present weights, unless another call did after `repairs`.

        Raises:
            GrpoError: it does not come back.
        """
        async with self._repair:
            if self._repairs != repairs:
                return
            assert self._client is not None
            _logger.warning("the vLLM server failed and is started again: %s", problem)
            if self._server is not None:
                await self._server.start(self._client)
                self._name, self._sleeps = self._base, False
            else:
                await self._wait(self._client)
            # If this fails, the repeated call fails and counts.
            with contextlib.suppress(ServerFailedError):
                await self._load()
            self._repairs += 1

    async def _wait(self, client: VllmClient) -> None:
        """Wait until a server that others run answers again."""
        end = time.monotonic() + self._config.start_seconds
        while not await client.is_healthy():
            if time.monotonic() > end:
                raise GrpoError(f"the vLLM server at {self._config.url} does not answer any more")
            await asyncio.sleep(_POLL_SECONDS)
