"""Deal the tasks of a run, one batch after another, at the present levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.protocol.types import Group, Task, TaskKey
from grpo_core.train.rollout.curriculum import Curriculum
from grpo_core.train.rollout.tasks import draw_number, train_keys
from grpo_core.verify.sources import Sources


class TaskStream:
    """Deal the training tasks of a run.

    Args:
        config: the configuration of the run.
        sources: its environments.
    """

    def __init__(self, config: RunConfig, sources: Sources) -> None:
        self._config = config
        self._curriculum = Curriculum(
            config.curriculum, {source.name: source.level for source in sources.trained}
        )
        self.position = 0
        """Number of tasks, or examples, dealt so far."""

    @property
    def levels(self) -> Mapping[str, float]:
        """Return the present level of each environment's tasks."""
        return self._curriculum.levels

    def first_keys(self, sources: Sources) -> list[TaskKey]:
        """Return the keys of the first step's tasks, and of one task of each environment."""
        config = self._config
        keys = train_keys(config, sources, 0, config.prompts_per_step, self.levels)
        samples = [
            TaskKey(
                source.name,
                "train" if source.share else "eval",
                0,
                config.seed,
                source.level,
            )
            for source in sources
        ]
        return list(dict.fromkeys([*keys, *samples]))

    async def deal(self, sources: Sources, count: int, *, step: int) -> list[Task[Any]]:
        """Return the next `count` tasks."""
        tasks = await self.at(sources, self.position, count, step=step)
        self.position += count
        return tasks

    async def at(self, sources: Sources, start: int, count: int, *, step: int) -> list[Task[Any]]:
        """Return the tasks number `start`, `start` + 1, ... of the run."""
        keys = train_keys(self._config, sources, start, count, self.levels)
        return await sources.tasks(keys, draw_number(self._config.seed, step))

    def adapt(self, groups: Sequence[Group[Any]]) -> dict[str, float]:
        """Move the levels by the verdicts of a step; return metrics (see `Curriculum.add`)."""
        return self._curriculum.add(groups)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as a dict of JSON values."""
        return {"curriculum": self._curriculum.state(), "position": self.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._curriculum.restore(state["curriculum"])
        self.position = state["position"]
