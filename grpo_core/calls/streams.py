"""Provide streams that convert everything written to them to `printable` text.

While a command runs, `sys.stdout` and `sys.stderr` are PrintableStreams: whatever an environment, a
plugin or a library prints, warns or logs is made printable. The command line itself makes its text
printable first and then writes it, with colours, to the streams beneath.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import IO, Any, TextIO, cast

from grpo_core.calls.call import current_call
from grpo_core.calls.output import MARKS
from grpo_core.calls.printable import printable
from grpo_core.protocol.errors import OutputError


@contextlib.contextmanager
def writing_output() -> Iterator[None]:
    """Turn a failed write to stdout or stderr in the `with` block into OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(error) from error


class PrintableStream(io.TextIOBase):
    """Makes text printable and writes it to the stream beneath.

    Like its base class, it reports that it is not a terminal, so that libraries neither colour
    their text nor draw progress bars. Text that is written in pieces is made printable piece by
    piece. A carriage return at the end of a piece is held back, because a newline may follow in
    the next piece. What is written during a call is kept with the call's output, too.

    Args:
        beneath: the stream that gets the printable text.
        marks: what it gets before and after a text that is also kept with a call.
    """

    def __init__(self, beneath: TextIO, marks: tuple[str, str] = ("", "")) -> None:
        self.beneath = beneath
        self._marks = marks
        self._holds_return = False

    def write(self, text: str) -> int:
        """Write a text; a carriage return alone, as progress bars use it, ends the line."""
        pending = "\r" * self._holds_return + text
        self._holds_return = pending.endswith("\r")
        complete = pending.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        output = current_call().output
        before, after = ("", "") if output is None or not complete else self._marks
        self.beneath.write(f"{before}{printable(complete)}{after}")
        if output is not None:
            output.write(complete, seen=True)
        return len(text)

    @property
    def buffer(self) -> io.BufferedIOBase:
        """Return a stream for bytes, which are written as text; bytes beyond UTF-8 are escaped."""
        return _Bytes(self)

    def flush(self) -> None:
        """Flush the stream beneath, unless it is closed."""
        if not self.beneath.closed:
            self.beneath.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the stream beneath, which child processes inherit."""
        return self.beneath.fileno()

    def writable(self) -> bool:
        """Return True: the stream can be written to."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the stream beneath."""
        return self.beneath.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """Return how the stream beneath handles characters that its encoding lacks."""
        return self.beneath.errors


class _Bytes(io.BufferedIOBase):
    """Writes bytes as text to another stream."""

    def __init__(self, stream: PrintableStream) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode(errors="backslashreplace"))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True


def prepare_streams(*, shared: bool) -> None:
    """Prepare the standard streams of a worker process.

    No text that is printed makes a verifier fail, as by half of a surrogate pair.

    Args:
        shared: whether the worker answers many requests at once: what is printed is then also kept
            with the call during which it is.
    """
    for stream in (sys.stdout, sys.stderr):
        cast(io.TextIOWrapper, stream).reconfigure(errors="backslashreplace")
    if shared:
        sys.stdout, sys.stderr = (
            PrintableStream(stream, MARKS) for stream in (sys.stdout, sys.stderr)
        )


def flush_streams() -> None:
    """Flush the standard streams, whatever an environment has made of them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def beneath(stream: IO[str]) -> TextIO:
    """Return the stream that a PrintableStream writes to; any other stream is returned as it is."""
    while isinstance(stream, PrintableStream):
        stream = stream.beneath
    return cast(TextIO, stream)


@contextlib.contextmanager
def printable_streams() -> Iterator[None]:
    """Make everything printable that is printed in the `with` block, in any thread."""
    with (
        contextlib.redirect_stdout(PrintableStream(sys.stdout)),
        contextlib.redirect_stderr(PrintableStream(sys.stderr)),
    ):
        yield
