"""What `grpo eval` and `grpo env probe` share: a trainer that only samples and judges."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_core.cli.output import console, live, prints_to_stderr

if TYPE_CHECKING:
    from grpo_core.config.config import RunConfig
    from grpo_core.train.trainer import Trainer
    from grpo_core.verify.sources import Sources

T = TypeVar("T")


def with_trainer(
    config: RunConfig,
    sources: Sources,
    work: Callable[[Trainer, Callable[[int, int], None]], Coroutine[Any, Any, T]],
    *,
    title: str,
) -> tuple[Trainer, T]:
    """What `work` makes of a trainer that writes nothing. Its second argument moves a bar on stderr; Ctrl-C asks the trainer to stop.

    sources: those of `config`, whose names and settings were checked before torch is imported here, which takes seconds.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from grpo_core.calls.blocking import wait_for
    from grpo_core.cli.training import import_trainer, stoppable
    from grpo_core.runs.folder import RunFolder

    trainer = import_trainer("grpo", command="measuring a policy")(
        config, sources=sources, folder=RunFolder(Path())
    )
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console(stderr=True), transient=True)
    with (
        prints_to_stderr(),
        live(progress) as bar,
        stoppable(trainer, "finishing what is under way"),
    ):
        shown = bar.add_task(title)
        done = work(trainer, lambda done, total: bar.update(shown, completed=done, total=total))
        return trainer, wait_for(done, on_interrupt=trainer.request_stop)
