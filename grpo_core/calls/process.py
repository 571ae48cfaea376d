"""Run a worker process, which answers one request at a time.

It is spawned (never forked) and killed together with its children.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping
from io import FileIO, RawIOBase
from pathlib import Path
from typing import Any, cast

from grpo_core.calls import reaper
from grpo_core.calls.folders import remove_folder
from grpo_core.calls.replies import (
    MAX_REPLY_BYTES,
    InvalidReplyError,
    Reply,
    new_request_id,
    parse_reply,
)
from grpo_core.calls.wire import read_frame, write_frame
from grpo_core.calls.worker_environment import worker_environment

_TAIL_BYTES = 2000
"""How much of the end of a worker's stderr is kept."""
_CLOSE_SECONDS = 1.0
"""How long a worker may take to close its environment, and its stderr to end."""
_REAP_SECONDS = 5.0
"""How long to wait for the end of a process that was killed."""
_KILL_ROUNDS = 20
"""How often the children of a reaper that does not end are killed before the reaper is."""
_ROUND_SECONDS = 0.01
"""The pause after each of these rounds."""
_LEFTOVERS_SECONDS = 5.0
"""How long the removal of leftover folders may take."""
_CHUNK_BYTES = 65_536
"""How much of a worker's stderr is read at once."""
_FLOOD_PAUSE_SECONDS = 0.005
"""The pause after a full chunk, so that a worker with much output uses little of our time."""
_WAKE_MILLISECONDS = 500
"""How often a thread that waits for a pipe checks whether the worker was abandoned."""
_SUPERVISED = sys.platform == "linux"
"""Whether a reaper is between the trainer and the worker."""


class WorkerProcess:
    """Runs one `python -m grpo_core.verify.worker` with a temporary folder of its own.

    The process has its own session, so Ctrl-C does not reach it. On Linux a reaper process is
    between the trainer and the worker (see `grpo_core.calls.reaper`); elsewhere only processes that
    are still in the worker's process group are killed with it.

    Args:
        further_variables: names of environment variables that the worker inherits besides the
            listed ones (see `grpo_core.calls.worker_environment`).
    """

    def __init__(self, further_variables: Iterable[str] = ()) -> None:
        folder = tempfile.mkdtemp(prefix=f"{_folder_prefix()}{os.getpid()}-")
        # The finalizer also runs when the trainer exits.
        self._remove_folder = weakref.finalize(self, remove_folder, folder)
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            _command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=worker_environment(folder, further_variables),
        )
        self._pipes = _Pipes(cast(FileIO, self._process.stdin), cast(FileIO, self._process.stdout))
        self._tail = b""
        name = "grpo worker stderr"
        self._stderr_reader = threading.Thread(target=self._read_stderr, name=name, daemon=True)
        self._stderr_reader.start()
        self._request_lock, self._end_lock = threading.Lock(), threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int:
        """Return the id of the child process: on Linux the reaper's, elsewhere the worker's."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Return whether the process is running and has sent nothing without a request."""
        return self._process.poll() is None and self._pipes.empty

    def ask(self, message: Mapping[str, Any]) -> Reply:
        """Send `message` and wait for the reply; calling `end` at the deadline ends the wait.

        Raises:
            InvalidReplyError: the worker sent something that is not a reply to this message.
            OSError, EOFError: the process has ended.
            ValueError: `message` is too large.
        """
        with self._request_lock:
            self._tail = b""
            request_id = new_request_id()
            write_frame(self._pipes, json.dumps({**message, "id": request_id}).encode())
            try:
                body = read_frame(self._pipes, limit=MAX_REPLY_BYTES)
            except ValueError as error:
                raise InvalidReplyError(str(error)) from None
            return parse_reply(body, request_id)

    def end(self, *, politely: bool = False) -> None:
        """Kill the process and its children, reap it, and remove its folder.

        This takes a limited time, whatever the process does.

        Args:
            politely: let the worker close its environment first; only for a worker without a
                pending request.
        """
        with self._end_lock:
            if self._ended:
                return
            self._ended = True
            self._pipes.abandoned = True
            if politely:
                self._pipes.requests.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_CLOSE_SECONDS)
            _kill(self._process)
            self._stderr_reader.join(_CLOSE_SECONDS)
            with self._request_lock:  # a thread that waits for the pipes wakes up soon
                self._pipes.requests.close()
                self._pipes.replies.close()
            self._remove_folder()

    def post_mortem(self) -> str:
        """Return how the process ended, and its last output; call it after `end`."""
        status = self._process.returncode
        if status is None:
            ending = "could not be killed"
        elif status < 0:
            ending = f"was killed by {_signal_name(-status)}"
        else:
            ending = f"exited with status {status}"
        return f"the worker process {ending}{self.last_words()}"

    def last_words(self) -> str:
        """Return a message's ending with the last output on stderr, or "" if there is none."""
        text = self._tail.decode(errors="replace").strip()
        return f"; its last output:\n{text}" if text else ""

    def _read_stderr(self) -> None:
        """Read stderr until its end and keep the last bytes."""
        stderr = cast(RawIOBase, self._process.stderr)
        with stderr:
            while chunk := stderr.read(_CHUNK_BYTES):
                self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
                if len(chunk) == _CHUNK_BYTES:  # the pipe was full: let the worker wait
                    time.sleep(_FLOOD_PAUSE_SECONDS)


