"""Supervised fine-tuning on given answers, so that GRPO has something to refine.

Every answer is a rollout with advantage 1, and the loss is the plain policy gradient without a KL,
which for a given answer is its negative log-likelihood, as a mean over the tokens of the batch.
Evaluation, logs, checkpoints, resume and several processes are those of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import KLConfig, LossConfig
from grpo_core.plugins.services import fingerprint
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message, Rollout, Task, TaskKey
from grpo_core.train.actor import Actor
from grpo_core.train.compute.batch import Row
from grpo_core.train.models.adapter import adapted_layers
from grpo_core.train.policy.memory import Workload
from grpo_core.train.rollout.clock import Clock
from grpo_core.train.rollout.examples import Example, read_examples
from grpo_core.train.rollout.examples import fingerprint as file_fingerprint
from grpo_core.train.rollout.stream import TaskStream
from grpo_core.train.rollout.tasks import epoch_order, refuse_missing_tasks, total_steps
from grpo_core.train.run.heldout import decoded_together
from grpo_core.train.run.method import Batch
from grpo_core.train.run.metrics import peak_memory_mb
from grpo_core.train.update.updater import Updater
from grpo_core.verify.sources import Sources

EPOCHS = 3
"""Passes over a file of examples if neither steps nor epochs are set."""


class Sft:
    """Supervised fine-tuning; implements `run.method.Method`.

    Args:
        actor: the policy, and the environments whose reference answers are learned or that it is
            evaluated on.
        updater: takes the optimizer steps, with the settings of `update_config`.
        total: number of steps of the run.
        examples: those of the file; empty: the environments' reference answers are learned.
        warn: receives a warning about examples that are too long.
    """

    name = "SFT"

    def __init__(
        self,
        actor: Actor,
        updater: Updater,
        *,
        total: int,
        examples: Sequence[Example],
        warn: Callable[[str], None],
    ) -> None:
        self.actor = actor
        self.updater = updater
        self.total = total
        self._examples = examples
        self._warn = warn
        self._has_warned = False
        self._first_rows: list[Row] = []
        self._stream = TaskStream(actor.config, actor.sources)

    @classmethod
    def build(
        cls,
        config: RunConfig,
        sources: Sources,
        *,
        make_actor: Callable[[bool], Actor],
        warn: Callable[[str], None],
    ) -> Sft:
        """Check what can be checked without the model, then load it and return the method.

        Args:
            make_actor: loads the model; the argument says whether the reference is needed.
        """
        examples = read_examples(Path(config.sft.data)) if config.sft.data is not None else []
        total = _total_steps(config, sources, len(examples))
        actor = make_actor(False)
        updater = Updater(actor.policy, update_config(config), steps=total, ranks=actor.ranks)
        return cls(actor, updater, total=total, examples=examples, warn=warn)

    async def collect(self, step: int) -> Batch:
        """Take the next examples."""
        clock = Clock()
        examples = await self._batch(self._stream.position, step)
        self._stream.position += len(examples)
        rollouts = [self._rollout(example) for example in examples]
        fitting = [rollout for rollout in rollouts if rollout is not None]
        if len(fitting) < len(rollouts) and not self._has_warned:
            self._has_warned = True
            self._warn(
                f"step {step}: {len(rollouts) - len(fitting)} of {len(rollouts)} examples have "
                f"more than {self._longest} tokens and are left out (reported once); raise "
                "sft.max_length, or take a model with a larger context"
            )
        token_count = sum(len(rollout.token_ids) for rollout in fitting)
        rows = [Row(rollout, 1.0, 1.0 / token_count) for rollout in fitting]
        metrics = {
            "examples": float(len(fitting)),
            "examples/too_long": float(len(rollouts) - len(fitting)),
            "tokens/trained": float(token_count),
        }
        clock.lap("examples")
        return Batch(step, [rows] if rows else [], clock, metrics=metrics)

    async def update(self, batch: Batch) -> dict[str, float]:
        """Take an optimizer step towards the answers, in the policy's thread."""

        def compute() -> dict[str, float]:
            with self._dropout():
                return self.updater.update(batch.rows)

        update_metrics = await self.actor.policy.thread.run(compute)
        batch.clock.lap("update")
        return {
            **{name: update_metrics[name] for name in ("loss", "entropy", "grad_norm", "lr")},
            **batch.metrics,
            "steps/skipped_nonfinite": self.updater.skipped,
            **batch.clock.metrics(),
            "memory/peak_mb": peak_memory_mb(self.actor.policy.device),
        }

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each task source and of the file of examples."""
        fingerprints = {source.name: fingerprint(source.env) for source in self.actor.sources}
        if (data := self.actor.config.sft.data) is not None:
            fingerprints["sft.data"] = file_fingerprint(Path(data))
        return fingerprints

    def first_keys(self) -> list[TaskKey]:
        """Return the keys of the first tasks (see `Method`)."""
        return self._stream.first_keys(self.actor.sources)

    async def prepare(self) -> None:
        """Read the first batch, so that problems show before anything is written."""
        rollouts = map(self._rollout, await self._batch(0, 1))
        self._first_rows = [Row(rollout, 1.0, 1.0) for rollout in rollouts if rollout is not None]

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload:
        """Estimate the largest batches from the first examples and the budgets."""
        rollouts = [row.rollout for row in self._first_rows]
        budgets = self.actor.budgets.values()
        longest_prompt = max(map(len, [*(r.prompt_ids for r in rollouts), *prompts]), default=0)
        longest_answer = max(
            [*(len(r.token_ids) for r in rollouts), *(budget.longest for budget in budgets)],
            default=0,
        )
        return Workload(
            self._first_rows,
            decoded_together(self.actor),
            prompt=longest_prompt,
            new=longest_answer,
        )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as a dict of JSON values."""
        return self._stream.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._stream.restore(state)

    @property
    def _longest(self) -> int | None:
        """Return the most tokens of an example; None if there is no limit."""
        limits = [self.actor.config.sft.max_length, self.actor.policy.context]
        return min((limit for limit in limits if limit is not None), default=None)

    def _rollout(self, example: Example) -> Rollout | None:
        """Return the example as a rollout; None if it is too long."""
        policy = self.actor.policy
        prompt_ids = policy.encode(example.prompt)
        answer_ids = policy.encode_answer(example.prompt, example.answer)
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

    async def _batch(self, start: int, step: int) -> list[Example]:
        """Return the examples number `start`, `start` + 1, ... of the run."""
        count = self.actor.config.sft.batch_size
        if self._examples:
            return [self._nth_example(number) for number in range(start, start + count)]
        sources = self.actor.sources
        tasks = await self._stream.at(sources, start, count, step=step)
        answers = await sources.references(tasks)
        return [
            Example(task.prompt, answer)
            for task, answer in zip(tasks, _require_answers(answers, tasks), strict=True)
        ]

    def _nth_example(self, number: int) -> Example:
        """Return an example of the file; each epoch has all of them in a new order."""
        epoch, place = divmod(number, len(self._examples))
        return self._examples[
            epoch_order("sft.data", self.actor.config.seed, epoch, len(self._examples))[place]
        ]

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """Apply the adapter's dropout in the block; that of the base model stays off."""
        layers = adapted_layers(self.actor.policy.model) if self.actor.config.lora.dropout else []
        for layer in layers:
            layer.lora_dropout.train()
        try:
            yield
        finally:
            for layer in layers:
                layer.lora_dropout.eval()


