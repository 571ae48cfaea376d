"""Tell what happens in a run, on the display and in log.txt.

That includes the warnings that the project's packages log, such as that a sandbox is unavailable.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from grpo_core.protocol.types import Verdict
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.observer import Observer

LOGGER_PREFIX = "grpo_"
"""Prefix of the names of the project's packages."""
MAX_REPORTED = 10
"""Most different reasons that are reported; rollouts.jsonl has them all."""
_TASK_KEY = re.compile(r"TaskKey\([^)]*\)")


class Journal(Observer):
    """Write to the display and to log.txt.

    What is warned of before the run has a folder is written to log.txt as soon as it has one.

    Args:
        observer: shows the progress of the run.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._folder: RunFolder | None = None
        self._unwritten: list[str] = []
        """Entries for log.txt that wait for the folder."""
        self._warned: set[str] = set()
        """The warnings of which each is given once."""
        self.done = 0
        """The last finished step, for warnings."""
        self.unscored = ""
        """The most common reason at the last call of `warn_unscored`; "" if all were scored."""
        self._reported: set[str] = set()

    def begin(self, folder: RunFolder) -> None:
        """Write log.txt in the run's folder from here on, beginning with what waited for it."""
        self._folder = folder
        while self._unwritten:
            folder.log(self._unwritten.pop(0))

    def say(self, text: str) -> None:
        """Show a message that log.txt does not keep."""
        self.observer.say(text)

    def announce(self, text: str) -> None:
        """Show a message, and keep it in log.txt."""
        self.observer.say(text)
        self._log(text)

    def warn(self, text: str) -> None:
        """Show a warning, unless it was given already, and keep it in log.txt with the step."""
        if text not in self._warned:
            self._warned.add(text)
            self.warn_again(text)

    def warn_again(self, text: str) -> None:
        """Show a warning of something that may come back, and keep it in log.txt with the step."""
        self._log(f"warning, step {self.done}: {text}")
        self.observer.warn(text)

    def raise_alarm(self, step: int, title: str, text: str) -> None:
        """Show an alarm, and keep it in log.txt with the step."""
        self._log(f"alarm, step {step}: {title}: {text}")
        self.observer.alarm(title, text)

    def keep(self, warnings: Iterable[str]) -> None:
        """Keep warnings in log.txt that were shown already."""
        for text in warnings:
            self._log(f"warning, step {self.done}: {text}")

    def _log(self, text: str) -> None:
        if self._folder is None:
            self._unwritten.append(text)
        else:
            self._folder.log(text)

    def warn_unscored(self, verdicts: Sequence[Verdict], rollouts: str) -> None:
        """Warn of the most common reason for which rollouts have no verdict, each reason once.

        Args:
            verdicts: all verdicts of the rollouts.
            rollouts: what they are of, in words.
        """
        reasons = Counter(
            _TASK_KEY.sub("a task", verdict.error) for verdict in verdicts if verdict.error
        )
        self.unscored, count = reasons.most_common(1)[0] if reasons else ("", 0)
        if count and self.unscored not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(self.unscored)
            self.warn(f"{count} of {len(verdicts)} {rollouts} could not be scored: {self.unscored}")


class _NoticeHandler(logging.Handler):
    """Passes warnings of packages named grpo_* to `warn`.

    Args:
        only_handler: whether logging has no other handler; then other records go to logging's last
            resort, as they would without this handler.
    """

    def __init__(self, warn: Callable[[str], None], *, only_handler: bool) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._only_handler = only_handler

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record on."""
        if record.name.startswith(LOGGER_PREFIX):
            self._warn(record.getMessage())
        elif self._only_handler and logging.lastResort is not None:
            logging.lastResort.handle(record)


@contextmanager
def notices(warn: Callable[[str], None]) -> Iterator[None]:
    """Call `warn` with each warning that is logged inside the `with` block, from any thread."""
    root = logging.getLogger()
    handler = _NoticeHandler(warn, only_handler=not root.handlers)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
