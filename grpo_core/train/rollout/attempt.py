"""Hold attempts in progress: their tokens, and who wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Completion, Request, SamplingParams
from grpo_core.protocol.types import Rollout, Task, TaskKey
from grpo_core.train.policy.causal import Policy
from grpo_core.train.rollout.agents import AgentAttempt
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.rollout.draws import make_request
from grpo_core.verify.conversation import Conversation
from grpo_core.verify.playing import Transcript


def start_attempts(
    tasks_P: Sequence[Task[Any]],
    count: int,
    *,
    policy: Policy,
    budgets: Mapping[str, Budget],
    dealt: Counter[TaskKey],
) -> list[Attempt | AgentAttempt]:
    """Return `count` attempts at each task, before their first token.

    Args:
        budgets: the limits of a rollout, by environment.
        dealt: how often each task was dealt in this step before; it is updated. A task that is
            dealt again is drawn with other random numbers.

    Raises:
        ConfigError: a task cannot be asked; whoever chooses tasks leaves such out (`Askable`).
    """
    attempts: list[Attempt | AgentAttempt] = []
    for task in tasks_P:
        budget, occurrence = budgets[task.key.env], dealt[task.key]
        dealt[task.key] += 1
        if budget.for_agents:
            attempts += [AgentAttempt(task, budget, number, occurrence) for number in range(count)]
            continue
        try:
            prompt_ids = policy.encode_checked(
                task.prompt, max_new_tokens=budget.turn, tools=budget.tools
            )
        except ConfigError as error:
            key = task.key
            raise ConfigError(f"{key.env} {key.split} index {key.index}: {error}") from None
        attempts += [
            Attempt(task, budget, prompt_ids, number, occurrence) for number in range(count)
        ]
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

    @property
    def conversation(self) -> Conversation | None:
        """Return what speaks for the environment; None: it says nothing."""
        return self.transcript.conversation

    @conversation.setter
    def conversation(self, conversation: Conversation) -> None:
        self.transcript.conversation = conversation

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
        prefix_ids = (*self.prompt_ids, *self.token_ids)
        turn = policy.turn(prefix_ids, completion.token_ids, tools=self.budget.tools)
        self._append(completion.token_ids, completion.logprobs, trainable=1)
        self.transcript.add_turn(turn, completion.finish)
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
