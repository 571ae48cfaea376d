"""Keep the end of what an environment prints, so that it can be shown with a verdict."""

from __future__ import annotations

import re
import threading

KEPT = 4000
"""The most characters of output that are kept with a verdict; of a child process, bytes."""
MARKS = ("\x0e", "\x0f")
"""Characters around what a process prints that answers many requests, and knows for which one."""
_MARKED = re.compile(rf"(^[^{MARKS[0]}]*{MARKS[1]})|{MARKS[0]}[^{MARKS[1]}]*({MARKS[1]}|$)")


class Output:
    """Keeps the end of the text that is written to it, from any thread.

    Args:
        outer: gets the same text.
        unseen_only: keep nothing that the user has seen on the screen already.
    """

    def __init__(self, outer: Output | None = None, *, unseen_only: bool = False) -> None:
        self._outer, self._unseen_only = outer, unseen_only
        self._lock = threading.Lock()
        self._end = ""
        self._left_out = 0

    def write(self, text: str, *, seen: bool = False) -> None:
        """Add a text.

        Args:
            text: the text.
            seen: whether it was also written to the screen.
        """
        if self._outer is not None:
            self._outer.write(text, seen=seen)
        if seen and self._unseen_only:
            return
        with self._lock:
            end = self._end + text
            self._end = end[-KEPT:]
            self._left_out += len(end) - len(self._end)

    def write_lines(self, text: str) -> None:
        """Add a text that no screen has shown, as lines of its own."""
        if text:
            begins_line = not self._end or self._end.endswith("\n")
            self.write(f"{'' if begins_line else chr(10)}{text}\n")

    @property
    def text(self) -> str:
        """Return what was written; if that was much, its end, and how much is left out."""
        with self._lock:
            return shortened(self._end.strip("\n"), self._left_out, "characters")


def unmarked(text: str) -> str:
    """Return the parts of a text that have no marks around them; its beginning may be missing."""
    return _MARKED.sub("", text)


def shortened(end: str, left_out: int, unit: str) -> str:
    """Return the end of a text with a line before it that says how much is left out, if any."""
    return f"... ({left_out:,} {unit} before this are left out)\n{end}" if left_out else end
