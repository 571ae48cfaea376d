"""Drives attempts: task -> tokens -> sampler -> reply() -> sampler ... -> Rollout. Every token is drawn by a number that its place in the
run fixes, and none is ever tokenised again: a later turn continues the very tokens of the earlier ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from grpo_core.config.settings import SamplingConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.tools import schemas
from grpo_core.protocol.types import Finish, Message, Rollout, Task, TaskKey
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.sampler import Completion, Request, Sampler
from grpo_core.train.ranks import Ranks


class Replies(Protocol):
    """Who answers for the environment (the `Verifier`); raises GrpoError if it cannot."""

    async def reply(
        self, task: Task[Any], messages: Sequence[Message]
    ) -> Sequence[Message] | None: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """turn: most tokens of one turn of the policy; turns: how often it may speak; dialogue: most tokens after the prompt, the
    environment's included; context: most tokens with the prompt (None: no limit); tools: JSON schemas of what it may call."""

    turn: int
    turns: int = 1
    dialogue: int | None = None
    context: int | None = None
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def longest(self) -> int:
        """Most tokens that the policy may write."""
        return self.turn * self.turns

    def left(self, *, prompt: int, said: int) -> int:
        """How many tokens the policy may write in its next turn, after `said` tokens since a prompt of `prompt`."""
        limits = [self.turn]
        limits += [] if self.dialogue is None else [self.dialogue - said]
        limits += [] if self.context is None else [self.context - prompt - said]
        return max(0, min(limits))


def budget_of(env: Environment[Any], policy: Policy, sampling: SamplingConfig) -> Budget:
    """What an attempt at the tasks of `env` may use; raises ConfigError for what `policy` cannot do."""
    tools = schemas(env.tools())
    if tools and env.max_turns < 2:
        raise ConfigError(
            f"{type(env).__qualname__} offers tools, but with max_turns 1 no call would be answered; raise it"
        )
    turn = sampling.max_new_tokens or env.max_new_tokens
    if not policy.fills:
        return Budget(turn, env.max_turns, sampling.max_dialogue_tokens, policy.context, tools)
    if env.max_turns > 1:
        raise ConfigError(
            f"{type(env).__qualname__} holds dialogues, which a masked language model cannot: it only fills gaps"
        )
    return Budget(turn)


def uniforms(
    key: TaskKey, *, seed: int, step: int, attempt: int, turn: int, count: int, occurrence: int = 0
) -> list[float]:
    """(count,) numbers in [0, 1) fixed by (run seed, step, prompt, attempt, turn): dropped rows, micro-batches, resume and the number
    of processes change nothing in what is drawn. occurrence: tells apart equal tasks of one step."""
    words = key.rng("uniforms", seed, step, occurrence, attempt, turn).getrandbits(128)
    generator = np.random.Generator(
        np.random.Philox(key=np.array([words >> 64, words & (2**64 - 1)], dtype=np.uint64))
    )
    numbers: list[float] = generator.random(count).tolist()
    return numbers


async def roll_out(
    tasks_P: Sequence[Task[Any]],
    *,
    attempts: int,
    policy: Policy,
    sampler: Sampler,
    sampling: SamplingConfig,
    budget: Budget | Mapping[str, Budget],
    seed: int,
    step: int,
    replies: Replies | None = None,
    ranks: Ranks | None = None,
    ended: Callable[[int, Rollout], None] | None = None,
    seen: Counter[TaskKey] | None = None,
) -> tuple[list[list[Rollout]], float]:
    """`attempts` rollouts of each task, and the least probability mass that top-p, top-k and min-p kept in any draw.

    budget: one, or one for each environment by name.
    replies: answers after each turn but the last; without it a policy speaks once. A dialogue that it fails ends with finish="error".
    ranks: the processes that share the work; each gets everything.
    ended: is told each attempt of this process's share, by its place there, as soon as nothing more will be said in it.
    seen: how often each task was asked in this step before, which is counted on: a task that is dealt again is drawn by other numbers.
    """
    everything: list[_Attempt] = []
    seen = Counter() if seen is None else seen
    for task in tasks_P:
        own = budget if isinstance(budget, Budget) else budget[task.key.env]
        prompt_ids = policy.encode_checked(task.prompt, max_new_tokens=own.turn, tools=own.tools)
        everything += [
            _Attempt(task, own, prompt_ids, number, seen[task.key]) for number in range(attempts)
        ]
        seen[task.key] += 1
    mine = everything if ranks is None else ranks.share(everything)
    places = {id(attempt): place for place, attempt in enumerate(mine)}

    def is_over(attempt: _Attempt) -> None:
        if ended is not None:
            ended(places[id(attempt)], attempt.rollout())

    def heard(attempt: _Attempt, completion: Completion) -> None:
        attempt.spoke(completion, policy)
        if replies is None or not attempt.may_go_on:
            is_over(attempt)

    live = mine
    while live:
        requests = [attempt.request(seed=seed, step=step) for attempt in live]
        await _turn(live, requests, sampler, sampling, heard)
        if replies is None:
            break
        speaking = [attempt for attempt in live if attempt.may_go_on]
        goes_on = await asyncio.gather(*(attempt.answered(replies, policy) for attempt in speaking))
        live = []
        for attempt, on in zip(speaking, goes_on, strict=True):
            if on:
                live.append(attempt)
            else:
                is_over(attempt)
    rollouts, kept_mass = (
        [attempt.rollout() for attempt in mine],
        min((attempt.kept_mass for attempt in mine), default=1.0),
    )
    if ranks is not None:
        await ranks.arrive()
        rollouts, kept_mass = ranks.gathered(rollouts), min(ranks.everywhere(kept_mass))
    return [rollouts[i : i + attempts] for i in range(0, len(rollouts), attempts)], kept_mass


