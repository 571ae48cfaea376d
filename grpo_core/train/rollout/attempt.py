"""Hold attempts in progress: their tokens, and who wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Completion, Request, SamplingParams
from grpo_core.protocol.types import Rollout, Task, TaskKey
from grpo_core.train.rollout.agents import AgentAttempt
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.rollout.draws import Draws
from grpo_core.verify.episodes.playing import Transcript


def start_attempts(
    tasks_P: Sequence[Task[Any]],
    count: int,
    *,
    policy: Policy,
    budgets: Mapping[str, Budget],
    dealt: Counter[TaskKey],
    seed: int,
    step: int,
    places: Collection[int] | None = None,
) -> list[Attempt | AgentAttempt]:
    """Return `count` attempts at each task, before their first token.

    Args:
        budgets: the limits of a rollout, by environment.
        dealt: how often each task was dealt in this step before; it is updated. A task that is
            dealt again is drawn with other random numbers.
        seed: the run's.
        step: number of the step; with the seed it fixes the random numbers.
        places: which of all these attempts are wanted, numbered task by task; None: all.

    Raises:
        ConfigError: a task cannot be asked; whoever chooses tasks leaves such out (`Askable`).
    """
    attempts: list[Attempt | AgentAttempt] = []
    for place, task in enumerate(tasks_P):
        key, budget = task.key, budgets[task.key.env]
        first = Draws(key, seed, step, occurrence=dealt[key])
        dealt[key] += 1
        draws = [
            replace(first, attempt=number)
            for number in range(count)
            if places is None or place * count + number in places
        ]
        if not draws:
            continue
        if budget.for_agents:
            attempts += [AgentAttempt(task, budget, one) for one in draws]
            continue
        try:
            prompt_ids = policy.encode_checked(
                task.prompt, max_new_tokens=budget.turn, tools=budget.tools
            )
        except ConfigError as error:
            raise ConfigError(f"{key.env} {key.split} index {key.index}: {error}") from None
        attempts += [
            Attempt(budget.turns, task=task, budget=budget, prompt_ids=prompt_ids, draws=one)
            for one in draws
        ]
    return attempts


@dataclass(slots=True, kw_only=True)
class Attempt(Transcript):
    """Holds a rollout in progress: the messages, the tokens after the prompt, and their authors."""

    task: Task[Any]
    budget: Budget
    prompt_ids: tuple[int, ...]
    draws: Draws
    """Fixes the random numbers of the first turn, and by its number those of each later one."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    trainable: list[int] = field(default_factory=list)
    """1 for each token of the policy, 0 for those of the environment."""
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
    _rollout: Rollout | None = field(default=None, init=False)
    """What the attempt became; None before its end."""

    async def begin(self, policy: Policy) -> bool:
        """Open the conversation; return False if the attempt is over already.

        The tokens of the messages with which it opens belong to the prompt.
        """
        opening = await self.open()
        if not opening:
            return self.finish == "stop"
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
            self.fail(f"the messages with which the episode opens do not fit: {error}")
            return False
        return True

    async def close(self) -> None:
        """Close the conversation."""
        if self.conversation is not None:
            await self.conversation.close()

    def request(self, params: SamplingParams) -> Request:
        """Return the request for the policy's next turn."""
        count = self.budget.remaining(prompt=len(self.prompt_ids), written=len(self.token_ids))
        draws = replace(self.draws, turn=self.turn)
        return draws.request((*self.prompt_ids, *self.token_ids), params, count)

    def add_completion(self, completion: Completion, policy: Policy) -> None:
        """Append the policy's turn."""
        prefix_ids = (*self.prompt_ids, *self.token_ids)
        turn = policy.turn(prefix_ids, completion.token_ids, tools=self.budget.tools)
        self.add_turn(turn, completion.finish)
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.trainable += [1] * len(completion.token_ids)
        self.positions = policy.slots(self.prompt_ids)
        self.kept_mass = min(self.kept_mass, completion.kept_mass)
        self.versions.append(completion.version)
        self.turn_lengths.append(len(completion.token_ids))

    async def add_reply(self, policy: Policy) -> bool:
        """Append the environment's reply; return False if the dialogue is over.

        A reply that leaves no room for a turn of the policy ends it.
        """
        reply = await self.next_reply()
        if reply is None:
            return False
        reply_ids = policy.encode_reply(
            self.token_ids, self.task.prompt, self.messages, reply, tools=self.budget.tools
        )
        written = len(self.token_ids) + len(reply_ids)
        if self.budget.remaining(prompt=len(self.prompt_ids), written=written) == 0:
            self.finish, self.reply_dropped = "length", True
            return False
        self.token_ids += reply_ids
        self.logprobs += [0.0] * len(reply_ids)
        self.trainable += [0] * len(reply_ids)
        self.messages += reply
        return True

    def rollout(self) -> Rollout:
        """Return the rollout of the attempt, which has ended; it is built once."""
        if self._rollout is None:
            self._rollout = Rollout(
                messages=tuple(self.messages),
                finish=self.finish,
                prompt_ids=self.prompt_ids,
                token_ids=tuple(self.token_ids),
                logprobs=tuple(self.logprobs),
                trainable=tuple(self.trainable),
                positions=self.positions,
                versions=tuple(self.versions),
                turn_lengths=tuple(self.turn_lengths),
                error=self.error,
                reply_dropped=self.reply_dropped,
            )
        return self._rollout
