"""An environment whose verifier waits, as a simulator or a judge elsewhere would."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict


@dataclass(frozen=True, slots=True)
class Config:
    seconds: float = 0.3
    """How long a verdict takes. It only waits, so that many verifiers need no cores."""


class Slow(Environment[str]):
    """Reward: the share of characters that are the letter of the prompt."""

    Config = Config
    config: Config
    parts: ClassVar[Mapping[str, float]] = {"share": 1.0}
    max_new_tokens = 24

    def task(self, key: TaskKey) -> Task[str]:
        letter = "abcdefgh"[key.rng().randrange(8)]
        return Task(key, f"Write the letter {letter} again and again, as often as you can.", letter)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        time.sleep(self.config.seconds)
        share = rollout.text.count(task.data) / max(1, len(rollout.text))
        return Verdict({"share": Reward(share)}, passed=share > 0.5, answer=rollout.text)
