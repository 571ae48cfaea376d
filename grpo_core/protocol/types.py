"""Define the data types that all parts of the SDK exchange.

They are frozen, small and JSON-ready, and need only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from grpo_core.protocol.thoughts import DEFAULT_TAGS, Tags, split_thoughts
from grpo_core.protocol.ties import same_reward

Split = Literal["train", "eval"]
Finish = Literal["stop", "length", "error"]
Role = Literal["system", "user", "assistant", "tool"]
Data = TypeVar("Data")
Script = str | Sequence[str]
"""What a policy says in one attempt: the text of its only turn, or the texts of its turns."""
MASK = "[MASK]"
"""Stands for one token to fill in, in the raw text prompt of a masked language model.

The policy replaces it with the mask token of its tokenizer.
"""


@dataclass(frozen=True, slots=True)
class TaskKey:
    """Identifies one task.

    A task is a pure function of its key, so a key from a log is enough to create the task again.
    """

    env: str
    """The name of the environment."""
    split: Split
    """"train" or "eval", the held-out tasks."""
    index: int
    """The number of the task within the split."""
    seed: int = 0
    """The seed of the run, which selects a stream of tasks; it is never added to the index."""
    level: float = 0.0
    """The difficulty, from 0 (easiest) to 1."""

    def rng(self, *salt: str | int) -> random.Random:
        """Return a generator seeded with the sha256 of every field and of `salt`.

        Neighbouring keys therefore share no random numbers. A seed of `seed + index` would make
        (seed 1, index 0) and (seed 0, index 1) the same task, so that held-out tasks leak into
        training.
        """
        name = json.dumps(
            [self.env, self.split, int(self.index), int(self.seed), float(self.level), *salt]
        )
        return random.Random(int.from_bytes(hashlib.sha256(name.encode()).digest(), "big"))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Holds one call of a tool, in whatever format the policy wrote it."""

    name: str = ""
    """The name of the tool."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The arguments by name, as JSON data; they are not checked yet."""
    id: str = ""
    """The id that the policy gave the call, where its format has ids."""
    error: str = ""
    """What is wrong with the form of the call; then it names no tool, and is not made."""

    def to_json(self) -> dict[str, Any]:
        """Return the call as JSON data."""
        return {
            "name": self.name,
            "arguments": dict(self.arguments),
            "id": self.id,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Message:
    """Holds one turn of a chat."""

    role: Role
    """Who speaks: "system", "user", "assistant" (the policy) or "tool"."""
    content: str
    """The text; of a turn of the policy what follows its thoughts."""
    tool_calls: tuple[ToolCall, ...] | None = None
    """The policy's calls of tools, where its model writes them in a format of its own.

    The trainer fills it in. None: the calls are those in `content`, in the form
    `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. `grpo_core.protocol.tool_calls` has
    `calls_of`, which reads both.
    """
    thoughts: str = ""
    """What the policy thought before it wrote `content`, where that is known apart from it.

    It is no part of the answer. Each turn is split where it is drawn or received; a server that
    parses the reasoning of its model sends it apart.
    """
    thought_marks: tuple[str, str] = ("", "")
    """The texts before and after `thoughts` in the turn: the tags, with white space around them.

    ("", ""): the turn has no thoughts, or they came apart from it, or the prompt opened them and
    they were never closed."""

    @classmethod
    def turn(
        cls,
        text: str,
        tags: Tags | None = DEFAULT_TAGS,
        *,
        opened: bool = False,
        tool_calls: tuple[ToolCall, ...] | None = None,
    ) -> Message:
        """Return a turn of the policy, split into thoughts and content.

        Args:
            text: what the policy wrote.
            tags: the texts that open and close its thoughts; None: nothing is a thought.
            opened: whether the prompt opened a thought.
            tool_calls: its calls of tools, where its model has a format of its own.
        """
        split = split_thoughts(text, tags, opened=opened)
        return cls("assistant", split.content, tool_calls, split.thoughts, split.marks)

    @property
    def raw(self) -> str:
        """Return the text as it was written, with the thoughts and their tags.

        Thoughts that a server sent apart from a content have no place in it.
        """
        before, after = self.thought_marks
        if self.content and not before and not after:
            return self.content
        return f"{before}{self.thoughts}{after}{self.content}"

    def to_json(self) -> dict[str, Any]:
        """Return the message as JSON data; calls and thoughts stand in it where there are some."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls is not None:
            data["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.thoughts:
            data["thoughts"] = self.thoughts
        if any(self.thought_marks):
            data["thought_marks"] = list(self.thought_marks)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Message:
        """Return the message that `to_json` wrote, also that of an older version."""
        calls = data.get("tool_calls")
        return cls(
            data["role"],
            data["content"],
            None if calls is None else tuple(ToolCall(**call) for call in calls),
            data.get("thoughts", ""),
            _pair(data.get("thought_marks", ("", ""))),
        )


def _pair(marks: Sequence[str]) -> tuple[str, str]:
    before, after = marks
    return before, after


@dataclass(frozen=True, slots=True)
class Task(Generic[Data]):
    """Holds a prompt for the policy, and data that only the verifier sees."""

    key: TaskKey
    """The key that the task was made from."""
    prompt: str | tuple[Message, ...]
    """A str is raw text without a chat template (base models, masked fill-in).

    A tuple of messages is a chat.
    """
    data: Data
    """What the verifier needs and the policy must not see.

    It is plain data that can be compared and pickled: numbers, texts, lists, dictionaries, frozen
    dataclasses of a module. All attempts at a task share it, so nothing may change it.
    """
    draw: int = 0
    """The seed of the test inputs that the verifier draws.

    The engine sets it from (run seed, step). It is the same for all rollouts of a group, and it is
    logged. Held-out test inputs depend only on (key, draw), so a verdict can be reproduced exactly.
    """

    def rng(self) -> random.Random:
        """Return the generator for inputs drawn during verification, seeded by (key, draw)."""
        return self.key.rng("draw", self.draw)


@dataclass(frozen=True, slots=True)
class Segment:
    """Holds one sequence of tokens of an attempt: a prefix, and what followed it.

    An attempt has one, unless an agent rewrote its history: what it then had the policy continue is
    a further one. Each sampled token is trainable in exactly one of them. P is the number of tokens
    in the prefix, T the number of tokens after it.
    """

    prompt_ids: tuple[int, ...]
    """(P,) The tokens of the prefix, none of them trainable."""
    token_ids: tuple[int, ...]
    """(T,) All tokens after the prefix, in order."""
    logprobs: tuple[float, ...]
    """(T,) The log-probability of each token when it was sampled, as in `Rollout`."""
    trainable: tuple[int, ...]
    """(T,) 1 where the policy wrote the token, 0 where it did not."""
    positions: tuple[int, ...] | None = None
    """As in `Rollout`."""

    def shared_with(self, other: Segment) -> int:
        """Return how many tokens both segments have in common at the start, with their prefixes."""
        return shared_length(
            (*self.prompt_ids, *self.token_ids), (*other.prompt_ids, *other.token_ids)
        )


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at the start."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


@dataclass(frozen=True, slots=True)
class Rollout:
    """Records one attempt of the policy at one task.

    P is the number of tokens in the prompt, T the number of tokens after it.
    """

    messages: tuple[Message, ...]
    """The turns after the prompt, the policy's and the environment's, in order.

    The last one is the policy's; there may be none at all.
    """
    finish: Finish = "stop"
    """How the rollout ended.

    "stop": an end token or a stop string. "length": the token budget was used up. "error": the
    dialogue failed; such a rollout is never scored.
    """
    prompt_ids: tuple[int, ...] = ()
    """(P,) The tokens of the prompt, and of the messages with which an episode opens."""
    token_ids: tuple[int, ...] = ()
    """(T,) All tokens after the prompt, in the order in which the policy saw them."""
    logprobs: tuple[float, ...] = ()
    """(T,) The log-probability of each token when it was sampled.

    It refers to the full distribution at the sampling temperature.
    """
    trainable: tuple[int, ...] = ()
    """(T,) 1 where the policy wrote the token, 0 where the environment did."""
    positions: tuple[int, ...] | None = None
    """(T,) For masked fill-in, the slot that each token fills; None for causal text."""
    versions: tuple[int, ...] = ()
    """The version of the weights that wrote each of the policy's turns: the number of the step
    after which the weights were these."""
    error: str = ""
    """Why the dialogue failed, if `finish` is "error"."""
    reply_dropped: bool = False
    """The environment answered the last turn, but its answer is not in `messages`.

    There was no room for another turn, or a script had ended.
    """
    turn_lengths: tuple[int, ...] = ()
    """The number of tokens of each of the policy's turns, in order; () where it is not known.

    With several segments they come segment by segment."""
    later_segments: tuple[Segment, ...] = ()
    """What an agent had the policy continue after it had rewritten its history.

    The fields above hold the first segment. `messages` are those of the last one."""
    returned: Any = None
    """What an agent returned (see `AgentEnvironment.agent`), as JSON data."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return all segments, the first one included."""
        first = Segment(
            self.prompt_ids, self.token_ids, self.logprobs, self.trainable, self.positions
        )
        return (first, *self.later_segments)

    @property
    def sampled_tokens(self) -> int:
        """Return how many tokens the policy wrote, in all segments."""
        return sum(sum(segment.trainable) for segment in self.segments)

    @property
    def shows_turns(self) -> bool:
        """Return whether each turn of the policy is one of the messages, and none is made up."""
        return not self.later_segments and self.turns == self._shown_turns

    @property
    def turns_by_segment(self) -> tuple[tuple[int, ...], ...]:
        """Return the number of tokens of each turn of each segment, as far as it is known.

        A turn without tokens counts to the last segment that has begun before it.
        """
        lengths, turns_by_segment = list(self.turn_lengths), []
        for segment in self.segments:
            turns: list[int] = []
            while lengths and sum(turns) + lengths[0] <= sum(segment.trainable):
                turns.append(lengths.pop(0))
            turns_by_segment.append(tuple(turns))
        return tuple(turns_by_segment)

    @property
    def turns(self) -> int:
        """Return the number of the policy's turns."""
        return len(self.turn_lengths) or self._shown_turns

    @property
    def _shown_turns(self) -> int:
        return sum(message.role == "assistant" for message in self.messages)

    @property
    def last_turn(self) -> Message:
        """Return the last message of the policy, an empty one if there is none."""
        turns = (message for message in reversed(self.messages) if message.role == "assistant")
        return next(turns, Message("assistant", ""))

    @property
    def text(self) -> str:
        """Return the content of the last message of the policy, which is its answer.

        Its thoughts are no part of it: a verifier that reads only this cannot take something that
        was merely considered for an answer. "" if there is no message.
        """
        return self.last_turn.content

    @property
    def raw(self) -> str:
        """Return all that the policy wrote in its last turn: thoughts, their tags and `text`."""
        return self.last_turn.raw

    @classmethod
    def of(cls, text: str) -> Rollout:
        """Return a finished one-turn rollout with the completion `text`.

        Thoughts between <think> and </think> at its start are split off, as in a run. Tests and
        `grpo env score` judge such rollouts.
        """
        return cls(messages=(Message.turn(text),))


@dataclass(frozen=True, slots=True)
class Reward:
    """Holds one named part of a verdict.

    Raises:
        ValueError: `value` is given and is not the sum of `turns`.
    """

    value: float = math.nan
    """The reward; True counts as 1. Leave it out with `turns`: it is their sum."""
    weight: float = 1.0
    """Its weight in the total. Leave it out: the engine takes that of `Environment.parts`, or the
    run's, and until then it is 1."""
    note: str = ""
    """A remark for logs and reports."""
    seconds: float = field(default=0.0, compare=False)
    """How long this part took to compute; comparisons ignore it."""
    turns: tuple[float, ...] | None = field(default=None, kw_only=True)
    """What each of the policy's turns earned, in order; None: the last turn earned `value`.

    What a turn earned must not depend on later turns: an estimator such as `turns` gives it no
    credit for what came before it."""

    def __post_init__(self) -> None:
        if self.turns is None:
            return
        total = math.fsum(self.turns)
        if not (math.isnan(self.value) or same_reward(self.value, total)):
            raise ValueError(
                f"the value of a Reward is {self.value:g}, but its turns add up to {total:g}; "
                "leave out the value"
            )
        object.__setattr__(self, "turns", tuple(self.turns))
        object.__setattr__(self, "value", total)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Holds the verifier's judgement of one rollout: a reward or an error.

    A reward of 0 never stands for an error.
    """

    rewards: Mapping[str, Reward] = field(default_factory=dict)
    """The reward parts by name.

    All verdicts of an environment have the same names, including that of the worst answer.
    """
    passed: bool = False
    """The rollout succeeded, by the environment's own definition."""
    answer: str | None = None
    """The answer that was extracted from the text."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers to log."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Further data as small JSON (sandbox outcome, stderr, paths of pictures)."""
    error: str | None = None
    """Why the rollout could not be judged (infrastructure, a bug in the verifier).

    Such a rollout is left out of mean, standard deviation, loss and denominators.
    """
    raised: str = ""
    """The exception by which the verifier failed at the answer, which got the floor for it; "" if
    the verifier has judged it.

    The engine sets it, for environments that declare `raises_at_answers`.
    """
    cacheable: bool = True
    """Asking again would give the same verdict.

    The engine sets it to False if a service reports that its answer rests on a suspicion or on how
    busy the machine was: the verdict counts in this step, and no cache keeps it.
    """
    output: str = field(default="", compare=False)
    """The end of what the verifier printed and logged, and of what its judges replied.

    The engine sets it; nothing depends on it, and comparisons ignore it.
    """

    def __post_init__(self) -> None:
        for name in ("rewards", "metrics", "detail"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def total(self) -> float:
        """Return the sum of weight * value over the parts.

        It is exactly rounded, so the order of the parts does not matter.
        """
        return math.fsum(reward.weight * reward.value for reward in self.rewards.values())

    @property
    def scored(self) -> bool:
        """Return whether the verdict is a reward and not an error."""
        return self.error is None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the contents, because read-only mappings support neither."""
        return Verdict, (
            dict(self.rewards),
            self.passed,
            self.answer,
            dict(self.metrics),
            dict(self.detail),
            self.error,
            self.raised,
            self.cacheable,
            self.output,
        )

    @classmethod
    def failed(cls, error: str) -> Verdict:
        """Return a verdict that says that the rollout could not be judged, and why."""
        return cls(error=error)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON data; `total` is None if there is an error."""
        return {
            "total": self.total if self.scored else None,
            "passed": self.passed,
            "answer": self.answer,
            "error": self.error,
            "rewards": {
                name: {
                    "value": reward.value,
                    "weight": reward.weight,
                    "note": reward.note,
                    "seconds": reward.seconds,
                    **({} if reward.turns is None else {"turns": list(reward.turns)}),
                }
                for name, reward in self.rewards.items()
            },
            "metrics": dict(self.metrics),
            "detail": dict(self.detail),
            **({"raised": self.raised} if self.raised else {}),
            **({} if self.cacheable else {"cacheable": False}),
            **({"output": self.output} if self.output else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `to_json` wrote."""
        rewards = {name: Reward(**part) for name, part in data["rewards"].items()}
        return cls(
            **{name: value for name, value in data.items() if name != "total"}
            | {"rewards": rewards}
        )


@dataclass(frozen=True, slots=True)
class Group(Generic[Data]):
    """Holds a task with its rollouts, whose rewards are compared with each other."""

    task: Task[Data]
    """The task that all of them answer."""
    rollouts: Sequence[Rollout]
    """The attempts."""
    verdicts: Sequence[Verdict] = ()
    """The verdicts of the rollouts, in the same order."""
    advantages: Sequence[float | Sequence[float]] | None = None
    """The advantages of the rollouts, or of each turn of these; 0 where a rollout is not trained
    on. None: they are not computed, as before a step has all its verdicts and in evaluations."""