class _Pipes:
    """Reads and writes the two pipes to a worker, for a thread that must not wait forever.

    A pipe ends when all processes that hold its other end have ended. If a process escapes and
    keeps it open or in use, the thread wakes up a moment after `abandoned` is set.
    """

    def __init__(self, requests: FileIO, replies: FileIO) -> None:
        self.requests, self.replies = requests, replies
        self.abandoned = False
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(requests, select.POLLOUT)
        self._readable.register(replies, select.POLLIN)
        os.set_blocking(requests.fileno(), False)
        os.set_blocking(replies.fileno(), False)

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to read."""
        return not self._readable.poll(0)

    def read(self, size: int) -> bytes:
        """Wait for data and return at most `size` bytes; b"" at the end of the pipe."""
        data = None
        while data is None:
            self._wait(self._readable)
            data = self.replies.read(size)
        return data

    def write(self, data: memoryview) -> int:
        """Wait until the pipe accepts data and return how many bytes it took."""
        count = None
        while count is None:
            self._wait(self._writable)
            count = self.requests.write(data)
        return count

    def _wait(self, pipe: select.poll) -> None:
        """Wait until a pipe is ready; raise EOFError once `abandoned` is set."""
        while not self.abandoned:
            if pipe.poll(_WAKE_MILLISECONDS):
                return
        raise EOFError("the worker was abandoned")


def _command() -> list[str]:
    """Return the command line of the worker, on Linux behind a reaper."""
    worker = [sys.executable, "-P", "-X", "faulthandler", "-m", "grpo_core.verify.worker"]
    if _SUPERVISED:
        return [sys.executable, "-P", "-S", reaper.__file__, str(os.getpid()), *worker]
    return [*worker, str(os.getpid())]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have no name
        return f"signal {number}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and its children, and reap it."""
    if _SUPERVISED:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # the worker may have stopped it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_SECONDS)
        if process.poll() is None:  # the worker still stops the reaper
            for _ in range(_KILL_ROUNDS):
                reaper.kill_children(process.pid)
                time.sleep(_ROUND_SECONDS)
            process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_SECONDS)


def remove_leftover_folders() -> None:
    """Remove the worker folders of trainers on this machine that were killed.

    The number in the name of a folder is the trainer's process id.
    """
    prefix = _folder_prefix()
    deadline = time.monotonic() + _LEFTOVERS_SECONDS
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        trainer_pid = folder.name.removeprefix(prefix).partition("-")[0]
        if trainer_pid.isdecimal() and not _is_alive(int(trainer_pid)):
            remove_folder(folder, seconds=deadline - time.monotonic())


def _folder_prefix() -> str:
    """Return a prefix that no other machine uses.

    A shared folder for temporary files may hold folders of other machines and containers, whose
    processes have the same ids.
    """
    return f"grpo-worker-{zlib.crc32(platform.node().encode()):08x}-"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process id is that large
        return False
    except PermissionError:
        pass
    return True
