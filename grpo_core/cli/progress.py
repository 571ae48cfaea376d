"""Show the progress of a command: a live bar on a terminal, or plain lines for `grpo run`."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table

from grpo_core.calls.console import PrintableConsole
from grpo_core.calls.printable import printable
from grpo_core.calls.streams import printable_streams
from grpo_core.cli.output import MESSAGE_LIMIT
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


PLAIN_SECONDS = 15.0
"""How often a line says how far a command is where no bar can be shown."""


@contextlib.contextmanager
def progress_bar(
    title: str, *columns: ProgressColumn, total: float | None = None, **fields: Any
) -> Iterator[Callable[..., None]]:
    """Show a bar with one task on stderr while the block runs, and remove it at the end.

    Where stderr is no terminal, print a line now and then instead.

    Args:
        title: the label of the bar.
        columns: what is shown to the right of the bar.
        total: the number of steps, if it is known.
        fields: what the columns show besides, at the beginning.

    Yields:
        A function that takes the options of `rich.progress.Progress.update`.
    """
    console = PrintableConsole(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        console=console,
        transient=True,
    )
    task = bar.add_task(title, total=total, **fields)
    shown = live(bar) if console.is_terminal else _lines(bar, title, console)
    with shown:
        yield partial(bar.update, task)


@contextlib.contextmanager
def _lines(bar: Progress, title: str, console: PrintableConsole) -> Iterator[None]:
    """Print how far the one task of `bar` is, every PLAIN_SECONDS while the block runs."""
    ended = threading.Event()

    def tell() -> None:
        started = time.monotonic()
        while not ended.wait(PLAIN_SECONDS):
            (task,) = bar.tasks
            of_all = "" if task.total is None else f" of {task.total:g}"
            what = "" if task.description == title else f", now {task.description}"
            line = (
                f"{title}: {task.completed:g}{of_all} in {time.monotonic() - started:.0f} s{what}"
            )
            with contextlib.suppress(OutputError, OSError):  # nobody reads it any longer
                console.print(printable(line, limit=MESSAGE_LIMIT), soft_wrap=True, markup=False)

    teller = threading.Thread(target=tell, name="grpo progress", daemon=True)
    teller.start()
    try:
        with printable_streams():
            yield
    finally:
        ended.set()
        teller.join()


PHASES = {
    "rollout": "rollout",
    "verify": "verify",
    "update": "update",
    "trainer_wait": "trainer waited",
    "sampler_wait": "sampler waited",
}
"""What a step's line calls the phases in the metrics; the last two are those of a pipeline."""


class RunProgress(Observer):
    """Show the events of a run on the console.

    It must be used as a context manager, so that the bar is always removed.
    """

    def __init__(self, console: PrintableConsole) -> None:
        self.console = console
        self._live = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=console,
        )
        self._exit_stack = contextlib.ExitStack()
        self._task = self._bar.add_task("starting", total=None, facts="")
        self._start_time: float | None = None
        """The time at which the first step seen by this process began, in monotonic seconds."""
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
                self.console.print(content, soft_wrap=isinstance(content, str), **options)

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
        facts = self._facts(step, total, metrics)
        if self._live:
            self._bar.update(
                self._task, description="training", completed=step, total=total, facts=facts
            )
        else:
            seconds = ", ".join(
                f"{name} {metrics[f'time/{phase}']:.1f} s"
                for phase, name in PHASES.items()
                if f"time/{phase}" in metrics
            )
            self.say(f"step {step}/{total}  {facts}  ({seconds})")

    def evaluating(self, done: int, total: int) -> None:
        if self._live:
            self._bar.update(self._task, facts=f"evaluating {done}/{total}")
        elif done == 0:
            self.say(f"evaluating {total} held-out tasks ...")

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self.say(
            f"held-out after step {step}: reward {metrics['eval/reward/mean']:.3f}, "
            f"pass rate {metrics['eval/pass_rate']:.1%} "
            f"({metrics['eval/tasks']:.0f} tasks, {metrics['eval/seconds']:.0f} s)"
            f"{_of_all(metrics)}"
        )

    def finished(self, gains: Mapping[str, Gain]) -> None:
        if gains:
            self._print(gains_table(gains))

    def _facts(self, step: int, total: int, metrics: Mapping[str, float]) -> str:
        """Return the main metrics of a step and an estimate of the remaining time, in one line.

        These are reward, pass rate, KL and generation speed, or for `grpo sft` loss and training
        speed. The estimate uses the mean duration of the steps that this process has seen.
        """
        now = time.monotonic()
        if self._start_time is None:
            self._start_time, self._start_step = now - metrics["time/step"], step - 1
        seconds_left = (now - self._start_time) / (step - self._start_step) * (total - step)
        timing = f"{metrics['time/step']:.1f} s/step  {_format_duration(seconds_left)} left"
        if "reward/mean" not in metrics:
            speed = metrics["tokens/trained"] / max(metrics["time/update"], 1e-9)
            return f"loss {metrics['loss']:.4f}  {speed:.0f} tok/s  {timing}"
        speed = metrics["tokens/generated"] / max(metrics["time/rollout"], 1e-9)
        kl = metrics.get("kl", math.nan)  # NaN where no reference is computed
        shown = "" if math.isnan(kl) else f"  kl {kl:.4f}"
        shown += f"  {metrics['staleness/mean']:.1f} old" if "staleness/mean" in metrics else ""
        level = f"  level {metrics['curriculum/level']:g}" if "curriculum/level" in metrics else ""
        return (
            f"reward {metrics['reward/mean']:.3f}  pass {metrics['pass_rate']:.0%}{shown}{level}  "
            f"{speed:.0f} tok/s  {timing}"
        )


def _format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min"
        if minutes >= 10
        else f"{minutes}:{seconds:02d} min"
    )


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


def _of_all(metrics: Mapping[str, float]) -> str:
    """Return the pass rate with tasks that cannot be asked as not passed; "" if there are none."""
    if "eval/unasked" not in metrics:
        return ""
    return (
        f"; {metrics['eval/pass_rate/all']:.1%} with the {metrics['eval/unasked']:.0f} that cannot "
        "be asked"
    )
