"""Tell what happens in a run, on the display and in log.txt.

That includes the warnings that the project's packages log, such as that a sandbox is unavailable.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from grpo_core.protocol.events import (
    AlarmRaised,
    BatchCollected,
    EvaluationEnded,
    Event,
    Notice,
)
from grpo_core.protocol.types import Verdict
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.observer import Observer
from grpo_core.train.run.stream import Stream

LOGGER_PREFIX = "grpo_"
"""Prefix of the names of the project's packages."""
MAX_REPORTED = 10
"""Most different reasons that are reported; rollouts.jsonl has them all."""
_TASK_KEY = re.compile(r"TaskKey\([^)]*\)")


class LogText:
    """Write what is said of a run to its log.txt; it is the listener that hears of it first.

    What is said before the run has a folder is written as soon as it has one.
    """

    def __init__(self) -> None:
        self._folder: RunFolder | None = None
        self._unwritten: list[str] = []
        """Entries that wait for the folder."""

    def begin(self, folder: RunFolder) -> None:
        """Write to the run's folder from here on, beginning with what waited for it."""
        self._folder = folder
        while self._unwritten:
            folder.log(self._unwritten.pop(0))

    def on(self, event: Event) -> None:
        """Write a sentence or an alarm."""
        match event:
            case Notice(kept=True, level="info"):
                self._write(event.text)
            case Notice(kept=True):
                self._write(f"warning, step {event.step}: {event.text}")
            case AlarmRaised():
                self._write(f"alarm, step {event.step}: {event.title}: {event.message}")

    def _write(self, text: str) -> None:
        if self._folder is None:
            self._unwritten.append(text)
        else:
            self._folder.log(text)


class Journal(Observer):
    """Tell the user what happens: post sentences for log.txt and the display to the stream.

    As a listener it warns of rollouts that could not be scored.

    Args:
        stream: takes the sentences.
        text: writes log.txt.
    """

    def __init__(self, stream: Stream, text: LogText) -> None:
        self._stream, self._text = stream, text
        self._warned: set[str] = set()
        """The warnings of which each is given once."""
        self.unscored = ""
        """The most common reason at the last call of `warn_unscored`; "" if all were scored."""
        self._reported: set[str] = set()

    def begin(self, folder: RunFolder) -> None:
        """Write log.txt in the run's folder from here on, beginning with what waited for it."""
        self._text.begin(folder)

    def say(self, text: str) -> None:
        """Show a message that log.txt does not keep."""
        self._stream.post(Notice(text, self._stream.done, kept=False))

    def announce(self, text: str) -> None:
        """Show a message, and keep it in log.txt."""
        self._stream.post(Notice(text, self._stream.done))

    def warn(self, text: str) -> None:
        """Show a warning, unless it was given already, and keep it in log.txt with the step."""
        if text not in self._warned:
            self._warned.add(text)
            self.warn_again(text)

    def warn_again(self, text: str) -> None:
        """Show a warning of something that may come back, and keep it in log.txt with the step."""
        self._stream.post(Notice(text, self._stream.done, "warning"))

    def keep(self, warnings: Iterable[str]) -> None:
        """Keep warnings in log.txt that were shown already."""
        for text in warnings:
            self._stream.post(Notice(text, self._stream.done, "warning", shown=False))

    def on(self, event: Event) -> None:
        """Warn of rollouts that could not be scored."""
        match event:
            case BatchCollected():
                verdicts = [verdict for group in event.groups for verdict in group.verdicts]
                self.warn_unscored(verdicts, f"attempts of step {event.step}")
            case EvaluationEnded():
                verdicts = [verdict for group in event.groups for verdict in group.verdicts]
                self.warn_unscored(verdicts, "held-out tasks")

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
