"""Log the rollouts of a run, as far as `log.rollouts` asks for them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from grpo_core.protocol.types import Group
from grpo_core.runs.attempts import Fields
from grpo_core.runs.folder import RunFolder
from grpo_core.train.actor import Actor
from grpo_core.train.run.method import Batch
from grpo_core.train.update.token_values import TokenValuesKept


class RolloutLog:
    """Writes what is logged of groups to a run folder."""

    def __init__(self, actor: Actor, folder: RunFolder) -> None:
        self._actor, self._folder = actor, folder
        self._config = actor.config.log

    def start(self) -> None:
        """Write the text of each token id, if ids are logged."""
        if self._config.tokens:
            tokenizer = self._actor.policy.tokenizer
            ids = [[token_id] for token_id in range(len(tokenizer))]
            self._folder.write_vocabulary(
                tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)
            )

    def collected(self, batch: Batch) -> None:
        """Log the rollouts of a training step before anything is learned from them."""
        if batch.advantages is None:
            return
        for number in self._kept(batch):
            group = batch.groups[number]
            self._folder.rollouts(
                batch.step, group, batch.advantages[number], self._fields(group, number)
            )

    def updated(self, batch: Batch, values: TokenValuesKept | None) -> None:
        """Log what an update has seen of the tokens of the groups that are in the log."""
        if values is None or batch.advantages is None:
            return
        kept = set(self._kept(batch))
        for prompt, own_values in values.by_prompt():
            if (number := batch.chosen[prompt]) in kept:
                self._folder.updated(batch.step, number, own_values)

    def evaluated(self, step: int, groups: Iterable[Group[Any]]) -> None:
        """Log the rollouts of an evaluation."""
        for number, group in enumerate(groups):
            self._folder.rollouts(step, group, fields=self._fields(group, number))

    def _fields(self, group: Group[Any], number: int) -> Fields:
        texts = self._config.rollouts != "none"
        return Fields(
            number=number,
            tools=self._actor.budgets[group.task.key.env].tools,
            tokens=self._config.tokens and texts,
            texts=texts,
        )

    def _kept(self, batch: Batch) -> list[int]:
        """Return the numbers of the groups of a training step that are logged."""
        numbers = range(len(batch.groups))
        if self._config.rollouts == "all":
            return list(numbers)
        if self._config.rollouts == "none":
            return []
        # Drawn by seed and step alone, so that a resumed run keeps the same groups.
        rng = random.Random(f"logged groups {self._actor.config.seed} {batch.step}")
        return sorted(rng.sample(numbers, min(self._config.sample_groups, len(numbers))))
