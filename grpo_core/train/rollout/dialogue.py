"""Generate rollouts: task -> tokens -> sampler -> reply -> sampler ... -> Rollout.

Every token is drawn with a random number that its place in the run fixes. No token is ever
tokenised again: a later turn continues the very tokens of the earlier ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.sampler import Sampler, SamplingParams
from grpo_core.protocol.types import Task
from grpo_core.train.rollout.agents import AgentAttempt
from grpo_core.train.rollout.attempt import Attempt
from grpo_core.train.rollout.capture import Drawing
from grpo_core.verify.episodes.conversation import Conversations


class Dialogues:
    """Play attempts to their ends: a turn of the policy, a reply of the environment, and so on.

    Conversations with the environments are opened before the first token. Whoever gets an attempt
    from `finished` closes its conversation; those that nobody gets are closed here.

    The next turns of all dialogues are requested together, once every environment has replied.
    Batches therefore do not depend on the speed of environments. Dialogues that `overlap` wait for
    no other: the next turn of each is requested as soon as its environment has replied.

    Args:
        policy: encodes replies and decodes completions.
        sampler: draws the policy's turns.
        params: how they are drawn.
        environments: speak for the environments; None: one turn each. If one fails, the dialogue
            ends with finish="error".
        overlap: tells whether the dialogues about a task overlap; None: none do.
    """

    def __init__(
        self,
        policy: Policy,
        sampler: Sampler,
        params: SamplingParams,
        *,
        environments: Conversations | None,
        overlap: Callable[[Task[Any]], bool] | None = None,
    ) -> None:
        self._policy, self._sampler, self._params = policy, sampler, params
        self._environments, self._overlap = environments, overlap
        self._drawing = Drawing(policy, sampler, params)

    async def finished(
        self, attempts: Sequence[Attempt | AgentAttempt]
    ) -> AsyncGenerator[int, None]:
        """Yield the place of each attempt as soon as it has ended.

        If the generator is closed early, the dialogues that have not ended are given up.
        """
        overlap = [self._overlap is not None and self._overlap(each.task) for each in attempts]
        rounds = _Rounds()
        places = {
            asyncio.create_task(
                self._play(attempt, place, None if overlap[place] else rounds)
            ): place
            for place, attempt in enumerate(attempts)
        }
        running = set(places)
        unclaimed = set(range(len(attempts)))
        try:
            while running:
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(ended, key=places.__getitem__):
                    task.result()
                    unclaimed.discard(places[task])
                    yield places[task]
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await asyncio.gather(*(attempts[place].close() for place in unclaimed))

    async def _play(
        self, attempt: Attempt | AgentAttempt, place: int, rounds: _Rounds | None
    ) -> None:
        """Play one dialogue to its end, in rounds or, where they are None, by itself."""
        if self._environments is not None and attempt.budget.has_conversation:
            attempt.conversation = self._environments.conversation(attempt.task)
        if isinstance(attempt, AgentAttempt):
            return await attempt.play(self._drawing)
        if not await attempt.begin(self._policy):
            return None
        if rounds is not None:
            rounds.join()
        try:
            while True:
                if rounds is not None:
                    await rounds.wait_for_others(place)
                request = attempt.request(self._params)
                attempt.add_completion(await self._sampler.generate(request), self._policy)
                if not await attempt.add_reply(self._policy):
                    return None
        finally:
            if rounds is not None:
                rounds.leave()


class _Rounds:
    """Make dialogues wait until all that have not ended are ready for their next turn.

    They then continue in the order of their places, whichever was ready first. A dialogue takes
    part once it is open: an episode may have to wait for another one to end before it can be.
    """

    def __init__(self) -> None:
        self._members = 0
        self._ready: dict[int, asyncio.Future[None]] = {}

    def join(self) -> None:
        """Take part in the rounds that begin from now on."""
        self._members += 1

    async def wait_for_others(self, place: int) -> None:
        """Wait until every member is ready."""
        loop = asyncio.get_running_loop()
        self._ready[place] = loop.create_future()
        loop.call_soon(self._start_if_all_are_ready)
        await self._ready[place]

    def leave(self) -> None:
        """Take part in no further round."""
        self._members -= 1
        asyncio.get_running_loop().call_soon(self._start_if_all_are_ready)

    def _start_if_all_are_ready(self) -> None:
        if len(self._ready) < self._members:
            return
        for _, future in sorted(self._ready.items()):
            if not future.done():
                future.set_result(None)
        self._ready.clear()
