"""Runs commands of `grpo` in this process on a pseudo-terminal or a pipe and returns the bytes that reach it."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from grpo_core.cli import main

COLUMNS = 500
OWN = re.compile(rb"\x1b\[(?:[0-9;]*m|\?25[lh]|[12]?K|[0-9]*A)|\r(?=\x1b\[(?:2K|1A))")
"""What the command line itself sends to a terminal: colours, and what moves the line of a bar."""

ESCAPES = "\x1b[5;35mCSI\x1b]8;;http://evil\x1b\\LINK\x1b]52;c;ZXZpbA==\x07\x1b]0;TITLE\x07\rCR\bBS\x9b5mC1\x00NUL\x7f"
HIDDEN = "\u202eBIDI\u2066\u200f\u2028\u200b\ufeff\U000e0041\u061c\ue000\ufe01"
PLAIN = "[bold red]M[/bold red][link=http://evil]L[/link] :bug: %s %(x)d {} {0} $x^$ <b>|`"
HALF = "\ud800"
EVIL = f"{ESCAPES}{HIDDEN}{PLAIN}"
"""A text that can be in a prompt; `HALF` cannot."""


@dataclass(frozen=True)
class Shown:
    """What a command sent, in bytes, and how it ended."""

    data: bytes
    status: int

    @property
    def text(self) -> str:
        return OWN.sub(b"", self.data).decode()


def assert_printable(data: bytes, *, terminal: bool) -> None:
    """Fail if a byte would be obeyed, would hide or would reorder something and is not of the command line itself."""
    assert b"\x1b[5" not in data  # what EVIL has and the command line has not
    assert b"\x9b" not in re.sub(rb"[\xc2-\xf4][\x80-\xbf]+", b"", data)
    # Strict: no halves of characters, either.
    text = (OWN.sub(b"", data) if terminal else data).decode()
    hidden = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    found = {character for character in set(text) if unicodedata.category(character) in hidden}
    assert found <= {"\n", "\t"}, sorted(found)
    assert "\ufe01" not in text
    assert "\N{BUG}" not in text


def grpo(*arguments: str | Path, terminal: bool, stdin: str = "") -> Shown:
    """Run the console script's function with the descriptors 0, 1 and 2 on a new terminal, or its output on a pipe."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
        modes = termios.tcgetattr(writer)
        modes[1] &= ~termios.OPOST  # the bytes as they are written
        modes[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(writer, termios.TCSANOW, modes)
    chunks: list[bytes] = []
    listener = threading.Thread(target=_listen, args=(reader, chunks))
    listener.start()
    try:
        with _descriptors(writer, stdin):
            status = _main(list(map(str, arguments)))
    finally:
        os.close(writer)
        listener.join(60)
        os.close(reader)
    return Shown(b"".join(chunks), status)


def _main(arguments: Sequence[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["grpo", *arguments])
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        patch.delenv("COLUMNS", raising=False)
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


def _listen(reader: int, chunks: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # a terminal whose other side is closed
        while chunk := os.read(reader, 65536):
            chunks.append(chunk)


@contextlib.contextmanager
def _descriptors(writer: int, stdin: str) -> Iterator[None]:
    """Let this process write to `writer` and read `stdin`, below Python and in it."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in (0, 1, 2)]
    streams = sys.stdin, sys.stdout, sys.stderr
    source, sink = os.pipe()
    os.write(sink, stdin.encode("utf-8", "surrogatepass"))
    os.close(sink)
    os.dup2(source, 0)
    os.close(source)
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", write_through=True)
        for number in (1, 2)
    )
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, copy in enumerate(saved):
            os.dup2(copy, number)
            os.close(copy)
