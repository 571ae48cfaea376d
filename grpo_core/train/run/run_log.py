"""Write the logs of a run: rollouts as far as `log.rollouts` asks for them, metrics and alarms."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from grpo_core.protocol.events import (
    AlarmRaised,
    BatchCollected,
    EvaluationEnded,
    Event,
    RunStarted,
    StepEnded,
)
from grpo_core.protocol.types import Group
from grpo_core.runs.attempts import Fields
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import Kind
from grpo_core.train.actor import Actor
from grpo_core.train.run.measure import format_group
from grpo_core.train.update.token_values import TokenValuesKept


class RunLog:
    """Write what a run does to its folder, as the listener that hears of it first.

    Args:
        actor: makes the rollouts.
        folder: the run's folder.
        token_values: returns what the last update has seen of the tokens, if that is logged.
    """

    def __init__(
        self, actor: Actor, folder: RunFolder, token_values: Callable[[], TokenValuesKept | None]
    ) -> None:
        self._actor, self._folder, self._token_values = actor, folder, token_values
        self._config = actor.config.log
        self._batch = BatchCollected(0)

    def on(self, event: Event) -> None:
        """Write what an event says."""
        match event:
            case RunStarted():
                self._write_vocabulary()
            case BatchCollected():
                self._batch = event
                for number in self._kept(event):
                    group = event.groups[number]
                    self._folder.rollouts(event.step, group, self._fields(group, number))
                if event.groups and is_due(event.step, self._config.samples_every):
                    self._folder.log(format_group(event.step, event.groups[0]))
            case StepEnded():
                self._folder.metrics({"step": event.step, "kind": Kind.STEP, **event.metrics})
                self._updated(self._batch)
            case EvaluationEnded():
                for number, group in enumerate(event.groups):
                    self._folder.rollouts(event.step, group, self._fields(group, number))
                line = {"step": event.step, "kind": Kind.EVALUATION, **event.metrics}
                self._folder.metrics(line)
            case AlarmRaised():
                self._folder.alarm(event.to_json())

    def _write_vocabulary(self) -> None:
        """Write the text of each token id, if ids are logged."""
        if self._config.tokens:
            tokenizer = self._actor.policy.tokenizer
            ids = [[token_id] for token_id in range(len(tokenizer))]
            self._folder.write_vocabulary(
                tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)
            )

    def _updated(self, batch: BatchCollected) -> None:
        """Log what an update has seen of the tokens of the groups that are in the log."""
        values = self._token_values()
        if values is None:
            return
        kept = set(self._kept(batch))
        for prompt, own_values in values.by_prompt():
            if (number := batch.chosen[prompt]) in kept:
                self._folder.updated(batch.step, number, own_values)

    def _fields(self, group: Group[Any], number: int) -> Fields:
        texts = self._config.rollouts != "none"
        return Fields(
            number=number,
            tools=self._actor.budgets[group.task.key.env].tools,
            tokens=self._config.tokens and texts,
            texts=texts,
        )

    def _kept(self, batch: BatchCollected) -> list[int]:
        """Return the numbers of the groups of a training step that are logged."""
        numbers = range(len(batch.groups))
        if self._config.rollouts == "all":
            return list(numbers)
        if self._config.rollouts == "none":
            return []
        # Drawn by seed and step alone, so that a resumed run keeps the same groups.
        rng = random.Random(f"logged groups {self._actor.config.seed} {batch.step}")
        return sorted(rng.sample(numbers, min(self._config.sample_groups, len(numbers))))


def is_due(step: int, every: int) -> bool:
    """Return whether something that is done every so many steps is due after this one."""
    return every > 0 and step % every == 0
