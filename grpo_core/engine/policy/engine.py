"""Sample from the policy's own model, in this process: the built-in sampler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import ClassVar

from grpo_core.calls.schema_limits import needs_trial
from grpo_core.config.settings import SamplingConfig
from grpo_core.engine.compute.prepack import FEW_ROWS, FEW_TOKENS
from grpo_core.engine.policy.batch import RequestBatch
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.constrained import Constraint, Grammars
from grpo_core.engine.policy.decoding import Decoding
from grpo_core.protocol.sampler import Completion, Request, Weights

_NO_LIMITS = SamplingConfig()
_QUIET_SHARE, _GATHER_SHARE = 0.05, 0.1
"""Shares of the time of the last batch: how long no request has to come until the next one begins,
and how long it waits for further ones at most."""

_COMPILE_SECONDS = 0.5
"""How long a batch waits once for a schema that is being compiled."""


class Engine:
    """Sample from a causal policy.

    Requests that arrive in the same pass of the event loop are decoded together; later ones wait
    until that batch has ended. So a batch, and with it the last bits of its log-probs, does not
    depend on how fast anything is. With `sampling.gather_ms`, a batch waits for requests that
    arrive a little later. A request whose JSON schema takes long to compile joins a later batch.

    Args:
        policy: the policy to sample from.
        limits: how many completions are decoded at a time, and in how much memory; what is unset
            is that of the policy's device.
    """

    uses_uniforms: ClassVar[bool] = True
    samples_during_updates: ClassVar[bool] = False
    follows_schemas: ClassVar[bool] = True
    takes_extras: ClassVar[bool] = True

    def __init__(self, policy: Policy, limits: SamplingConfig = _NO_LIMITS) -> None:
        self.policy = policy
        self._limits = limits
        self._max_rows = limits.max_rows or policy.tuning.max_rows
        self._grammars = Grammars(policy)
        self._version = 0
        self._waiting: dict[asyncio.Future[Completion], Request] = {}
        """The requests that wait for their batch, by the future of their completion."""
        self._compiling: dict[asyncio.Future[Completion], asyncio.Task[Constraint]] = {}
        """What returns the constraint of each of them that has a JSON schema."""
        self._late: set[asyncio.Future[Completion]] = set()
        """Those for whose schema no batch waits any more."""
        self._serving: asyncio.Task[None] | None = None
        self._batch: RequestBatch | None = None
        self._computation: Future[None] | None = None
        self._last_seconds, self._last_count = 0.0, 0

    async def generate(self, request: Request) -> Completion:
        """Return a completion of the request (see `Sampler.generate`).

        Raises:
            RunStoppedError: the model's logits are not finite.
            UnsupportedSchemaError: the JSON schema of the request cannot be followed.
            ConfigError: JSON schemas cannot be followed with this model's tokenizer.
            MissingExtraError: the library that follows them is not installed.
        """
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[future] = request
        if request.json_schema is not None:
            if needs_trial(request.json_schema):
                self._late.add(future)
            compiling = asyncio.create_task(self._grammars.constraint(request.json_schema))
            compiling.add_done_callback(partial(self._on_compiled, future))
            self._compiling[future] = compiling
        self._wake()
        try:
            return await future
        finally:
            if future.cancelled():
                self._give_up(future)
            self._late.discard(future)
            self._compiling.pop(future, None)

    async def sync(self, weights: Weights, version: int) -> None:
        """Note the version of the weights, which are the policy's own."""
        self._version = version

    async def rest(self) -> None:
        """Do nothing: the weights are the policy's own."""

    async def close(self) -> None:
        """Do nothing: the policy holds everything."""

    def _give_up(self, future: asyncio.Future[Completion]) -> None:
        """Forget a request whose caller was cancelled.

        If nobody waits for the batch any more, wait until its computation has ended, so that the
        weights are restored before others use them.
        """
        is_waiting = self._waiting.pop(future, None) is not None
        if is_waiting and future in self._compiling:
            self._compiling[future].cancel()
        if is_waiting or self._batch is None:
            return
        if self._batch.drop(future) and self._computation is not None:
            wait([self._computation])

    async def _serve(self) -> None:
        """Compute the requests that wait, one batch of equal sampling parameters after another."""
        while self._waiting:
            if self._limits.gather_ms:
                await self._gather(self._limits.gather_ms / 1000)
            futures = await self._compiled()
            if not futures:
                return  # the end of a compilation goes on
            batch = self._batch = self._batch_of(futures)
            started = time.monotonic()
            self._computation = self.policy.thread.submit(lambda: self._compute(batch))  # noqa: B023
            try:
                await asyncio.wrap_future(self._computation)
                batch.finish()
            except asyncio.CancelledError:
                batch.dropped.update(range(len(batch.requests)))
                wait([self._computation])
                raise
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - each caller gets it
                is_panic = not isinstance(error, Exception)  # of native code
                batch.fail(RuntimeError(f"the sampler failed: {error}") if is_panic else error)
            finally:
                self._batch = self._computation = None
                self._last_seconds, self._last_count = time.monotonic() - started, len(futures)

    def _wake(self) -> None:
        """Begin to serve the requests that wait, unless that is going on."""
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())

    def _on_compiled(
        self, future: asyncio.Future[Completion], compiling: asyncio.Task[Constraint]
    ) -> None:
        """Go on with a request whose schema is compiled, or end it."""
        if compiling.cancelled():
            return
        error = compiling.exception()
        if error is None:
            self._wake()
        elif self._waiting.pop(future, None) is not None and not future.done():
            future.set_exception(error)

    async def _compiled(self) -> list[asyncio.Future[Completion]]:
        """Return the requests of the next batch: with equal parameters, and their schema compiled.

        Most schemas are compiled within milliseconds. They are waited for, so that a batch does not
        depend on when that ends.
        """
        compiling = {
            future: task
            for future, task in self._compiling.items()
            if future in self._waiting and future not in self._late and not task.done()
        }
        if compiling:
            await asyncio.wait(compiling.values(), timeout=_COMPILE_SECONDS)
            self._late.update(future for future in compiling if future in self._waiting)
        ready = {f: request.params for f, request in self._waiting.items() if self._is_ready(f)}
        first = next(iter(ready.values()), None)
        return [future for future, params in ready.items() if params == first]

    def _is_ready(self, future: asyncio.Future[Completion]) -> bool:
        """Return whether the request of a future has its constraint, or needs none."""
        done = self._compiling.get(future)
        return done is None or (done.done() and not done.cancelled() and not done.exception())

    def _batch_of(self, futures: list[asyncio.Future[Completion]]) -> RequestBatch:
        """Return the batch of the requests that wait with these futures."""
        requests = [self._waiting.pop(future) for future in futures]
        constraints = {
            i: self._compiling[future].result()
            for i, future in enumerate(futures)
            if future in self._compiling
        }
        return RequestBatch(requests, futures, self._version, constraints)

    async def _gather(self, seconds: float) -> None:
        """Wait until no request came for a while, but not long beside the time of a batch.

        Those whose completions the last batch has drawn may send their next requests now, so the
        wait is longer while fewer have come than were in it.
        """
        latest = time.monotonic() + max(10 * seconds, _GATHER_SHARE * self._last_seconds)
        count = 0
        while count < len(self._waiting) and time.monotonic() < latest:
            count = len(self._waiting)
            is_missing_some = count < self._last_count
            share = _QUIET_SHARE * self._last_seconds if is_missing_some else 0.0
            await asyncio.sleep(max(seconds, share))

    def _compute(self, batch: RequestBatch) -> None:
        """Report a completion of each request; stop early if all are dropped.

        This runs in the policy's thread.
        """
        policy, limits = self.policy, self._limits
        rows = min(len(batch.requests), self._max_rows)
        packs = rows >= FEW_ROWS and batch.longest >= FEW_TOKENS
        prepacked = policy.prepacked(rows if packs else None) if limits.prepack else nullcontext()
        with self._ready(), prepacked:
            Decoding(policy, limits, batch).run()

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Set up weights and types for a computation in the block."""
        policy = self.policy
        with policy.decoding(copied=self._limits.prepack), policy.autocast(), policy.merged():
            yield
