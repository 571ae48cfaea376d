"""How long preparations are shown: a bar on a terminal, plain lines elsewhere, on stderr so that stdout stays machine-readable."""

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


class Report:
    """Says what is being done. A silent one (`enabled=False`) says nothing."""

    def __init__(self, *, enabled: bool = True, console: PrintableConsole | None = None) -> None:
        self._console = console or PrintableConsole(
            file=sys.stderr, quiet=not enabled
        )  # this stderr, also while it is redirected

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def step(
        self, text: str, *, folder: Path | None = None, total_bytes: int | None = None
    ) -> Iterator[None]:
        """Show `text` while the body works; with `folder`, how many of `total_bytes` have arrived in it."""
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
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[size]}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(text, total=total_bytes, size="")

            def show(found: int) -> None:
                size = f"{min(found, total_bytes or found) // MEGABYTE} of {(total_bytes or 0) // MEGABYTE} MB"
                progress.update(task, completed=min(found, total_bytes or found), size=size)

            with _watching(folder, show) if folder else contextlib.nullcontext():
                yield
            progress.update(task, total=total_bytes or 1, completed=total_bytes or 1)


@contextlib.contextmanager
def _watching(folder: Path, show: Callable[[int], None]) -> Iterator[None]:
    """Tell `show` how many bytes `folder` has gained: works with any downloader, whatever its own progress looks like."""
    done = threading.Event()
    before = folder_bytes(folder)

    def poll() -> None:
        while not done.wait(POLL_SECONDS):
            show(folder_bytes(folder) - before)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below `folder`, links not followed; files that vanish meanwhile count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
    return total
