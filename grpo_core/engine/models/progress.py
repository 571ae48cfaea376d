"""Show long preparations: a bar on a terminal, plain lines elsewhere.

They go to stderr, so that stdout stays machine-readable.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from grpo_core.calls.console import PrintableConsole

POLL_SECONDS = 0.2
MEGABYTE = 1_000_000


class LoadingReport:
    """Prints what is being done; with `enabled=False` it prints nothing."""

    def __init__(self, *, enabled: bool = True, console: PrintableConsole | None = None) -> None:
        # sys.stderr of now, also if it is redirected later.
        self._console = console or PrintableConsole(file=sys.stderr, quiet=not enabled)

    def say(self, text: str) -> None:
        """Print one line of text."""
        self._console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def step(
        self, text: str, *, folder: Path | None = None, total_bytes: int | None = None
    ) -> Iterator[None]:
        """Show `text` while the body runs.

        Args:
            folder: a download goes into it; its growth in bytes is shown.
            total_bytes: size of the whole download.
        """
        start = time.monotonic()
        if self._console.is_terminal:
            with self._bar(text, folder, total_bytes):
                yield
            return
        self.say(f"{text} ...")
        yield
        self.say(f"{text}: {time.monotonic() - start:.1f} s")

    @contextlib.contextmanager
    def _bar(self, text: str, folder: Path | None, total_bytes: int | None) -> Iterator[None]:
        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[size]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
        ) as progress:
            task = progress.add_task(text, total=total_bytes, size="")

            def show(received: int) -> None:
                shown = min(received, total_bytes or received)
                progress.update(
                    task,
                    completed=shown,
                    size=f"{shown // MEGABYTE} of {(total_bytes or 0) // MEGABYTE} MB",
                )

            with _polling_size(folder, show) if folder else contextlib.nullcontext():
                yield
            progress.update(task, total=total_bytes or 1, completed=total_bytes or 1)


@contextlib.contextmanager
def _polling_size(folder: Path, show: Callable[[int], None]) -> Iterator[None]:
    """Call `show` regularly with the number of bytes that `folder` has gained.

    This works with any downloader, whatever its own progress looks like.
    """
    done = threading.Event()
    bytes_before = folder_bytes(folder)

    def poll() -> None:
        while not done.wait(POLL_SECONDS):
            show(folder_bytes(folder) - bytes_before)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the files below `folder`; links are not followed.

    Files that vanish meanwhile count as 0.
    """
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
    return total
