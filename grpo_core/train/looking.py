"""Look at a run from Python: sample and verify without training, tables, and pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.calls.deadline import wait_for
from grpo_core.config.config import RunConfig
from grpo_core.display.notebook import show_pictures
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Group, TaskKey
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.frames import flat, frame
from grpo_core.runs.lines import Kind, kind_of
from grpo_core.train.rollout.tasks import counted_sources
from grpo_core.verify.held_out import eval_keys
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.train.actor import Actor

PICTURES = "grpo.pictures"
"""The group of entry points of functions that draw a run: of a run folder, to the files."""


class Looks(ABC):
    """Offer the methods of a trainer that look at its run and leave it unchanged."""

    actor: Actor
    config: RunConfig
    folder: RunFolder
    _open_sources: Callable[..., Sources]

    @property
    @abstractmethod
    def done(self) -> int:
        """Return the last finished step."""

    def sample(
        self,
        tasks: int | Sequence[TaskKey],
        *,
        attempts: int | None = None,
        temperature: float | None = None,
    ) -> list[Group[Any]]:
        """Sample rollouts of the present policy, not judged yet (`verify` does that).

        Nothing is trained or written.

        Args:
            tasks: task keys, or the number of held-out tasks, of which those that cannot be asked
                are left out.
            attempts: rollouts per task; group_size if left out.
            temperature: that of the run if left out.
        """
        actor = self.actor
        if not len(actor.sources):
            raise ConfigError(
                "this run has no environment to take tasks from; give one (eval.also takes it "
                "for evaluations alone)"
            )
        keys = (
            eval_keys(counted_sources(actor.sources)[0], tasks)
            if isinstance(tasks, int)
            else list(tasks)
        )

        async def sampled() -> list[Group[Any]]:
            async with self._open_sources(closes_given=False) as sources, actor.sampling():
                asked = keys
                if isinstance(tasks, int):
                    asked, _ = await actor.askable.split(sources, keys)
                return await actor.sample(
                    await sources.tasks(asked),
                    attempts=attempts or self.config.group_size,
                    step=self.done,
                    params=self.config.sampling.params(temperature),
                    sources=sources,
                )

        return wait_for(sampled())

    def verify(self, groups: Sequence[Group[Any]]) -> list[Group[Any]]:
        """Return the same groups with a verdict for each rollout."""

        async def verified() -> list[Group[Any]]:
            async with self._open_sources(closes_given=False) as sources:
                verdicts_PG = await sources.verify(
                    [group.task for group in groups], [group.rollouts for group in groups]
                )
            return [
                replace(group, verdicts=verdicts)
                for group, verdicts in zip(groups, verdicts_PG, strict=True)
            ]

        return wait_for(verified())

    def metrics(self, *, evaluations: bool = False) -> Any:
        """Return the metrics of the run as a DataFrame, with a row for each step.

        Args:
            evaluations: return those of the evaluations instead.

        Returns:
            A DataFrame of pandas, or of polars where only that is installed.

        Raises:
            ConfigError: neither is installed, or metrics.jsonl is damaged.
        """
        wanted = Kind.EVALUATION if evaluations else Kind.STEP
        lines = self.folder.metric_lines() if self.folder.path.exists() else ()
        return frame([line for line in lines if kind_of(line) is wanted])

    def rollouts(self, steps: Sequence[int] | None = None) -> Any:
        """Return the attempts that the run has logged as a DataFrame, with a row for each.

        Args:
            steps: those of these steps only; None for all.

        Returns:
            A DataFrame of pandas, or of polars where only that is installed. What a line of
            rollouts.jsonl holds by name is in a column of its own, such as "parts.format".

        Raises:
            ConfigError: neither is installed, or rollouts.jsonl is damaged.
        """
        lines = self.folder.rollout_lines(steps) if self.folder.path.exists() else ()
        return frame([flat(line) for line in lines])

    def plot(self) -> list[Path]:
        """Draw the run's metrics into its folder as PNG files, and show them in a notebook.

        Returns:
            The files.

        Raises:
            ConfigError: no step was logged yet, or nothing that is installed draws.
            MissingExtraError: matplotlib is not installed.
        """
        painters = sorted(entry_points(group=PICTURES), key=lambda entry: entry.name)
        if not painters:
            raise ConfigError("no installed package draws pictures of runs; install grpo-core anew")
        paths = painters[0].load()(self.folder.path) if self.folder.path.exists() else []
        if not paths:
            raise ConfigError(f"{self.folder.shown} has no step yet, so there is nothing to draw")
        show_pictures(paths)
        return list(paths)
