"""Share code of `grpo eval` and `grpo env probe`: a trainer that only samples and scores."""

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


def run_with_trainer(
    config: RunConfig,
    sources: Sources,
    work: Callable[[Trainer, Callable[[int, int], None]], Coroutine[Any, Any, T]],
    *,
    title: str,
) -> tuple[Trainer, T]:
    """Run `work` with a trainer that writes nothing, and show a progress bar on stderr.

    Ctrl-C asks the trainer to stop.

    Args:
        config: the settings.
        sources: the sources of `config`. The caller makes them, which checks names and settings
            before torch is imported here; that import takes seconds.
        work: gets the trainer, and a function that sets the progress: (done, total).
        title: the label of the progress bar.

    Returns:
        The trainer and the result of `work`.

    Raises:
        MissingExtraError: a package of the extra "train" is not installed.
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
        stoppable(trainer, "finishing the rollouts that were started"),
    ):
        bar_task = bar.add_task(title)
        result = work(
            trainer, lambda done, total: bar.update(bar_task, completed=done, total=total)
        )
        return trainer, wait_for(result, on_interrupt=trainer.request_stop)
