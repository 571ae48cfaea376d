"""Hold the requests that a sampler computes together, and hand out their completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from grpo_core.engine.policy.constrained import Constraint
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.sampler import Completion, Request


class RequestBatch:
    """Hold requests with the same sampling parameters, each with the future of its completion.

    The thread that computes calls `end` and reads `dropped`; the event loop does the rest.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        futures: Sequence[asyncio.Future[Completion]],
        version: int,
        constraints: Mapping[int, Constraint] = MappingProxyType({}),
    ) -> None:
        self.requests = requests
        self.constraints = constraints
        """The constraints of the requests that have a JSON schema, by their index."""
        self.params = requests[0].params
        """Sampling parameters of all requests."""
        self._futures = futures
        self._version = version
        self._loop = asyncio.get_running_loop()
        self._unfinished = set(range(len(requests)))
        self._held_back: list[tuple[int, Completion | GrpoError]] = []
        self.dropped: set[int] = set()
        """Indices of the requests whose completions nobody waits for any more."""

    @property
    def longest(self) -> int:
        """Return the most tokens that any request asks for."""
        return max(len(request.uniforms) for request in self.requests)

    @property
    def needs_nothing(self) -> bool:
        """Return whether every request has ended or been dropped."""
        return self._unfinished <= self.dropped

    def end(self, index: int, result: Completion | GrpoError) -> None:
        """Report the completion of a request, or why it has none.

        The thread that computes calls this. The last result is held back until `finish`: who has
        all completions may use the weights, which the computation first has to restore.
        """
        self._unfinished.discard(index)
        if isinstance(result, Completion):
            result = replace(result, version=self._version)
        if self.needs_nothing:
            self._held_back.append((index, result))
        else:
            self._loop.call_soon_threadsafe(self._resolve, index, result)

    def tell(self, drawn: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
        """Have functions called with tokens that were drawn, in the event loop and before `end`.

        The thread that computes calls this.
        """
        self._loop.call_soon_threadsafe(_call_all, drawn)

    def finish(self) -> None:
        """Report what was held back; the computation has ended."""
        for index, result in self._held_back:
            self._resolve(index, result)

    def fail(self, error: BaseException) -> None:
        """Raise an error in all callers that still wait."""
        for future in self._futures:
            if not future.done():
                future.set_exception(error)

    def drop(self, future: asyncio.Future[Completion]) -> bool:
        """Drop the request of a future, and return True if no caller still waits for the batch."""
        self.dropped.add(self._futures.index(future))
        return all(future.done() for future in self._futures)

    def _resolve(self, index: int, result: Completion | GrpoError) -> None:
        future = self._futures[index]
        if future.done():
            return
        if isinstance(result, Completion):
            future.set_result(result)
        else:
            future.set_exception(result)


def _call_all(calls: Sequence[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    for function, arguments in calls:
        function(*arguments)
