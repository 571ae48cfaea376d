"""Show the progress of a run on a console: a live bar on a terminal, else plain lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from grpo_core.calls.console import PrintableConsole
from grpo_core.calls.printable import MESSAGE_LIMIT, printable
from grpo_core.calls.streams import printable_streams
from grpo_core.display.facts import Facts, describe_evaluation, describe_phases
from grpo_core.protocol.errors import OutputError
from grpo_core.runs.observer import Observer

if TYPE_CHECKING:
    from grpo_core.figures.gains import Gain


@contextlib.contextmanager
def live(progress: Progress) -> Iterator[None]:
    """Show a progress bar while the block runs; text printed meanwhile appears above it."""
    # Entered after the bar, because the bar redirects the streams to itself.
    with progress, printable_streams():
        yield


class _TwoLines(Progress):
    """A bar, and below it the facts of the last step, which would leave no room for a bar."""

    facts = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.facts:
            yield Text(self.facts, no_wrap=True, overflow="ellipsis")


class RunProgress(Observer):
    """Show the events of a run on the console.

    It must be used as a context manager, so that the bar is always removed.
    """

    def __init__(self, console: PrintableConsole) -> None:
        self.console = console
        self._live = console.is_terminal
        self._bar = _TwoLines(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
        )
        self._facts = Facts()
        self._exit_stack = contextlib.ExitStack()
        self._task = self._bar.add_task("starting", total=None)
        self.lost = ""
        """Why the output can no longer be written, or ""."""
        self.closed = False
        """Whether the reader has closed the output, as after `| head`."""
        self._on_lost: Callable[[str], None] = lambda text: None

    def __enter__(self) -> RunProgress:
        if self._live:
            with self._noting_lost_output():
                self._exit_stack.enter_context(live(self._bar))
        return self

    def __exit__(self, *_: object) -> None:
        with self._noting_lost_output():
            self._exit_stack.close()

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Set the function that is called with the reason when the output can no longer be written.

        It is called at once if that is already the case.
        """
        self._on_lost = callback
        if self.lost:
            callback(self.lost)

    def say(self, text: str) -> None:
        self._print(printable(text, limit=MESSAGE_LIMIT))

    def warn(self, text: str) -> None:
        self._print(printable(f"WARNING: {text}", limit=MESSAGE_LIMIT), style="bold yellow")

    def alarm(self, title: str, text: str) -> None:
        self._print(printable(f"ALARM: {title}: {text}", limit=MESSAGE_LIMIT), style="bold red")

    def _print(self, content: RenderableType, **options: Any) -> None:
        if not self.lost:
            with self._noting_lost_output():
                # A terminal would break a line within a word; a file keeps it whole.
                is_whole = isinstance(content, str) and not self._live
                self.console.print(content, soft_wrap=is_whole, **options)

    @contextlib.contextmanager
    def _noting_lost_output(self) -> Iterator[None]:
        """Record that the block could not write the output, and raise nothing."""
        try:
            yield
        except (OutputError, OSError) as error:
            self.lost = str(error)
            self.closed = getattr(error, "closed", isinstance(error, BrokenPipeError))
            self._on_lost(self.lost)

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        facts = self._facts.line(step, total, metrics)
        if self._live:
            self._bar.facts = facts
            self._bar.update(self._task, description="training", completed=step, total=total)
        else:
            self.say(f"step {step}/{total}  {facts}  ({describe_phases(metrics)})")

    def evaluating(self, done: int, total: int) -> None:
        if self._live:
            self._bar.facts = f"evaluating {done}/{total}"
            self._bar.update(self._task)
        elif done == 0:
            self.say(f"evaluating {total} held-out tasks ...")

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self.say(describe_evaluation(step, metrics))

    def finished(self, gains: Mapping[str, Gain]) -> None:
        if gains:
            self._print(gains_table(gains))


def gains_table(gains: Mapping[str, Gain]) -> Table:
    """Return a table of the gains on held-out tasks, one row per metric."""
    tasks = next(iter(gains.values())).tasks if gains else 0
    table = Table(
        "held-out", "before", "after", "gain", "95 % interval", title=f"{tasks} tasks, paired"
    )
    for name, gain in gains.items():
        table.add_row(
            name.replace("_", " "),
            f"{gain.before:.3f}",
            f"{gain.after:.3f}",
            f"{gain.mean:+.3f}",
            f"{gain.low:+.3f} .. {gain.high:+.3f}",
        )
    return table
