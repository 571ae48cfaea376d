"""Show tables and progress bars of rich, through the project's printable console."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.progress import Progress

from grpo_core.calls.console import PrintableConsole
from grpo_core.calls.streams import printable_streams


def console(*, stderr: bool = False, quiet: bool = False) -> PrintableConsole:
    """Return the console for tables and progress bars; it interprets no markup in strings."""
    return PrintableConsole(stderr=stderr, quiet=quiet)


@contextlib.contextmanager
def live(progress: Progress) -> Iterator[Progress]:
    """Show a progress bar while the block runs; text printed meanwhile appears above it."""
    # Entered after the bar, because the bar redirects the streams to itself.
    with progress, printable_streams():
        yield progress
