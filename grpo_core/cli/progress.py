"""How `grpo run` shows itself: a live bar on a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from grpo_core.calls.console import PrintableConsole
from grpo_core.calls.printable import printable
from grpo_core.cli.output import MESSAGE_LIMIT, live
from grpo_core.protocol.errors import OutputError
from grpo_core.train.run.observe import Observer

if TYPE_CHECKING:
    from grpo_core.report.statistics import Gain


class RunProgress(Observer):
    """The Observer of the command line. Use it as a context manager, so that the bar is taken down whatever happens.

    Attributes:
        lost: why nothing can be shown any more, or "".
        closed: whether the reader of the output has gone, as after `| head`.
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
        self._shown = contextlib.ExitStack()
        self._task = self._bar.add_task("starting", total=None, facts="")
        self._first: float | None = None
        self.lost = ""
        self.closed = False
        self._tell_lost: Callable[[str], None] = lambda text: None

    def __enter__(self) -> RunProgress:
        if self._live:
            with self._showing():
                self._shown.enter_context(live(self._bar))
        return self

    def __exit__(self, *_: object) -> None:
        with self._showing():
            self._shown.close()

    def on_lost(self, tell: Callable[[str], None]) -> None:
        """Call `tell` when nothing can be shown any more, now if that is so already."""
        self._tell_lost = tell
        if self.lost:
            tell(self.lost)

    def say(self, text: str) -> None:
        self._print(printable(text, limit=MESSAGE_LIMIT))

    def warn(self, text: str) -> None:
        self._print(printable(f"WARNING: {text}", limit=MESSAGE_LIMIT), style="bold yellow")

    def _print(self, shown: RenderableType, **options: Any) -> None:
        if not self.lost:
            with self._showing():
                self.console.print(shown, soft_wrap=isinstance(shown, str), **options)

    @contextlib.contextmanager
    def _showing(self) -> Iterator[None]:
        """Note that the output cannot be written, and go on without it."""
        try:
            yield
        except (OutputError, OSError) as error:
            self.lost = str(error)
            self.closed = getattr(error, "closed", isinstance(error, BrokenPipeError))
            self._tell_lost(self.lost)

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        facts = self._facts(step, total, metrics)
        if self._live:
            self._bar.update(
                self._task, description="training", completed=step, total=total, facts=facts
            )
        else:
            shown = [
                phase for phase in ("rollout", "verify", "update") if f"time/{phase}" in metrics
            ]
            phases = ", ".join(f"{phase} {metrics[f'time/{phase}']:.1f} s" for phase in shown)
            self.say(f"step {step}/{total}  {facts}  ({phases})")

    def evaluating(self, done: int, total: int) -> None:
        if self._live:
            self._bar.update(self._task, facts=f"evaluating {done}/{total}")
        elif done == 0:
            self.say(f"evaluating {total} held-out tasks ...")

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self.say(
            f"held-out after step {step}: reward {metrics['eval/reward/mean']:.3f}, pass rate {metrics['eval/pass_rate']:.1%} "
            f"({metrics['eval/tasks']:.0f} tasks, {metrics['eval/seconds']:.0f} s)"
        )

    def finished(self, gains: Mapping[str, Gain]) -> None:
        if gains:
            self._print(gains_table(gains))

    def _facts(self, step: int, total: int, metrics: Mapping[str, float]) -> str:
        """Reward, pass rate, KL, generation speed (a warm start: its loss), and the time left, from the mean of the steps seen so far."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._first_step = now - metrics["time/step"], step - 1
        left = (now - self._first) / (step - self._first_step) * (total - step)
        if "reward/mean" not in metrics:
            speed = metrics["tokens/trained"] / max(metrics["time/update"], 1e-9)
            return f"loss {metrics['loss']:.4f}  {speed:.0f} tok/s  {metrics['time/step']:.1f} s/step  {_duration(left)} left"
        speed = metrics["tokens/generated"] / max(metrics["time/rollout"], 1e-9)
        kl = f"  kl {metrics['kl']:.4f}" if "kl" in metrics else ""
        level = f"  level {metrics['curriculum/level']:g}" if "curriculum/level" in metrics else ""
        return (
            f"reward {metrics['reward/mean']:.3f}  pass {metrics['pass_rate']:.0%}{kl}{level}  {speed:.0f} tok/s  "
            f"{metrics['time/step']:.1f} s/step  {_duration(left)} left"
        )


def _duration(seconds: float) -> str:
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
    """Return the table of gains on held-out tasks."""
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
