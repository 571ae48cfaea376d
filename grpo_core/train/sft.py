"""Warm start a model: supervised fine-tuning on given answers, so that GRPO has something to
refine.

It is the trainer with another source of rows: every answer is a rollout with advantage 1, and the
loss is the plain policy gradient without a KL, which for a given answer is its negative
log-likelihood, as a mean over the tokens of the batch. Evaluation, logs, checkpoints, resume and
several processes are those of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import KLConfig, LossConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message, Rollout, TaskKey
from grpo_core.train.compute.batch import Row
from grpo_core.train.models.adapter import adapted_layers
from grpo_core.train.policy.memory import Workload
from grpo_core.train.rollout.examples import Example, fingerprint, read_examples
from grpo_core.train.rollout.tasks import draw_number, epoch_order, total_steps, train_keys
from grpo_core.train.run.clock import Clock
from grpo_core.train.run.metrics import peak_memory_mb
from grpo_core.train.trainer import Trainer

EPOCHS = 3
"""Passes over a file of examples if neither steps nor epochs are set."""


class WarmStart(Trainer):
    """Trains on examples: `WarmStart(config).run()`.

    Args:
        config: with method "sft".
        env: as for `Trainer`.
        more: as for `Trainer`.
    """

    method = "SFT"

    def __init__(
        self,
        config: RunConfig,
        env: Environment[Any] | Mapping[str, Environment[Any]] | None = None,
        **more: Any,
    ) -> None:
        self._examples = read_examples(Path(config.sft.data)) if config.sft.data is not None else []
        self._warned = False
        super().__init__(config.model_copy(update={"method": "sft"}), env, **more)

    def _total(self) -> int:
        config = self.config
        if not self._examples:
            return total_steps(config, self.sources, batch=config.sft.batch_size)
        if config.steps is not None:
            return config.steps
        return math.ceil((config.epochs or EPOCHS) * len(self._examples) / config.sft.batch_size)

    def _update_config(self) -> RunConfig:
        """Return the settings of the update: the same optimizer with the loss of supervised
        fine-tuning.
        """
        config = self.config
        return config.model_copy(
            update={
                "loss": LossConfig(name="reinforce", aggregation="token_mean"),
                "kl": KLConfig(beta=0.0),
                "sampling": config.sampling.model_copy(update={"temperature": 1.0}),
                "trainer": config.trainer.model_copy(update={"mu": 1, "minibatches": 1}),
            }
        )

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each task source and of the file of examples."""
        data_fingerprint = (
            {}
            if self.config.sft.data is None
            else {"sft.data": fingerprint(Path(self.config.sft.data))}
        )
        return {**super().fingerprints(), **data_fingerprint}

    async def ready(self) -> None:
        """Read the first batch, so that problems show before anything is written."""
        rollouts = map(self._rollout, await self._batch(0, self.config.sft.batch_size, 1))
        self._first_rows = [Row(rollout, 1.0, 1.0) for rollout in rollouts if rollout is not None]

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload:
        """Estimate the largest batches from the first examples and the budgets."""
        longest_prompt = max(
            [len(row.rollout.prompt_ids) for row in self._first_rows]
            + [len(prompt) for prompt in prompts],
            default=0,
        )
        longest_answer = max(
            [len(row.rollout.token_ids) for row in self._first_rows]
            + [budget.longest for budget in self.budgets.values()],
            default=0,
        )
        return Workload(
            self._first_rows, self._eval_batches(), prompt=longest_prompt, new=longest_answer
        )

    async def step(self, step: int) -> dict[str, float]:
        """Do step 1, 2, ...: take the next examples and update towards their answers."""
        clock = Clock()
        examples = await self._batch(self.position, self.config.sft.batch_size, step)
        self.position += len(examples)
        rollouts = [self._rollout(example) for example in examples]
        fitting = [rollout for rollout in rollouts if rollout is not None]
        if len(fitting) < len(rollouts) and not self._warned:
            self._warned = True
            self.observer.warn(
                f"step {step}: {len(rollouts) - len(fitting)} of {len(rollouts)} examples have "
                f"more than {self._longest} tokens and are left out (reported once); raise "
                "sft.max_length, or take a model with a larger context"
            )
        token_count = sum(len(rollout.token_ids) for rollout in fitting)
        clock.lap("examples")
        with self._dropout():
            update_metrics = self.updater.update(
                [[Row(rollout, 1.0, 1.0 / token_count) for rollout in fitting]] if fitting else []
            )
        self.updater.steps = 0
        clock.lap("update")
        return {
            **{name: update_metrics[name] for name in ("loss", "entropy", "grad_norm", "lr")},
            "examples": float(len(fitting)),
            "examples/too_long": float(len(rollouts) - len(fitting)),
            "tokens/trained": float(token_count),
            "steps/skipped_nonfinite": self.updater.skipped,
            **clock.metrics(),
            "memory/peak_mb": peak_memory_mb(self.policy.device),
        }

    @property
    def _longest(self) -> int | None:
        """Return the most tokens of an example; None if there is no limit."""
        return self.config.sft.max_length or self.policy.context

    def _rollout(self, example: Example) -> Rollout | None:
        """Return the example as a rollout; None if it is too long."""
        prompt_ids, answer_ids = (
            self.policy.encode(example.prompt),
            self.policy.encode_answer(example.prompt, example.answer),
        )
        if self._longest is not None and len(prompt_ids) + len(answer_ids) > self._longest:
            return None
        length = len(answer_ids)
        return Rollout(
            (Message("assistant", example.answer),),
            "stop",
            prompt_ids,
            answer_ids,
            (0.0,) * length,
            (1,) * length,
        )

    async def _batch(self, start: int, count: int, step: int) -> list[Example]:
        """Return the examples number `start`, `start` + 1, ... of the run."""
        if self._examples:
            return [self._nth_example(number) for number in range(start, start + count)]
        keys = train_keys(self.config, self.sources, start, count, self.curriculum.levels)
        tasks = await self.sources.tasks(keys, draw_number(self.config.seed, step))
        answers = await self.sources.references(tasks)
        return [
            Example(task.prompt, answer)
            for task, answer in zip(tasks, _require_answers(answers, keys), strict=True)
        ]

    def _nth_example(self, number: int) -> Example:
        """Return an example of the file; each epoch has all of them in a new order."""
        epoch, place = divmod(number, len(self._examples))
        return self._examples[
            epoch_order("sft.data", self.config.seed, epoch, len(self._examples))[place]
        ]

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """Apply the adapter's dropout in the block; that of the base model stays off."""
        layers = adapted_layers(self.policy.model) if self.config.lora.dropout else []
        for layer in layers:
            layer.lora_dropout.train()
        try:
            yield
        finally:
            for layer in layers:
                layer.lora_dropout.eval()


def _require_answers(answers: Sequence[str | None], keys: Sequence[TaskKey]) -> list[str]:
    """Return the answers; raise ConfigError if a task has none."""
    known_answers = []
    for answer, key in zip(answers, keys, strict=True):
        if answer is None:
            raise ConfigError(
                f"environment {key.env!r} has no reference answer for task {key.index}, so there "
                "is nothing to learn from; give examples in a file: --data FILE.jsonl"
            )
        known_answers.append(answer)
    return known_answers
