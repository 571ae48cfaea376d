"""The data that crosses every border of the SDK: frozen, small, JSON-ready, standard library only."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

Split = Literal["train", "eval"]
Finish = Literal["stop", "length", "error"]
Role = Literal["system", "user", "assistant", "tool"]
Data = TypeVar("Data")
MASK = "[MASK]"
"""One token to be filled in, in the raw text that a masked language model is asked; the policy puts its tokenizer's own mask there."""


@dataclass(frozen=True, slots=True)
class TaskKey:
    """Names one task. A task is a pure function of its key, so a key found in a log replays it.

    level: difficulty from 0 (easiest) to 1; seed: the run's choice of a stream, never added to the index.
    """

    env: str
    split: Split
    index: int
    seed: int = 0
    level: float = 0.0

    def rng(self, *salt: str | int) -> random.Random:
        """A generator seeded by sha256 of every field (and `salt`), so neighbouring keys share nothing.

        `seed + index` would make (seed 1, index 0) and (seed 0, index 1) the same task: a leak of validation into training.
        """
        name = json.dumps(
            [self.env, self.split, int(self.index), int(self.seed), float(self.level), *salt]
        )
        return random.Random(int.from_bytes(hashlib.sha256(name.encode()).digest(), "big"))


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Task(Generic[Data]):
    """What the policy is asked (`prompt`) and what only the verifier knows (`data`).

    prompt: a str is raw text, without a chat template (base models, masked fill-in); a tuple of messages is a chat.
    draw: set by the engine from (run seed, step), the same for all attempts of a group and logged; held-out test inputs come
    from (key, draw), so a verdict replays exactly.
    """

    key: TaskKey
    prompt: str | tuple[Message, ...]
    data: Data
    draw: int = 0

    def rng(self) -> random.Random:
        """For inputs drawn while verifying: fixed by (key, draw)."""
        return self.key.rng("draw", self.draw)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt of the policy at one task.

    messages: the turns after the prompt, the policy's and the environment's, in order.
    finish: "stop" (an end token or stop string), "length" (budget used up), "error" (a dialogue that broke: never scored).
    prompt_ids: (P,) the tokens of the prompt; token_ids: (T,) all tokens after it, in the order the policy saw them.
    logprobs: (T,) log-probability of each token when it was drawn, under the full distribution at the sampling temperature.
    trainable: (T,) 1 where the policy wrote the token, 0 where the environment did.
    positions: (T,) for masked fill-in, the slot that each token fills; None for causal text.
    error: why the dialogue broke, where finish is "error".
    """

    messages: tuple[Message, ...]
    finish: Finish = "stop"
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    trainable: tuple[int, ...] = ()
    positions: tuple[int, ...] | None = None
    error: str = ""

    @property
    def text(self) -> str:
        """The last thing the policy said; "" if it said nothing."""
        return next((m.content for m in reversed(self.messages) if m.role == "assistant"), "")

    @classmethod
    def of(cls, text: str) -> Rollout:
        """A finished one-turn attempt that says `text`: what tests and `grpo env score` judge."""
        return cls(messages=(Message("assistant", text),))


@dataclass(frozen=True, slots=True)
class Reward:
    """One named part of a verdict. seconds: how long this part took to compute; not compared."""

    value: float
    weight: float = 1.0
    note: str = ""
    seconds: float = field(default=0.0, compare=False)


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier says of one attempt: a reward, or an error; never a reward of 0 that means an error.

    rewards: the parts by name, the same names in every verdict of an environment, also for the worst answer.
    passed: the environment's own notion of success. answer: what was extracted from the text.
    metrics: further numbers to log. detail: small JSON (sandbox outcome, stderr, picture paths).
    error: why the attempt could not be judged (infrastructure, a bug in the verifier); such an attempt leaves mean, std, loss and
    denominators.
    cacheable: whether asking again would give the same. The engine sets it to False where a service says that its answer rests on a
    suspicion or on how busy the machine was: the verdict counts in this step, and no cache keeps it.
    """

    rewards: Mapping[str, Reward] = field(default_factory=dict)
    passed: bool = False
    answer: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    cacheable: bool = True

    def __post_init__(self) -> None:
        for name in ("rewards", "metrics", "detail"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))

    @property
    def total(self) -> float:
        """Sum of weight * value over the parts (exactly rounded, so the order of the parts does not matter)."""
        return math.fsum(r.weight * r.value for r in self.rewards.values())

    @property
    def scored(self) -> bool:
        return self.error is None

    def __reduce__(self) -> tuple[Any, ...]:
        """Read-only mappings cannot be pickled or copied; their contents can."""
        return Verdict, (
            dict(self.rewards),
            self.passed,
            self.answer,
            dict(self.metrics),
            dict(self.detail),
            self.error,
            self.cacheable,
        )

    @classmethod
    def failed(cls, error: str) -> Verdict:
        """A verdict that says "could not be judged"."""
        return cls(error=error)

    def to_json(self) -> dict[str, Any]:
        return {
            "total": self.total if self.scored else None,
            "passed": self.passed,
            "answer": self.answer,
            "error": self.error,
            "rewards": {
                n: {"value": r.value, "weight": r.weight, "note": r.note, "seconds": r.seconds}
                for n, r in self.rewards.items()
            },
            "metrics": dict(self.metrics),
            "detail": dict(self.detail),
            **({} if self.cacheable else {"cacheable": False}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        rewards = {name: Reward(**part) for name, part in data["rewards"].items()}
        return cls(
            **{name: value for name, value in data.items() if name != "total"}
            | {"rewards": rewards}
        )


@dataclass(frozen=True, slots=True)
class Group(Generic[Data]):
    """A task with its attempts and their verdicts (in the same order): the unit whose rewards are compared."""

    task: Task[Data]
    rollouts: Sequence[Rollout]
    verdicts: Sequence[Verdict] = ()
