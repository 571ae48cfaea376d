"""Run a child process, and end it together with every process that it started.

Children are spawned, never forked, and have a session of their own, so Ctrl-C does not reach them.
On Linux a reaper process is between this process and the child (see `grpo_core.calls.reaper`);
elsewhere only processes that are still in the child's process group are killed with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import Self, cast

from grpo_core.calls import reaper
from grpo_core.calls.output import KEPT, MARKS, shortened, unmarked

PARENT_PID = reaper.PARENT_PID
"""This argument of a command is replaced by the process id of the child's parent."""
MAX_OUTPUT_BYTES = 64_000_000
"""How much of a child's standard output is kept; one that writes more has failed."""
_TAIL_BYTES = KEPT - 300
"""How much of the end of a child's stderr is kept; a remark about what is left out fits in, too."""
_REAP_SECONDS = 5.0
"""How long to wait for the end of a process that was killed."""
_PIPES_SECONDS = 2.0
"""How long to wait for the end of the pipes of a process that has ended."""
_KILL_ROUNDS = 20
"""How often the children of a reaper that does not end are killed before the reaper is."""
_ROUND_SECONDS = 0.01
"""The pause after each of these rounds."""
_CHUNK_BYTES = 65_536
"""How much output is read at once."""
_CONTINUATIONS = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that go on with a character."""
_PIPE_CHUNKS = 16
"""How many chunks are read at most to empty a pipe: those of the largest that Linux makes."""
_FLOOD_PAUSE_SECONDS = 0.005
"""The pause after a full chunk, so that a child with much output uses little of our time."""
_SUPERVISED = sys.platform == "linux"
"""Whether a reaper is between this process and the child."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Describe how a child process ended, and what it wrote."""

    status: int | None
    """The exit status, or the negative number of a signal; None: it was killed at the deadline."""
    output: bytes
    """Its standard output."""
    last_words: str
    """The end of its standard error."""
    problem: str = ""
    """Why the output is not complete; "" if it is."""


