"""A dataset of reasoning-gym as an environment: its questions, its curriculum as levels, and its own verifier, as published.

One part, `reward`: what the dataset's score_answer says of the text in the only <answer> block; 0 without one. What a verifier raises
is not caught here, so the engine counts it as an error.

Several of these verifiers evaluate the answer as Python, or as sympy, which may do anything and need not end: `trusted` stays False.

Tasks are drawn by a seed hashed from their key. Whether a question is held out is decided by a hash of its text, for all levels and
seeds, so no held-out question is ever trained on; a draw of the other kind is drawn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from reasoning_gym.factory import DATASETS

from grpo_core import (
    ConfigError,
    Environment,
    Message,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import xml_tag
from grpo_env_reasoning_gym.items import item
from grpo_env_reasoning_gym.ladder import ladder

SYSTEM = "Solve the task. You may think first; then write your final answer, and nothing else, between <answer> and </answer>."
_EVAL_SHARE = 0.3
_DRAWS = 200
_FULL = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Config:
    """settings: of the dataset's own config, on top of what the level sets, as in --set env.settings.max_value=50."""

    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Item:
    """step: the place of its config on the ladder; entry: what the dataset made, the answer included."""

    step: int
    entry: Mapping[str, Any]


class ReasoningGym(Environment[Item]):
    """What all datasets share; `grpo_env_reasoning_gym.catalogue` has one class for each."""

    Config = Config
    dataset: ClassVar[str]
    max_new_tokens = 1024

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self._ladder = ladder(self.dataset, self.config.settings)
        self._built: dict[int, Any] = {}

    def task(self, key: TaskKey) -> Task[Item]:
        step = self._step(key.level)
        for draw in range(_DRAWS):
            entry = item(self.dataset, self._at(step), key.rng("item", draw).getrandbits(31))
            if entry is not None and _is_held_out(entry["question"]) == (key.split == "eval"):
                return Task(
                    key,
                    (Message("system", SYSTEM), Message("user", entry["question"])),
                    Item(step, entry),
                )
        raise ConfigError(
            f"none of {_DRAWS} questions at level {key.level:g} is for {key.split}; leave env.settings more room"
        )

    def verify(self, task: Task[Item], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="answer")
        if block is None:
            return Verdict(
                {"reward": Reward(self.floor, note="there is no <answer> block, or more than one")}
            )
        answer = block.content.strip()
        score = float(self._at(task.data.step).score_answer(answer=answer, entry=task.data.entry))
        return Verdict({"reward": Reward(score)}, passed=score >= _FULL, answer=answer)

    def reference(self, task: Task[Item]) -> str | None:
        """The answer that the dataset gives; some leave it out, where there are many."""
        answer = task.data.entry["answer"]
        return None if answer is None else f"<answer>{answer}</answer>"

    def fingerprint(self) -> str:
        files = sorted(
            file for file in Path(__file__).parent.iterdir() if file.suffix in (".py", ".toml")
        )
        text = " ".join([super().fingerprint(), self.dataset, version("reasoning-gym")])
        return hashlib.sha256(
            text.encode() + b"".join(file.read_bytes() for file in files)
        ).hexdigest()[:16]

    def _step(self, level: float) -> int:
        if not 0 <= level <= 1:
            raise ConfigError(f"level {level:g} is outside 0..1; 0 is the easiest")
        return min(int(level * len(self._ladder)), len(self._ladder) - 1)

    def _at(self, step: int) -> Any:
        if step not in self._built:
            self._built[step] = DATASETS[self.dataset][0](self._ladder[step])
        return self._built[step]


def _is_held_out(question: str) -> bool:
    """Case and spacing do not make another question."""
    digest = hashlib.sha256(" ".join(question.casefold().split()).encode()).digest()
    return int.from_bytes(digest[:8], "big") < _EVAL_SHARE * 2**64