async def _turn(
    live: Sequence[_Attempt],
    requests: Sequence[Request],
    sampler: Sampler,
    sampling: SamplingConfig,
    heard: Callable[[_Attempt, Completion], None],
) -> None:
    """The policy speaks in every attempt of `live`; `heard` is told each completion once, as early as the sampler tells it."""
    unheard = dict(enumerate(live))

    def hear(place: int, completion: Completion) -> None:
        heard(unheard.pop(place), completion)

    completions = await sampler.sample(requests, sampling, ended=hear)
    for place in list(unheard):
        hear(place, completions[place])


@dataclass(slots=True)
class _Attempt:
    """A dialogue under way: the tokens after the prompt, who wrote them, and what was said."""

    task: Task[Any]
    budget: Budget
    prompt_ids: tuple[int, ...]
    number: int
    occurrence: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    trainable: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    finish: Finish = "stop"
    error: str = ""
    turn: int = 0
    kept_mass: float = 1.0
    positions: tuple[int, ...] | None = None

    @property
    def may_go_on(self) -> bool:
        """Whether the environment is asked for its turn; one of the policy that was cut off ends the dialogue."""
        return self.finish == "stop" and self.turn < self.budget.turns

    def request(self, *, seed: int, step: int) -> Request:
        prefix = (*self.prompt_ids, *self.token_ids)
        count = self.budget.left(prompt=len(self.prompt_ids), said=len(self.token_ids))
        key, number, occurrence = self.task.key, self.number, self.occurrence
        return Request(
            prefix,
            uniforms(
                key,
                seed=seed,
                step=step,
                attempt=number,
                turn=self.turn,
                count=count,
                occurrence=occurrence,
            ),
        )

    def spoke(self, completion: Completion, policy: Policy) -> None:
        self._append(completion.token_ids, completion.logprobs, trainable=1)
        self.messages.append(
            Message("assistant", policy.said(self.prompt_ids, completion.token_ids))
        )
        self.positions = policy.slots(self.prompt_ids)
        self.finish = completion.finish
        self.turn += 1
        self.kept_mass = min(self.kept_mass, completion.kept_mass)

    async def answered(self, replies: Replies, policy: Policy) -> bool:
        """Hear the environment's turn; False if the dialogue is over."""
        try:
            turn = await replies.reply(self.task, tuple(self.messages))
        except (
            GrpoError
        ) as error:  # the verifier reports the attempt as one that could not be judged
            self.finish, self.error = "error", str(error)
            return False
        if turn is None:
            return False
        new = policy.encode_reply(self.rollout(), self.task.prompt, turn, tools=self.budget.tools)
        if self.budget.left(prompt=len(self.prompt_ids), said=len(self.token_ids) + len(new)) == 0:
            self.finish = "length"
            return False
        self._append(new, [0.0] * len(new), trainable=0)
        self.messages += turn
        return True

    def rollout(self) -> Rollout:
        return Rollout(
            messages=tuple(self.messages),
            finish=self.finish,
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            trainable=tuple(self.trainable),
            positions=self.positions,
            error=self.error,
        )

    def _append(
        self, token_ids: Sequence[int], logprobs: Sequence[float], *, trainable: int
    ) -> None:
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.trainable += [trainable] * len(token_ids)
