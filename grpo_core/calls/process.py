"""A worker process: spawned (never forked), asked one thing at a time, killed with its children."""

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
_POLITE_SECONDS = 1.0
_REAP_SECONDS = 5.0
_KILL_ROUNDS = 20
_ROUND_SECONDS = 0.01
_LEFTOVERS_SECONDS = 5.0
_CHUNK_BYTES = 65_536
_FLOOD_PAUSE_SECONDS = 0.005
_WAKE_MILLISECONDS = 500
_SUPERVISED = sys.platform == "linux"


class WorkerProcess:
    """One `python -m grpo_core.verify.worker` with a folder for its files, which goes with it.

    It has a session of its own, so Ctrl-C does not reach it. On Linux a reaper stands between
    the trainer and the worker (see `grpo_core.calls.reaper`); elsewhere only what is left in the
    worker's process group is ended with it.
    """

    def __init__(self, further_variables: Iterable[str] = ()) -> None:
        folder = tempfile.mkdtemp(prefix=f"{_folder_prefix()}{os.getpid()}-")
        self._remove_folder = weakref.finalize(self, remove_folder, folder)  # also at the exit
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
        self._drain = threading.Thread(target=self._keep_tail, name=name, daemon=True)
        self._drain.start()
        self._asking, self._ending = threading.Lock(), threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Return whether the process lives and has sent nothing unrequested."""
        return self._process.poll() is None and self._pipes.silent

    def ask(self, message: Mapping[str, Any]) -> Reply:
        """Wait for the reply to `message`; `end`, called at the deadline, ends the wait.

        Raises:
            InvalidReplyError: what came is no reply to this message.
            OSError, EOFError: the process has ended.
        """
        with self._asking:
            self._tail = b""
            request_id = new_request_id()
            write_frame(self._pipes, json.dumps({**message, "id": request_id}).encode())
            try:
                body = read_frame(self._pipes, limit=MAX_REPLY_BYTES)
            except ValueError as error:
                raise InvalidReplyError(str(error)) from None
            return parse_reply(body, request_id)

    def end(self, *, politely: bool = False) -> None:
        """Kill the process and all that it started, reap it, and remove its folder.

        It takes a bounded time, whatever the process does.

        Args:
            politely: let it close its environment first; for a process that is not asked anything.
        """
        with self._ending:
            if self._ended:
                return
            self._ended = True
            self._pipes.abandoned = True
            if politely:
                self._pipes.requests.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_POLITE_SECONDS)
            _kill(self._process)
            self._drain.join(_POLITE_SECONDS)
            with self._asking:  # whoever waits for the pipes wakes up soon
                self._pipes.requests.close()
                self._pipes.replies.close()
            self._remove_folder()

    def post_mortem(self) -> str:
        """Return how it ended and what it said last; for after `end`."""
        status = self._process.returncode
        if status is None:
            how = "could not be ended"
        elif status < 0:
            how = f"was killed by {_signal_name(-status)}"
        else:
            how = f"exited with status {status}"
        return f"the worker process {how}{self.last_words()}"

    def last_words(self) -> str:
        text = self._tail.decode(errors="replace").strip()
        return f"; its last output:\n{text}" if text else ""

    def _keep_tail(self) -> None:
        stderr = cast(RawIOBase, self._process.stderr)
        with stderr:
            while chunk := stderr.read(_CHUNK_BYTES):
                self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
                if len(chunk) == _CHUNK_BYTES:  # the pipe was full: let the worker wait
                    time.sleep(_FLOOD_PAUSE_SECONDS)


class _Pipes:
    """The two pipes to a worker, for a thread that must not wait for ever.

    A pipe ends when all that hold its other end have ended. Where a process escapes and holds it,
    or goes on using it, the thread wakes up a moment after `abandoned` was set.
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
    def silent(self) -> bool:
        """Return whether there is nothing to read."""
        return not self._readable.poll(0)

    def read(self, size: int) -> bytes:
        data = None
        while data is None:
            self._wait(self._readable)
            data = self.replies.read(size)
        return data

    def write(self, data: memoryview) -> int:
        count = None
        while count is None:
            self._wait(self._writable)
            count = self.requests.write(data)
        return count

    def _wait(self, pipe: select.poll) -> None:
        while not self.abandoned:
            if pipe.poll(_WAKE_MILLISECONDS):
                return
        raise EOFError("the worker was given up")


def _command() -> list[str]:
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
    """End a worker and what it started, and reap it."""
    if _SUPERVISED:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # the worker may have stopped it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_SECONDS)
        if process.poll() is None:  # the worker still keeps it from its work
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
    """Remove the folders of this machine's trainers that were killed before they could do so.

    The number in the name of a folder is the trainer's.
    """
    prefix = _folder_prefix()
    limit = time.monotonic() + _LEFTOVERS_SECONDS
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        trainer = folder.name.removeprefix(prefix).partition("-")[0]
        if trainer.isdecimal() and not _is_alive(int(trainer)):
            remove_folder(folder, seconds=limit - time.monotonic())


def _folder_prefix() -> str:
    """Return a prefix that is this machine's own.

    A shared folder for temporary files may hold those of other machines and containers, whose
    processes have the same numbers.
    """
    return f"grpo-worker-{zlib.crc32(platform.node().encode()):08x}-"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has a number of that size
        return False
    except PermissionError:
        pass
    return True
