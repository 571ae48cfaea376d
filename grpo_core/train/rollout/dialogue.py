"""Generate rollouts: task -> tokens -> sampler -> reply -> sampler ... -> Rollout.

Every token is drawn with a random number that its place in the run fixes. No token is ever
tokenised again: a later turn continues the very tokens of the earlier ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grpo_core.config.settings import SamplingConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Completion, Request, Sampler, SamplingParams
from grpo_core.protocol.tools import schemas
from grpo_core.protocol.types import Rollout, Task, TaskKey
from grpo_core.train.policy.causal import Policy
from grpo_core.verify.conversation import Conversations
from grpo_core.verify.playing import Transcript


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits the tokens and turns of a rollout."""

    turn: int
    """Most tokens of one turn of the policy."""
    turns: int = 1
    """Most turns of the policy."""
    dialogue: int | None = None
    """Most tokens after the prompt, including the environment's; None: no limit."""
    context: int | None = None
    """Most tokens including the prompt; None: no limit."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the functions that the policy may call."""

    @property
    def longest(self) -> int:
        """Return the most tokens that the policy may write."""
        return self.turn * self.turns

    def remaining(self, *, prompt: int, written: int) -> int:
        """Return how many tokens the policy may write in its next turn.

        Args:
            prompt: tokens of the prompt.
            written: tokens since the prompt.
        """
        limits = [self.turn]
        limits += [] if self.dialogue is None else [self.dialogue - written]
        limits += [] if self.context is None else [self.context - prompt - written]
        return max(0, min(limits))


def budget_of(env: Environment[Any], policy: Policy, sampling: SamplingConfig) -> Budget:
    """Return the limits of a rollout on the tasks of `env`.

    Raises:
        ConfigError: the environment needs what `policy` cannot do.
    """
    tools = schemas(env.tools())
    if tools and env.max_turns < 2:
        raise ConfigError(
            f"{type(env).__qualname__} offers tools, but its max_turns is {env.max_turns}, so no "
            "tool call could be answered; set max_turns to 2 or more in the class"
        )
    turn_tokens = sampling.max_new_tokens or env.max_new_tokens
    if not policy.fills:
        return Budget(
            turn_tokens, env.max_turns, sampling.max_dialogue_tokens, policy.context, tools
        )
    if env.max_turns > 1:
        raise ConfigError(
            f"{type(env).__qualname__} holds dialogues, which a masked language model cannot do: "
            "it only fills gaps"
        )
    return Budget(turn_tokens)


def make_request(
    prefix: tuple[int, ...],
    params: SamplingParams,
    key: TaskKey,
    *,
    seed: int,
    step: int,
    attempt: int,
    turn: int,
    count: int,
    occurrence: int = 0,
) -> Request:
    """Return the request for `count` tokens after `prefix`, with its random numbers.

    The other arguments are those of `uniforms`.
    """
    place = (seed, step, occurrence, attempt, turn)
    numbers = uniforms(
        key,
        seed=seed,
        step=step,
        attempt=attempt,
        turn=turn,
        count=count,
        occurrence=occurrence,
    )
    return Request(prefix, numbers, params, key.rng("sampler", *place).getrandbits(64))


def uniforms(
    key: TaskKey, *, seed: int, step: int, attempt: int, turn: int, count: int, occurrence: int = 0
) -> list[float]:
    """Return `count` random numbers in [0, 1), fixed by (run seed, step, prompt, attempt, turn).

    Dropped rows, micro-batches, resume and the number of processes do not change what is drawn.

    Args:
        attempt: number of the rollout in its group.
        occurrence: tells equal tasks of one step apart.
    """
    key_bits = key.rng("uniforms", seed, step, occurrence, attempt, turn).getrandbits(128)
    return draw_uniforms(key_bits, count)


def draw_uniforms(key: int, count: int) -> list[float]:
    """Return `count` random numbers in [0, 1), fixed by 128 bits."""
    bits = np.array([key >> 64, key & (2**64 - 1)], dtype=np.uint64)
    numbers: list[float] = np.random.Generator(np.random.Philox(key=bits)).random(count).tolist()
    return numbers


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
        seed: the run's.
        step: number of the step; with the seed it fixes the random numbers.
    """

    def __init__(
        self,
        policy: Policy,
        sampler: Sampler,
        params: SamplingParams,
        *,
        environments: Conversations | None,
        overlap: Callable[[Task[Any]], bool] | None = None,
        seed: int,
        step: int,
    ) -> None:
        self._policy, self._sampler, self._params = policy, sampler, params
        self._environments, self._overlap = environments, overlap
        self._seed, self._step = seed, step

    async def finished(self, attempts: Sequence[Attempt]) -> AsyncGenerator[int, None]:
        """Yield the place of each attempt as soon as it has ended.

        If the generator is closed early, the dialogues that have not ended are given up.
        """
        if self._environments is not None:
            for attempt in attempts:
                attempt.transcript.conversation = self._environments.conversation(attempt.task)
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

    async def _play(self, attempt: Attempt, place: int, rounds: _Rounds | None) -> None:
        """Play one dialogue to its end, in rounds or, where they are None, by itself."""
        if not await attempt.open(self._policy):
            return
        if rounds is not None:
            rounds.join()
        try:
            while True:
                if rounds is not None:
                    await rounds.wait_for_others(place)
                request = attempt.request(self._params, seed=self._seed, step=self._step)
                attempt.add_completion(await self._sampler.generate(request), self._policy)
                if not await attempt.add_reply(self._policy):
                    return
        finally:
            if rounds is not None:
                rounds.leave()


class _Rounds:
    """Let dialogues wait until all that have not ended are ready for their next turn.

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


