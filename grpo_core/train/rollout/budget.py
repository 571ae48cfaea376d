"""Limit the tokens and turns of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.config.settings import SamplingConfig
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.agent import AgentEnvironment
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.verify.judge.checks import offered_tools


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
    for_agents: bool = False
    """Whether an agent makes the attempts. Its segments are limited as other dialogues are."""
    has_episodes: bool = False
    """Whether an attempt has state in its environment."""

    @property
    def has_conversation(self) -> bool:
        """Return whether anything but one turn of the policy may follow the prompt."""
        return self.turns > 1 or self.for_agents or self.has_episodes

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
    tools = offered_tools(env)
    if isinstance(env, AgentEnvironment) and policy.fills:
        raise ConfigError(
            f"{type(env).__qualname__} has an agent, whose requests a masked language model cannot "
            "answer: it only fills gaps"
        )
    turn_tokens = sampling.max_new_tokens or env.max_new_tokens
    if not policy.fills:
        return Budget(
            turn_tokens,
            env.max_turns,
            sampling.max_dialogue_tokens,
            policy.context,
            tools,
            for_agents=isinstance(env, AgentEnvironment),
            has_episodes=env.rung() == "episode",
        )
    if env.max_turns > 1:
        raise ConfigError(
            f"{type(env).__qualname__} holds dialogues, which a masked language model cannot do: "
            "it only fills gaps"
        )
    return Budget(turn_tokens, has_episodes=env.rung() == "episode")
