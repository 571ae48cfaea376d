"""Tell what happens in a run: on the display, in log.txt, or in both."""

from __future__ import annotations

from grpo_core.report.observer import Observer
from grpo_core.runs.folder import RunFolder


class Journal:
    """Write to the display and to log.txt.

    Args:
        observer: shows the progress of the run.
        folder: the run folder, whose log.txt is written.
    """

    def __init__(self, observer: Observer, folder: RunFolder) -> None:
        self.observer = observer
        self._folder = folder
        self.step = 0
        """The last finished step, for warnings."""

    def announce(self, text: str) -> None:
        """Show a message, and keep it in log.txt."""
        self.observer.say(text)
        self._folder.log(text)

    def warn(self, text: str) -> None:
        """Show a warning, and keep it in log.txt with the step."""
        self._folder.log(f"warning, step {self.step}: {text}")
        self.observer.warn(text)
