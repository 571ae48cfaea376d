"""Generate rollouts: task -> tokens -> sampler -> reply() -> sampler ... -> Rollout.

Every token is drawn with a random number that its place in the run fixes. No token is ever
tokenised again: a later turn continues the very tokens of the earlier ones.
"""

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
    """Answers for the environment in a dialogue (the `Verifier` does)."""

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        """Return the environment's next messages; None if the dialogue is over.

        Raises:
            GrpoError: the environment could not answer.
        """
        ...


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
            f"{type(env).__qualname__} offers tools, but with max_turns 1 no call would be "
            "answered; raise it"
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
    generator = np.random.Generator(
        np.random.Philox(key=np.array([key_bits >> 64, key_bits & (2**64 - 1)], dtype=np.uint64))
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
    """Generate `attempts` rollouts of each task.

    Args:
        attempts: rollouts per task (G).
        budget: the limits of every rollout, or those of each environment by name.
        replies: answers after each turn but the last; without it the policy has a single turn. A
            dialogue in which it fails ends with finish="error".
        ranks: the processes that share the work; each of them gets all rollouts.
        ended: is called with each rollout of this process's share and its place there, as soon as
            it is complete.
        seen: how often each task was dealt in this step before; it is updated. A task that is dealt
            again is drawn with other random numbers.

    Returns:
        The rollouts of each task (P, G), and the least probability mass that top-p, top-k and min-p
        kept in any draw.
    """
    all_attempts: list[_Attempt] = []
    seen = Counter() if seen is None else seen
    for task in tasks_P:
        task_budget = budget if isinstance(budget, Budget) else budget[task.key.env]
        prompt_ids = policy.encode_checked(
            task.prompt, max_new_tokens=task_budget.turn, tools=task_budget.tools
        )
        all_attempts += [
            _Attempt(task, task_budget, prompt_ids, number, seen[task.key])
            for number in range(attempts)
        ]
        seen[task.key] += 1
    own_attempts = all_attempts if ranks is None else ranks.share(all_attempts)
    place_of = {id(attempt): place for place, attempt in enumerate(own_attempts)}

    def report_end(attempt: _Attempt) -> None:
        if ended is not None:
            ended(place_of[id(attempt)], attempt.rollout())

    def on_completion(attempt: _Attempt, completion: Completion) -> None:
        attempt.add_completion(completion, policy)
        if replies is None or not attempt.may_continue:
            report_end(attempt)

    active = own_attempts
    while active:
        requests = [attempt.request(seed=seed, step=step) for attempt in active]
        await _sample_turn(active, requests, sampler, sampling, on_completion)
        if replies is None:
            break
        waiting = [attempt for attempt in active if attempt.may_continue]
        continuing = await asyncio.gather(
            *(attempt.add_reply(replies, policy) for attempt in waiting)
        )
        active = []
        for attempt, goes_on in zip(waiting, continuing, strict=True):
            if goes_on:
                active.append(attempt)
            else:
                report_end(attempt)
    rollouts = [attempt.rollout() for attempt in own_attempts]
    kept_mass = min((attempt.kept_mass for attempt in own_attempts), default=1.0)
    if ranks is not None:
        await ranks.arrive()
        rollouts, kept_mass = ranks.gathered(rollouts), min(ranks.everywhere(kept_mass))
    return [rollouts[i : i + attempts] for i in range(0, len(rollouts), attempts)], kept_mass


async def _sample_turn(
    active: Sequence[_Attempt],
    requests: Sequence[Request],
    sampler: Sampler,
    sampling: SamplingConfig,
    on_completion: Callable[[_Attempt, Completion], None],
) -> None:
    """Let the policy take a turn in every attempt of `active`.

    `on_completion` is called with each completion once, as early as the sampler reports it.
    """
    unreported = dict(enumerate(active))

    def report(place: int, completion: Completion) -> None:
        on_completion(unreported.pop(place), completion)

    completions = await sampler.sample(requests, sampling, ended=report)
    for place in list(unreported):
        report(place, completions[place])


@dataclass(slots=True)
class _Attempt:
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
    messages: list[Message] = field(default_factory=list)
    finish: Finish = "stop"
    error: str = ""
    turn: int = 0
    """Number of finished turns of the policy."""
    kept_mass: float = 1.0
    """Least probability mass that top-p, top-k and min-p kept in any draw."""
    positions: tuple[int, ...] | None = None
    """Positions of the gaps that a masked language model fills; None for other models."""

    @property
    def may_continue(self) -> bool:
        """Return whether the environment is asked for a reply.

        A turn of the policy that was cut off ends the dialogue.
        """
        return self.finish == "stop" and self.turn < self.budget.turns

    def request(self, *, seed: int, step: int) -> Request:
        """Return the request for the policy's next turn."""
        prefix = (*self.prompt_ids, *self.token_ids)
        count = self.budget.remaining(prompt=len(self.prompt_ids), written=len(self.token_ids))
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

    def add_completion(self, completion: Completion, policy: Policy) -> None:
        """Append the policy's turn."""
        self._append(completion.token_ids, completion.logprobs, trainable=1)
        self.messages.append(
            Message("assistant", policy.said(self.prompt_ids, completion.token_ids))
        )
        self.positions = policy.slots(self.prompt_ids)
        self.finish = completion.finish
        self.turn += 1
        self.kept_mass = min(self.kept_mass, completion.kept_mass)

    async def add_reply(self, replies: Replies, policy: Policy) -> bool:
        """Append the environment's reply; return False if the dialogue is over."""
        try:
            reply = await replies.reply(self.task, tuple(self.messages))
        except GrpoError as error:  # the verifier counts a rollout with an error as unscored
            self.finish, self.error = "error", str(error)
            return False
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
            self.finish = "length"
            return False
        self._append(reply_ids, [0.0] * len(reply_ids), trainable=0)
        self.messages += reply
        return True

    def rollout(self) -> Rollout:
        """Return the rollout as far as it has come."""
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
        """Append tokens; `trainable` is 1 for those of the policy, else 0."""
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.trainable += [trainable] * len(token_ids)
