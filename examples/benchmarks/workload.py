"""A task for measuring time and memory: it has given prompts, and pseudo-random rewards."""

from __future__ import annotations

import random
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.engine.policy.causal import Policy
from grpo_core.train.trainer import Trainer


class Prompts(Environment[str]):
    """Uses the texts in `prompts` one after the other; a text's reward is a hash of it."""

    parts: ClassVar[Mapping[str, float]] = {"score": 1.0}
    trusted = True
    prompts: ClassVar[Sequence[str]] = ()

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, self.prompts[key.index % len(self.prompts)], "")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return Verdict({"score": Reward(zlib.crc32(rollout.text.encode()) % 1000 / 1000)})


class Watching:
    """An observer that keeps the metrics of each step."""

    def __init__(self) -> None:
        self.metrics: list[Mapping[str, float]] = []

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self.metrics.append(dict(metrics))

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def evaluating(self, done: int, total: int) -> None: ...

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def finished(self, gains: Mapping[str, Any]) -> None: ...


def prompts(tokenizer: Any, count: int, tokens: int) -> list[list[int]]:
    """Return prompts of `tokens` tokens each that differ from the first word on."""
    rng = random.Random(0)
    texts = [
        f"{number} tells: " + " ".join(str(rng.randrange(10_000)) for _ in range(tokens))
        for number in range(count)
    ]
    return [tokenizer(text)["input_ids"][:tokens] for text in texts]


def settings(
    model: Mapping[str, Any],
    *,
    prompts_per_step: int,
    group_size: int,
    new_tokens: int,
    steps: int,
    **more: Any,
) -> dict[str, Any]:
    """Return the settings of the compared runs: GRPO, LoRA of rank 16 on all layers, KL 0.04."""
    return {
        "environment": "prompts",
        "model": model,
        "steps": steps,
        "prompts_per_step": prompts_per_step,
        "group_size": group_size,
        "sampling": {"max_new_tokens": new_tokens},
        "advantage": {"name": "grpo"},
        "kl": {"beta": 0.04, "estimator": "k3"},
        "lora": {"r": 16, "alpha": 32},
        "optimizer": {"lr": 1e-6},
        "eval": {"tasks": 0},
        **more,
    }


def steps(
    policy: Policy, chosen: Mapping[str, Any], texts: Sequence[str]
) -> list[Mapping[str, float]]:
    """Run with a loaded policy, and return the metrics of each step.

    Every completion has the full length.
    """
    Prompts.prompts = texts
    policy.end_ids = ()
    watching = Watching()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            build_config([chosen]),
            Prompts(),
            folder=f"{folder}/run",
            policy=policy,
            observer=watching,
        ).run()
    return watching.metrics