def start_attempts(
    tasks_P: Sequence[Task[Any]],
    count: int,
    *,
    policy: Policy,
    budgets: Mapping[str, Budget],
    dealt: Counter[TaskKey],
) -> list[Attempt]:
    """Return `count` attempts at each task, before their first token.

    Args:
        budgets: the limits of a rollout, by environment.
        dealt: how often each task was dealt in this step before; it is updated. A task that is
            dealt again is drawn with other random numbers.

    Raises:
        ConfigError: a prompt is empty or too long.
    """
    attempts: list[Attempt] = []
    for task in tasks_P:
        budget = budgets[task.key.env]
        prompt_ids = policy.encode_checked(
            task.prompt, max_new_tokens=budget.turn, tools=budget.tools
        )
        attempts += [
            Attempt(task, budget, prompt_ids, number, dealt[task.key]) for number in range(count)
        ]
        dealt[task.key] += 1
    return attempts


@dataclass(slots=True)
class Attempt:
    """Holds a rollout in progress: the tokens after the prompt, their authors, and the messages."""

    task: Task[Any]
    budget: Budget
    prompt_ids: tuple[int, ...]
    number: int
    """Number of the rollout in its group."""
    occurrence: int
    """How often the task was dealt in this step before."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    trainable: list[int] = field(default_factory=list)
    """1 for each token of the policy, 0 for those of the environment."""
    transcript: Transcript = field(init=False)
    """The messages after the prompt."""
    kept_mass: float = 1.0
    """Least probability mass that top-p, top-k and min-p kept in any draw."""
    versions: list[int] = field(default_factory=list)
    """Version of the weights that drew each turn of the policy."""
    reply_dropped: bool = False
    """See `Rollout.reply_dropped`."""
    turn_lengths: list[int] = field(default_factory=list)
    """Number of tokens of each turn of the policy."""
    positions: tuple[int, ...] | None = None
    """Positions of the gaps that a masked language model fills; None for other models."""

    def __post_init__(self) -> None:
        self.transcript = Transcript(self.budget.turns)

    async def open(self, policy: Policy) -> bool:
        """Open the conversation; return False if the attempt is over already.

        The tokens of the messages with which it opens belong to the prompt.
        """
        opening = await self.transcript.open()
        if not opening:
            return self.transcript.finish == "stop"
        prompt, tools = self.task.prompt, self.budget.tools
        try:
            self.prompt_ids = policy.encode_checked(
                prompt + "".join(message.content for message in opening)
                if isinstance(prompt, str)
                else (*prompt, *opening),
                max_new_tokens=self.budget.turn,
                tools=tools,
            )
        except ConfigError as error:
            self.transcript.fail(f"the messages with which the episode opens do not fit: {error}")
            return False
        return True

    async def close(self) -> None:
        """Close the conversation."""
        if self.transcript.conversation is not None:
            await self.transcript.conversation.close()

    def request(self, params: SamplingParams, *, seed: int, step: int) -> Request:
        """Return the request for the policy's next turn."""
        return make_request(
            (*self.prompt_ids, *self.token_ids),
            params,
            self.task.key,
            seed=seed,
            step=step,
            attempt=self.number,
            turn=self.transcript.turn,
            count=self.budget.remaining(prompt=len(self.prompt_ids), written=len(self.token_ids)),
            occurrence=self.occurrence,
        )

    def add_completion(self, completion: Completion, policy: Policy) -> None:
        """Append the policy's turn."""
        self._append(completion.token_ids, completion.logprobs, trainable=1)
        self.transcript.add_turn(
            policy.completion_text(self.prompt_ids, completion.token_ids),
            completion.finish,
            policy.tool_calls(completion.token_ids, tools=self.budget.tools),
        )
        self.positions = policy.slots(self.prompt_ids)
        self.kept_mass = min(self.kept_mass, completion.kept_mass)
        self.versions.append(completion.version)
        self.turn_lengths.append(len(completion.token_ids))

    async def add_reply(self, policy: Policy) -> bool:
        """Append the environment's reply; return False if the dialogue is over.

        A reply that leaves no room for a turn of the policy ends it.
        """
        reply = await self.transcript.next_reply()
        if reply is None:
            return False
        reply_ids = policy.encode_reply(
            self.rollout(), self.task.prompt, reply, tools=self.budget.tools
        )
        if (
            self.budget.remaining(
                prompt=len(self.prompt_ids), written=len(self.token_ids) + len(reply_ids)
            )
            == 0
        ):
            self.transcript.finish, self.reply_dropped = "length", True
            return False
        self._append(reply_ids, [0.0] * len(reply_ids), trainable=0)
        self.transcript.messages += reply
        return True

    def rollout(self) -> Rollout:
        """Return the rollout as far as it has come."""
        return Rollout(
            messages=tuple(self.transcript.messages),
            finish=self.transcript.finish,
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            trainable=tuple(self.trainable),
            positions=self.positions,
            versions=tuple(self.versions),
            turn_lengths=tuple(self.turn_lengths),
            error=self.transcript.error,
            reply_dropped=self.reply_dropped,
        )

    def _append(
        self, token_ids: Sequence[int], logprobs: Sequence[float], *, trainable: int
    ) -> None:
        """Append tokens; `trainable` is 1 for those of the policy, else 0."""
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.trainable += [trainable] * len(token_ids)
