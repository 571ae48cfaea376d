"""Describe the trainer as the session and its helpers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import SamplingConfig
from grpo_core.plugins.host import Observers
from grpo_core.protocol.types import Group, Task
from grpo_core.runs.folder import RunFolder
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.memory import Footprint, Workload
from grpo_core.train.ranks import Ranks
from grpo_core.train.rollout.curriculum import Curriculum
from grpo_core.train.rollout.dialogue import Budget
from grpo_core.train.run.ending import RunEnd
from grpo_core.train.run.observe import Observer
from grpo_core.train.update.updater import Updater
from grpo_core.verify.error_rate import ErrorRate
from grpo_core.verify.sources import Sources


class Judged(Protocol):
    """Types `Trainer.judged`, with the arguments that evaluations use."""

    async def __call__(
        self, tasks_P: Sequence[Task[Any]], *, attempts: int, step: int, sampling: SamplingConfig
    ) -> tuple[list[Group[Any]], float]: ...


class Steps(Protocol):
    """Declares the parts of the `Trainer` that the session uses; methods are documented there."""

    config: RunConfig
    sources: Sources
    total: int
    """Number of steps of the run."""
    done: int
    """The last finished step."""
    stop_requested: bool
    stop_reason: str
    """Why a stop was requested; "" if none was."""
    end: RunEnd | None
    """How the run ended; None before its end."""
    ranks: Ranks
    load_seconds: float
    """Seconds that loading the model took; 0 once they are logged."""
    folder: RunFolder
    policy: Policy
    updater: Updater
    budgets: dict[str, Budget]
    """Limits of a rollout, by environment."""
    curriculum: Curriculum
    position: int
    """Number of prompts dealt so far."""
    observer: Observer
    plugins: Observers
    """Plugins and trackers that observe the run."""
    error_rate: ErrorRate
    footprint: Footprint

    @property
    def method(self) -> str: ...

    @property
    def judged(self) -> Judged: ...

    def recorded(self) -> dict[str, Any]: ...

    def fingerprints(self) -> dict[str, str]: ...

    async def ready(self) -> None: ...

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload: ...

    async def step(self, step: int) -> dict[str, float]: ...

    def stops(self) -> bool: ...


def announce(trainer: Steps, text: str) -> None:
    """Show `text` to the observer and write it to log.txt."""
    trainer.observer.say(text)
    trainer.folder.log(text)
