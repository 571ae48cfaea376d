"""Show the progress of a command that does not train: a live bar on a terminal, else a line now
and then."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

from grpo_core.calls.console import PrintableConsole
from grpo_core.calls.printable import MESSAGE_LIMIT, printable
from grpo_core.calls.streams import printable_streams
from grpo_core.display.console import live
from grpo_core.protocol.errors import OutputError

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
