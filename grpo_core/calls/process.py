"""Run a worker process, which answers one request at a time or exchanges messages freely."""

from __future__ import annotations

import json
import os
import platform
import secrets
import select
import sys
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from grpo_core.calls.child import PARENT_PID, Child, signal_name
from grpo_core.calls.folders import remove_folder
from grpo_core.calls.namespace import (
    PARENT_PID_INSIDE,
    find_bubblewrap,
    in_namespace,
    signal_or_status,
)
from grpo_core.calls.variables import inherited_variables
from grpo_core.calls.wire import (
    MAX_REPLY_BYTES,
    InvalidReplyError,
    Reply,
    parse_reply,
    read_frame,
    write_frame,
)

_COMMAND = (
    *(sys.executable, "-P", "-X", "faulthandler"),
    "-u",  # what is printed is not lost when the process is killed
    *("-m", "grpo_core.verify.workers.worker", PARENT_PID),
)
_AMONG_OTHERS = (
    "(threads or processes that earlier calls left behind were running: some of this may be theirs)"
)
_CLOSE_SECONDS = 1.0
"""How long a worker may take to close its environment."""
_LEFTOVERS_SECONDS = 5.0
"""How long the removal of leftover folders may take."""
_WAKE_MILLISECONDS = 500
"""How often a thread that waits for a pipe checks whether the worker was abandoned."""


class WorkerProcess:
    """Runs one `python -m grpo_core.verify.workers.worker` with a temporary folder of its own.

    Args:
        further_variables: names of environment variables that the worker inherits besides the
            listed ones.
        namespace: whether it gets a process namespace of its own: "auto" where the system allows
            it, "required" or "off".

    Raises:
        OSError: it cannot be started, or cannot get the namespace that is required.
    """

    def __init__(self, further_variables: Iterable[str] = (), *, namespace: str = "auto") -> None:
        command, self._in_namespace = _worker_command(namespace)
        folder = tempfile.mkdtemp(prefix=f"{_folder_prefix()}{os.getpid()}-")
        # The finalizer also runs when the trainer exits.
        self._remove_folder = weakref.finalize(self, remove_folder, folder)
        self._child = Child(command, _worker_environment(folder, further_variables))
        self._pipes = _Pipes(self._child.stdin, self._child.stdout)
        self._send_lock, self._receive_lock = threading.Lock(), threading.Lock()
        self._end_lock = threading.Lock()
        self._position = 0
        """How many bytes of its output `unmarked` has read."""
        self.pid = self._child.pid
        """The id of the child process: on Linux the reaper's, elsewhere the worker's."""

    @property
    def ready(self) -> bool:
        """Return whether the process is running and has sent nothing without a request."""
        return self._child.status is None and self._pipes.empty

    def ask(self, message: Mapping[str, Any]) -> Reply:
        """Send `message` and wait for the reply; calling `end` at the deadline ends the wait.

        The reply holds what the worker and its children have printed since the message was sent.

        Raises:
            InvalidReplyError: the worker sent something that is not a reply to this message.
            OSError, EOFError: the process has ended.
            ValueError: `message` is too large.
        """
        self._child.forget_last_words()
        request_id = secrets.token_hex(16)  # which no worker can guess
        self.send(json.dumps({**message, "id": request_id}).encode())
        reply = parse_reply(self.receive(), request_id)
        output = self._child.said()
        if output and reply.among_others:
            output = f"{_AMONG_OTHERS}\n{output}"
        return replace(reply, output=output)

    def send(self, body: bytes) -> None:
        """Send one message, and wait until the worker's pipe has taken it.

        Raises:
            OSError, EOFError: the process has ended, or is being ended.
            ValueError: the message is too large.
        """
        with self._send_lock:
            write_frame(self._pipes.write, body)

    def receive(self) -> bytes:
        """Wait for one message of the worker and return it.

        Raises:
            InvalidReplyError: it is too large.
            OSError, EOFError: the process has ended, or is being ended.
        """
        with self._receive_lock:
            try:
                return read_frame(self._pipes.read, limit=MAX_REPLY_BYTES)
            except ValueError as error:
                raise InvalidReplyError(str(error)) from None

    def unmarked(self) -> str:
        """Return what was printed since the last call without marks, by whomever it was."""
        text, self._position = self._child.unmarked_since(self._position)
        return text

    def end(self, *, politely: bool = False) -> None:
        """Kill the process and its children, reap it, and remove its folder.

        This takes a limited time, whatever the process does.

        Args:
            politely: let the worker close its environment first; only for a worker without a
                pending request.
        """
        with self._end_lock:
            if self._pipes.abandoned:
                return
            self._pipes.abandoned = True
            if politely:
                self._pipes.requests.close()
                self._child.wait(_CLOSE_SECONDS)
            self._child.kill()
            with (
                self._send_lock,
                self._receive_lock,
            ):  # threads that wait for the pipes wake up soon
                self._pipes.requests.close()
                self._pipes.replies.close()
            self._remove_folder()

    def post_mortem(self) -> str:
        """Return how the process ended, and its last output; call it after `end`."""
        status = self._child.status
        if status is not None and self._in_namespace:
            status = signal_or_status(status)
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
        data: bytes = self._transfer(self._readable, lambda: self.replies.read(size))
        return data

    def write(self, data: memoryview) -> int:
        """Wait until the pipe accepts data and return how many bytes it took."""
        count: int = self._transfer(self._writable, lambda: self.requests.write(data))
        return count

    def _transfer(self, pipe: select.poll, transfer: Callable[[], Any]) -> Any:
        """Repeat a transfer when the pipe is ready, until it is made.

        Raises:
            EOFError: `abandoned` is set.
        """
        while not self.abandoned:
            if pipe.poll(_WAKE_MILLISECONDS) and (result := transfer()) is not None:
                return result
        raise EOFError("the worker was abandoned")


def _worker_command(namespace: str) -> tuple[list[str], bool]:
    """Return the command line of a worker, and whether it makes a namespace.

    Raises:
        OSError: a namespace is required, and there can be none.
    """
    bwrap, reason = ("", "") if namespace == "off" else find_bubblewrap()
    if bwrap:
        inside = [PARENT_PID_INSIDE if word == PARENT_PID else word for word in _COMMAND]
        return in_namespace(bwrap, inside), True
    if namespace == "required":
        raise OSError(f"verify.namespace=required: {reason}")
    return list(_COMMAND), False


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


def _worker_environment(folder: str, further_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables of a worker.

    It inherits those that are listed or named in the settings; the others may hold passwords. It
    can import everything that this process can. Unless this process sets PYTHONHASHSEED, hashes are
    fixed, so that a task that depends on them is the same in all workers.

    Args:
        folder: the folder for the worker's temporary files.
        further_names: names of variables besides the listed ones.
    """
    import_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {
        "PYTHONHASHSEED": "0",
        **inherited_variables(further_names),
        "PYTHONPATH": import_path,
        "TMPDIR": folder,
    }
