"""Supervised fine-tuning on given answers, so that GRPO has something to refine.

Every answer is a rollout with advantage 1, and the loss is the plain policy gradient without a KL,
which for a given answer is its negative log-likelihood, as a mean over the tokens of the batch.
Evaluation, logs, checkpoints, resume and several processes are those of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import KLConfig, LossConfig
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.models.adapter import adapted_layers
from grpo_core.engine.policy.memory_estimate import Workload
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.events import BatchCollected
from grpo_core.protocol.types import Message, Script, Segment, Task
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.completions import prompt_tokens
from grpo_core.train.rollout.examples import Example, read_examples
from grpo_core.train.rollout.tasks import TaskStream, epoch_order, total_steps
from grpo_core.train.run.measure import decoded_together
from grpo_core.train.run.method import Clock, Rows
from grpo_core.train.run.metrics import peak_memory_mb
from grpo_core.train.update.updater import Updater
from grpo_core.verify.episodes.playing import play
from grpo_core.verify.sources import Sources
from grpo_core.words import joined


class Sft:
    """Supervised fine-tuning; implements `run.method.Method`.

    What can be checked without the model is checked before it is loaded. Without a file of examples
    the environments' reference answers are learned; of one with several turns, each turn after what
    was said before it.

    Args:
        config: the configuration of the run.
        sources: its environments.
        make_actor: loads the model.
        warn: receives a warning about examples that are too long.
    """

    name = "SFT"
    leaves_out_unasked = False
    """Examples have a limit of their own: an answer is known, and need not have all the tokens that
    a completion may have."""

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        *,
        make_actor: Callable[..., Actor],
        warn: Callable[[str], None],
    ) -> None:
        self._examples = [] if config.sft.data is None else read_examples(Path(config.sft.data))
        self.total = total_steps(
            config, sources, batch=config.sft.batch_size, examples=len(self._examples)
        )
        self.actor = make_actor()
        self.updater = Updater(
            self.actor.policy,
            update_config(self.actor.config),
            steps=self.total,
            ranks=self.actor.ranks,
        )
        self._warn = warn
        self._has_warned = False
        self._refusal = ""
        """Why the first example that cannot be encoded cannot; "" if there was none."""
        self._first_rows: list[Row] = []
        self.stream = TaskStream(config, sources)

    def collecting(self) -> AbstractAsyncContextManager[None]:
        """Return a context that does nothing: examples need no work ahead of their step."""
        return nullcontext()

    async def collect(self, step: int, clock: Clock) -> tuple[BatchCollected, Rows]:
        """Take the next examples."""
        examples = await self._batch(self.stream.position, step)
        self.stream.position += self.actor.config.sft.batch_size
        segments = [self._segment(example) for example in examples]
        fitting = [segment for segment in segments if segment is not None]
        if len(fitting) < len(segments) and not self._has_warned:
            self._has_warned = True
            reason = self._refusal or (
                f"they have more than {self._longest} tokens; raise sft.max_length, or take a "
                "model with a larger context"
            )
            self._warn(
                f"step {step}: {len(segments) - len(fitting)} of {len(segments)} examples are left "
                f"out (reported once): {reason}"
            )
        token_count = sum(len(segment.token_ids) for segment in fitting)
        rows = [Row(segment, 1.0, 1.0 / token_count) for segment in fitting]
        metrics = {
            "examples": float(len(fitting)),
            "examples/too_long": float(len(segments) - len(fitting)),
            "tokens/trained": float(token_count),
        }
        clock.lap("examples")
        return BatchCollected(step, metrics=metrics), [rows] if rows else []

    async def update(self, batch: BatchCollected, rows: Rows, clock: Clock) -> dict[str, float]:
        """Take an optimizer step towards the answers, in the policy's thread."""

        def compute() -> dict[str, float]:
            with self._dropout():
                return self.updater.update(rows)

        async with self.actor.changing_weights(batch.step):
            update_metrics = await self.actor.policy.thread.run(compute)
        clock.lap("update")
        return {
            **{name: update_metrics[name] for name in ("loss", "entropy", "grad_norm", "lr")},
            **batch.metrics,
            "steps/skipped_nonfinite": self.updater.skipped,
            **clock.metrics(),
            "memory/peak_mb": peak_memory_mb(self.actor.policy.device),
        }

    async def prepare(self) -> None:
        """Read the first batch, so that problems show before anything is written."""
        segments = [self._segment(example) for example in await self._batch(0, 1)]
        if self._refusal and not any(segments):
            raise ConfigError(f"no example of the first step can be encoded: {self._refusal}")
        self._first_rows = [Row(segment, 1.0, 1.0) for segment in segments if segment is not None]

    async def first_tasks(self) -> list[Task[Any]]:
        """Return the tasks of the first step, if the examples are references of tasks."""
        count = self.actor.config.prompts_per_step
        return await self.stream.at(self.actor.sources, 0, count, step=0)

    def example_texts(self) -> list[str] | None:
        """Return the prompts of the file that is learned from, as texts; None without a file."""
        return [joined(example.prompt) for example in self._examples] or None

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload:
        """Estimate the largest batches from the first examples and the budgets."""
        segments = [row.segment for row in self._first_rows]
        longest_prompt = max(map(len, [*(s.prompt_ids for s in segments), *prompts]), default=0)
        longest_answer = max(
            [
                *(len(segment.token_ids) for segment in segments),
                *(budget.longest for budget in self.actor.budgets.values()),
            ],
            default=0,
        )
        return Workload(
            self._first_rows,
            decoded_together(self.actor),
            prompt=longest_prompt,
            new=longest_answer,
        )

    @property
    def _longest(self) -> int | None:
        """Return the most tokens of an example; None if there is no limit."""
        limits = (self.actor.config.sft.max_length, self.actor.policy.context)
        return min((limit for limit in limits if limit is not None), default=None)

    def _segment(self, example: Example) -> Segment | None:
        """Return the tokens of an example; None if it is too long or cannot be encoded."""
        policy = self.actor.policy
        try:
            prompt_ids = (
                policy.encode(example.prompt)
                if example.request is None
                else prompt_tokens(policy, example.request)
            )
            answer_ids = policy.encode_answer(
                example.prompt, example.answer, may_think=bool(self._examples)
            )
        except ConfigError as error:
            self._refusal = self._refusal or str(error)
            return None
        if self._longest is not None and len(prompt_ids) + len(answer_ids) > self._longest:
            return None
        length = len(answer_ids)
        return Segment(prompt_ids, answer_ids, (0.0,) * length, (1,) * length)

    async def _batch(self, start: int, step: int) -> list[Example]:
        """Return the examples number `start`, `start` + 1, ... of the run."""
        count = self.actor.config.sft.batch_size
        if self._examples:
            return [self._nth_example(number) for number in range(start, start + count)]
        sources = self.actor.sources
        tasks = await self.stream.at(sources, start, count, step=step)
        answers = await sources.references(tasks)
        turns = await asyncio.gather(*map(self._turns, tasks, answers))
        return [example for examples in turns for example in examples]

    async def _turns(self, task: Task[Any], answer: Script | None) -> list[Example]:
        """Return an example for each turn of a reference answer, after what was said before it.

        Raises:
            GrpoError: there is none, or the environment does not answer it.
        """
        if answer is None:
            raise ConfigError(
                f"environment {task.key.env!r} has no reference answer for task "
                f"{task.key.index}, so there is nothing to learn from; give examples in a "
                "file: --data FILE.jsonl"
            )
        source = self.actor.sources[task.key.env]
        has_agents = source.verifier.has_agents
        if isinstance(answer, str) and not source.verifier.has_episodes and not has_agents:
            return [Example(task.prompt, answer)]
        played = await play(self.actor.sources, task, answer, max_turns=source.env.max_turns)
        if played.rollout.error:
            raise GrpoError(
                f"the reference answer of environment {task.key.env!r} for task {task.key.index} "
                f"cannot be played: {played.rollout.error}"
            )
        if has_agents:  # each of whose requests has a prompt of its own
            return [
                Example(cast(Any, asked.request.prompt), asked.text, asked.request)
                for asked in played.asked
                if asked.text is not None
            ]
        messages = played.rollout.messages
        return [
            Example(_continued(task.prompt, messages[:place]), message.raw)
            for place, message in enumerate(messages)
            if message.role == "assistant"
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


def _continued(
    prompt: str | tuple[Message, ...], messages: Sequence[Message]
) -> str | tuple[Message, ...]:
    """Return a prompt with the messages after it, which follow a raw text as bare contents."""
    if isinstance(prompt, str):
        return prompt + "".join(message.raw for message in messages)
    return (*prompt, *messages)


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
