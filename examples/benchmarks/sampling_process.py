"""A sampler in a process of its own, as an engine on another device is, for models of any folder.

It draws with the built-in engine and a copy of the weights, so that it samples while the policy is
trained (`samples_during_updates`) and draws what the built-in sampler would draw.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file

from grpo_core import GrpoError
from grpo_core.config.config import RunConfig
from grpo_core.engine.policy.choose import builtin_sampler, load_policy
from grpo_core.engine.policy.weights import PolicyWeights
from grpo_core.protocol.sampler import Completion, Request, Weights

END_SECONDS = 5.0
"""How long the process may take to end when it is asked to."""


class ProcessSampler:
    """Draws completions in another process, with `threads` threads there.

    Args:
        config: names the model and the limits of sampling; all weights are trained.
        threads: of the other process.
    """

    uses_uniforms: ClassVar[bool] = True
    samples_during_updates: ClassVar[bool] = True

    def __init__(self, config: RunConfig, *, threads: int = 1) -> None:
        self._config, self._threads = config, threads
        self._process: BaseProcess | None = None
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._serving: asyncio.Task[None] | None = None

    async def generate(self, request: Request) -> Completion:
        """Return a completion; requests of one pass of the event loop are drawn together."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return await future

    async def sync(self, weights: Weights, version: int) -> None:
        """Hand the weights over in a folder; the first call starts the process."""
        if self._process is None:
            self._connection, theirs = multiprocessing.Pipe()
            self._process = multiprocessing.get_context("spawn").Process(
                target=_serve,
                args=(theirs, self._config, self._threads),
                daemon=True,
            )
            self._process.start()
            theirs.close()
        if self._serving is not None:  # the last batch of a caller that was cancelled
            await asyncio.wait({self._serving})
        with tempfile.TemporaryDirectory() as folder:
            await weights.save(Path(folder))
            await self._ask((folder, version))

    async def rest(self) -> None:
        """Do nothing: the process has cores of its own."""

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            self._connection.close()
            await asyncio.to_thread(process.join, END_SECONDS)
            process.kill()

    async def _serve(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                completions = await self._ask([request for request, _ in batch])
            except GrpoError as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                return
            for (_, future), completion in zip(batch, completions, strict=True):
                if not future.done():
                    future.set_result(completion)

    async def _ask(self, message: Any) -> Any:
        """Return the answer of the process."""

        def exchange() -> Any:
            self._connection.send(message)
            return self._connection.recv()

        try:
            return await asyncio.to_thread(exchange)
        except (EOFError, OSError) as error:
            raise GrpoError(f"the sampling process has ended: {error!r}") from None


def _serve(connection: Connection, config: RunConfig, threads: int) -> None:
    """Answer requests and take weights until the other side closes the connection."""
    torch.set_num_threads(threads)
    policy = load_policy(config, need_reference=False)
    sampler = builtin_sampler(policy, config.sampling)

    async def answer(message: Any) -> Any:
        if isinstance(message, list):
            return await asyncio.gather(*(sampler.generate(request) for request in message))
        folder, version = message
        weights = load_file(Path(folder) / "model.safetensors")
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                parameter.copy_(weights[name])
        return await sampler.sync(PolicyWeights(policy), version)

    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        connection.send(asyncio.run(answer(message)))