class Child:
    """A running child process.

    Use it as `with Child(command) as child`: at the end it is killed with its descendants.

    Attributes:
        pid: the id of the process: on Linux the reaper's, elsewhere the child's.
        stdin: the pipe to its standard input.
        stdout: the pipe from its standard output.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start the process.

        Args:
            command: the path of the program, and its arguments.
            environ: its environment variables; None: those of this process.
        """
        self._process = subprocess.Popen(
            _supervised(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=environ,
        )
        self.stdin = cast(FileIO, self._process.stdin)
        self.stdout = cast(FileIO, self._process.stdout)
        self.pid = self._process.pid
        self._errors = _Tail(cast(FileIO, self._process.stderr), _TAIL_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def status(self) -> int | None:
        """Return the exit status, or the negative number of a signal; None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """Return the end of what it wrote to stderr."""
        text = self._errors.text
        for mark in MARKS:
            text = text.replace(mark, "")
        return text.strip()

    def unmarked_since(self, position: int) -> tuple[str, int]:
        """Return what it has written outside of marks, and how many bytes it has written in all.

        Args:
            position: how many bytes at the beginning do not count.
        """
        self._errors.settle()
        text, written = self._errors.after(position)
        return unmarked(text).strip("\r\n"), written

    def said(self) -> str:
        """Return the end of what it has written to stderr until now, and how much is left out."""
        self._errors.settle()
        return shortened(self._errors.text.strip("\r\n"), self._errors.left_out, "bytes")

    def forget_last_words(self) -> None:
        """Forget what it has written to stderr so far."""
        self._errors.forget()

    def communicate(self, request: bytes = b"", *, seconds: float) -> Ending:
        """Send `request`, wait for the end of the process, and kill what is left of it.

        Args:
            request: its whole standard input.
            seconds: the deadline, at which the process is killed.
        """
        output = _Tail(self.stdout, MAX_OUTPUT_BYTES)
        threading.Thread(target=self._send, args=(request,), daemon=True).start()
        status = self.status if self.wait(seconds) else None
        self.kill()  # processes that it left behind hold its pipes open
        problem = ""
        if not output.join(_PIPES_SECONDS):
            problem = "it started a process that left its process group and holds its output open"
        elif len(output.data) == MAX_OUTPUT_BYTES:
            problem = f"it wrote {MAX_OUTPUT_BYTES:,} bytes or more to its standard output"
        return Ending(status, bytes(output.data), self.last_words, problem)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process and return whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill the process and its descendants, and reap it, in a limited time."""
        if _SUPERVISED:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # the child may have stopped the reaper
            if not self.wait(_REAP_SECONDS):  # the child still stops it
                for _ in range(_KILL_ROUNDS):
                    reaper.kill_children(self.pid)
                    time.sleep(_ROUND_SECONDS)
                self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.wait(_REAP_SECONDS)
        self._errors.join(_PIPES_SECONDS)

    def _send(self, request: bytes) -> None:
        """Write `request` to its standard input and close that."""
        with contextlib.suppress(BrokenPipeError), self.stdin as pipe:
            remaining = memoryview(request)
            while remaining:
                remaining = remaining[pipe.write(remaining) :]


class _Tail:
    """Reads a pipe to its end in a thread, and keeps the last bytes in `data`.

    Attributes:
        left_out: how many bytes before them are not kept.
    """

    def __init__(self, pipe: FileIO, limit: int) -> None:
        self.data = bytearray()
        self.left_out = 0
        self._pipe, self._limit = pipe, limit
        self._lock = threading.Lock()
        """Held while bytes are read and kept, so that none is on its way in another thread."""
        os.set_blocking(pipe.fileno(), False)
        self._thread = threading.Thread(target=self._read, name="grpo child output", daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        """Return the bytes as text; those that are not UTF-8 become escapes."""
        return self.after(0)[0]

    def after(self, position: int) -> tuple[str, int]:
        """Return what is kept of the text after so many bytes, and how many bytes there were."""
        with self._lock:
            data, start = bytes(self.data), self.left_out
        data, written = data[max(0, position - start) :], start + len(data)
        if start > position:  # the rest of a character that was cut in two
            data = data.lstrip(_CONTINUATIONS)
        return data.decode(errors="backslashreplace"), written

    def settle(self) -> None:
        """Read what is in the pipe now: what was written before the present moment."""
        for _ in range(_PIPE_CHUNKS):
            if not self._take():
                return

    def forget(self) -> None:
        """Forget everything that was written before the present moment."""
        self.settle()
        with self._lock:
            self.data.clear()
            self.left_out = 0

    def join(self, seconds: float) -> bool:
        """Wait for the end of the pipe, for at most `seconds`; return whether it was reached."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _read(self) -> None:
        readable = select.poll()
        readable.register(self._pipe, select.POLLIN)
        while readable.poll() and (count := self._take()) != 0:
            if count == _CHUNK_BYTES:  # the pipe was full: let the child wait
                time.sleep(_FLOOD_PAUSE_SECONDS)
        with self._lock:
            self._pipe.close()

    def _take(self) -> int | None:
        """Read one chunk; return its length: None if there is none now, 0 at the end."""
        with self._lock:
            if self._pipe.closed or (chunk := self._pipe.read(_CHUNK_BYTES)) is None:
                return None
            self.data += chunk
            surplus = max(0, len(self.data) - self._limit)
            del self.data[:surplus]
            self.left_out += surplus
            return len(chunk)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have no name
        return f"signal {number}"


def _supervised(command: Sequence[str]) -> list[str]:
    """Return the command line of a child, on Linux behind a reaper."""
    if _SUPERVISED:
        return [sys.executable, "-P", "-S", reaper.__file__, str(os.getpid()), *command]
    return [str(os.getpid()) if argument == PARENT_PID else argument for argument in command]
