"""Streams that pass on what others print as `printable` text.

While a command runs, `sys.stdout` and `sys.stderr` are PrintableStreams: what an environment, a
plugin or a library prints, warns or logs is made printable on its way. The command line itself
writes to the streams beneath, with its colours, after it has made the text printable.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from typing import IO, TextIO, cast

from grpo_core.calls.printable import printable
from grpo_core.protocol.errors import OutputError


@contextlib.contextmanager
def writing_output() -> Iterator[None]:
    """Turn a failed write to stdout or stderr in the block into OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(error) from error


class PrintableStream(io.TextIOBase):
    """A text stream that makes what is written printable and passes it on.

    It says that it is no terminal, so that libraries neither colour their text nor draw bars. Text
    that is written in pieces is made printable piece by piece; the end of a line may be a carriage
    return in one piece and a newline in the next, so that such a return is held back.
    """

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath
        self._return_held = False

    def write(self, text: str) -> int:
        """Pass a text on; a carriage return alone, as bars use it, ends the line."""
        whole = "\r" * self._return_held + text
        self._return_held = whole.endswith("\r")
        shown = whole.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        self.beneath.write(printable(shown))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]  # typeshed allows bytes here
        """Pass texts on."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream beneath, unless it is closed."""
        if not self.beneath.closed:
            self.beneath.flush()

    def fileno(self) -> int:
        """Return the descriptor of the stream beneath, which children inherit."""
        return self.beneath.fileno()

    def isatty(self) -> bool:
        """Return that this is no terminal."""
        return False

    def writable(self) -> bool:
        """Return that this can be written."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream beneath."""
        return self.beneath.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """How the stream beneath treats what its encoding lacks."""
        return self.beneath.errors


def beneath(stream: IO[str]) -> TextIO:
    """Return the stream that a PrintableStream writes to; another stream as it is."""
    while isinstance(stream, PrintableStream):
        stream = stream.beneath
    return cast(TextIO, stream)


@contextlib.contextmanager
def printable_streams() -> Iterator[None]:
    """Make everything printable that the `with` block prints, on any thread."""
    out, err = sys.stdout, sys.stderr
    with (
        contextlib.redirect_stdout(PrintableStream(out)),
        contextlib.redirect_stderr(PrintableStream(err)),
    ):
        yield
