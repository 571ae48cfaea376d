"""Run a worker process, which answers one request at a time."""

from __future__ import annotations

import json
import os
import platform
import select
import sys
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from grpo_core.calls.child import PARENT_PID, Child, signal_name
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

_COMMAND = (
    *(sys.executable, "-P", "-X", "faulthandler"),
    *("-m", "grpo_core.verify.worker", PARENT_PID),
)
_CLOSE_SECONDS = 1.0
"""How long a worker may take to close its environment."""
_LEFTOVERS_SECONDS = 5.0
"""How long the removal of leftover folders may take."""
_WAKE_MILLISECONDS = 500
"""How often a thread that waits for a pipe checks whether the worker was abandoned."""


class WorkerProcess:
    """Runs one `python -m grpo_core.verify.worker` with a temporary folder of its own.

    Args:
        further_variables: names of environment variables that the worker inherits besides the
            listed ones (see `grpo_core.calls.worker_environment`).
    """

    def __init__(self, further_variables: Iterable[str] = ()) -> None:
        folder = tempfile.mkdtemp(prefix=f"{_folder_prefix()}{os.getpid()}-")
        # The finalizer also runs when the trainer exits.
        self._remove_folder = weakref.finalize(self, remove_folder, folder)
        self._child = Child(_COMMAND, worker_environment(folder, further_variables))
        self._pipes = _Pipes(self._child.stdin, self._child.stdout)
        self._request_lock, self._end_lock = threading.Lock(), threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int:
        """Return the id of the child process: on Linux the reaper's, elsewhere the worker's."""
        return self._child.pid

    @property
    def ready(self) -> bool:
        """Return whether the process is running and has sent nothing without a request."""
        return self._child.status is None and self._pipes.empty

    def ask(self, message: Mapping[str, Any]) -> Reply:
        """Send `message` and wait for the reply; calling `end` at the deadline ends the wait.

        Raises:
            InvalidReplyError: the worker sent something that is not a reply to this message.
            OSError, EOFError: the process has ended.
            ValueError: `message` is too large.
        """
        with self._request_lock:
            self._child.forget_last_words()
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
                self._child.wait(_CLOSE_SECONDS)
            self._child.kill()
            with self._request_lock:  # a thread that waits for the pipes wakes up soon
                self._pipes.requests.close()
                self._pipes.replies.close()
            self._remove_folder()

    def post_mortem(self) -> str:
        """Return how the process ended, and its last output; call it after `end`."""
        status = self._child.status
        if status is None:
            ending = "could not be killed"
        elif status < 0:
            ending = f"was killed by {signal_name(-status)}"
        else:
            ending = f"exited with status {status}"
        return f"the worker process {ending}{self.last_words()}"

    def last_words(self) -> str:
        """Return a message's ending with the last output on stderr, or "" if there is none."""
        text = self._child.last_words
        return f"; its last output:\n{text}" if text else ""


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