def update_config(config: RunConfig) -> RunConfig:
    """Return the settings of the update: the same optimizer with the loss of this method."""
    return config.model_copy(
        update={
            "loss": LossConfig(name="reinforce", aggregation="token_mean"),
            "kl": KLConfig(beta=0.0),
            "sampling": config.sampling.model_copy(update={"temperature": 1.0}),
            "trainer": config.trainer.model_copy(update={"mu": 1, "minibatches": 1}),
        }
    )


def _total_steps(config: RunConfig, sources: Sources, examples: int) -> int:
    """Return the number of steps; `examples` is the number in the file, 0 without a file."""
    if not examples:
        return total_steps(config, sources, batch=config.sft.batch_size)
    refuse_missing_tasks(config, sources)
    if config.steps is not None:
        return config.steps
    return math.ceil((config.epochs or EPOCHS) * examples / config.sft.batch_size)


def _require_answers(answers: Sequence[str | None], tasks: Sequence[Task[Any]]) -> list[str]:
    """Return the answers; raise ConfigError if a task has none."""
    known_answers = []
    for answer, task in zip(answers, tasks, strict=True):
        if answer is None:
            raise ConfigError(
                f"environment {task.key.env!r} has no reference answer for task "
                f"{task.key.index}, so there is nothing to learn from; give examples in a file: "
                "--data FILE.jsonl"
            )
        known_answers.append(answer)
    return known_answers
