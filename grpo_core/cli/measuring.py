"""Share code of `grpo eval` and `grpo env probe`: a policy that only samples and is scored."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from grpo_core.calls.deadline import wait_for
from grpo_core.calls.stoppable import stoppable
from grpo_core.cli.imports import needs_training
from grpo_core.cli.output import INTERRUPTED, prints_to_stderr, remark
from grpo_core.cli.progress import progress_bar
from grpo_core.config.config import RunConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import OutputError
from grpo_core.runs.observer import Observer
from grpo_core.verify.sources import Sources

if TYPE_CHECKING:
    from grpo_core.train.actor import Actor

T = TypeVar("T")
ShowProgress: TypeAlias = Callable[[int, int], None]
"""Shows how many are done, of how many."""


@dataclass(frozen=True, slots=True)
class ActorResult(Generic[T]):
    """Hold what a policy did: the result, the actor with the policy, and how long it took."""

    actor: Actor
    result: T
    seconds: float

    def exit_if_stopped(self) -> None:
        """Say that the result is incomplete, and exit, if the user has stopped the actor.

        Raises:
            typer.Exit: with the status of an interruption.
        """
        if self.actor.stop.is_made:
            remark(
                "stopped before all tasks were done; these are the statistics of those that were"
            )
            raise typer.Exit(INTERRUPTED)


class Remarks(Observer):
    """Print on stderr what takes long before a result."""

    def say(self, text: str) -> None:
        with contextlib.suppress(OutputError):  # the result may still be written
            remark(text)


def run_with_actor(
    config: RunConfig,
    sources: Sources,
    work: Callable[[Actor, ShowProgress], Coroutine[Any, Any, T]],
    *,
    title: str,
    observer: Observer | None = None,
) -> ActorResult[T]:
    """Run `work` with the policy that the config names, and show a progress bar on stderr.

    Ctrl-C asks the actor to stop.

    Args:
        config: the settings.
        sources: the sources of `config`. The caller makes them, which checks names and settings
            before torch is imported here; that import takes seconds.
        work: gets the actor, and a function that shows the progress.
        title: the label of the progress bar.
        observer: receives warnings about the model, and what takes long; None prints only this.

    Raises:
        MissingExtraError: a package of the extra "train" is not installed.
    """
    started = time.monotonic()
    with needs_training("measuring a policy"):
        from grpo_core.engine.policy.choose import choose_sampler
        from grpo_core.train.actor import build_actor
        from grpo_core.train.build import find_ranks
    actor = build_actor(
        config,
        sources,
        ranks=find_ranks(config),
        observer=observer or Remarks(),
        make_sampler=choose_sampler(config, PluginHost()),
    )

    async def sample(update: Callable[..., None]) -> T:
        async with actor.sampling():
            return await work(actor, lambda done, total: update(completed=done, total=total))

    with (
        prints_to_stderr(),
        progress_bar(title, MofNCompleteColumn(), TimeRemainingColumn()) as update,
        stoppable(actor.stop, "finishing the rollouts that were started"),
    ):
        result = wait_for(sample(update))
    return ActorResult(actor, result, time.monotonic() - started)
