"""Choose how a run that was started from Python is shown."""

from __future__ import annotations

from grpo_core.calls.console import PrintableConsole
from grpo_core.display.console import RunProgress
from grpo_core.display.notebook import NotebookProgress, is_notebook


def default_display() -> RunProgress | NotebookProgress:
    """Return the display of a notebook's cell, or else that of a console on stderr.

    Standard output belongs to the script.
    """
    return NotebookProgress() if is_notebook() else RunProgress(PrintableConsole(stderr=True))
