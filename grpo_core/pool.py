"""Worker processes that can be ended at any moment: spawned (never forked), killed with all they started, reaped, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any, cast

from grpo_core.deadline import DeadlineError, Slots, describe, in_thread, within
from grpo_core.wire import read_frame, write_frame

_TAIL_BYTES = 2000
_POLITE_SECONDS = 1.0
_REAP_SECONDS = 5.0


class WorkerLostError(Exception):
    """A worker could not start, died, or was closed while it was needed: an infrastructure error."""


class WorkerProcess:
    """One `python -m grpo_core.worker`, in a session of its own (Ctrl-C does not reach it) and with a folder that goes with it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_folder_prefix()}{os.getpid()}-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", "-m", "grpo_core.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=_worker_environ(self._folder.name),
        )
        self._requests, self._replies = cast(RawIOBase, self._process.stdin), cast(RawIOBase, self._process.stdout)
        self._tail = b""
        self._drain = threading.Thread(target=self._keep_tail, name="grpo worker stderr", daemon=True)
        self._drain.start()
        self._ending = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Blocks until the reply comes or the process ends; the caller keeps the deadline by killing it."""
        self._tail = b""
        write_frame(self._requests, message)
        return read_frame(self._replies)

    def end(self, *, politely: bool = False) -> None:
        """Kill the process and everything in its session, reap it, remove its folder. politely: let it close its environment first."""
        with self._ending:
            if self._requests.closed:
                return
            self._requests.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLITE_SECONDS if politely else 0)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAP_SECONDS)
            self._drain.join(_POLITE_SECONDS)
            self._replies.close()
            self._folder.cleanup()

    def post_mortem(self) -> str:
        """How it ended and what it said last; for after `end`."""
        status = self._process.returncode
        how = f"was killed by {signal.Signals(-status).name}" if status is not None and status < 0 else f"exited with status {status}"
        return f"the worker process {how}{self.last_words()}"

    def last_words(self) -> str:
        text = self._tail.decode(errors="replace").strip()
        return f"; its last output:\n{text}" if text else ""

    def _keep_tail(self) -> None:
        stderr = cast(RawIOBase, self._process.stderr)
        while chunk := stderr.read(65_536):
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        stderr.close()


class WorkerPool:
    """At most `size` workers, started when needed, one request in flight in each; further requests wait.

    boot: the first message of each worker. memory_mb: a worker that holds more after a request is replaced.
    """

    def __init__(self, boot: Mapping[str, Any], *, size: int, start_seconds: float, memory_mb: float) -> None:
        self._boot = boot
        self._slots = Slots(size)
        self._start_seconds = start_seconds
        self._memory_mb = memory_mb
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._endings: list[threading.Thread] = []
        self._closed = False
        _remove_leftovers()

    @property
    def pids(self) -> list[int]:
        """The processes that are there now."""
        return sorted(worker.pid for worker in [*self._idle, *self._busy])

    async def ask(self, request: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """The reply of some worker. Raises DeadlineError (the worker is dead by then) or WorkerLostError."""
        async with self._slots.here():
            worker = self._take_idle() or await self._start()
            reply = await self._exchange(worker, {**request, "seconds": seconds}, seconds)
            if reply.get("memory_mb", 0.0) > self._memory_mb:
                await self._end(worker)
            else:
                self._busy.discard(worker)
                self._idle.append(worker)
            return reply

    async def close(self) -> None:
        """End every worker and wait until none is left."""
        self._closed = True
        for worker in list(self._busy):
            self._begin_end(worker)
        for worker in self._idle:
            self._begin_end(worker, politely=True)
        self._idle.clear()
        for thread in self._endings:
            await in_thread(thread.join)
        self._endings.clear()

    def _take_idle(self) -> WorkerProcess | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                self._busy.add(worker)
                return worker
            self._begin_end(worker)
        return None

    async def _start(self) -> WorkerProcess:
        """Spawned in the thread of the event loop: on Linux a worker dies with the thread that made it, so that one must last."""
        if self._closed:
            raise WorkerLostError("the verifier is closed")
        worker = WorkerProcess()
        self._busy.add(worker)
        try:
            reply = await self._exchange(worker, self._boot, self._start_seconds)
        except DeadlineError as error:
            raise WorkerLostError(f"the worker did not start within {self._start_seconds:g} s{error}") from None
        if "error" in reply:
            await self._end(worker)
            raise WorkerLostError(f"the worker could not build the environment: {reply['error']}")
        return worker

    async def _exchange(self, worker: WorkerProcess, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            return await within(in_thread(worker.ask, message), seconds)
        except DeadlineError:
            await self._end(worker)
            raise DeadlineError(worker.last_words()) from None
        except (OSError, EOFError) as error:
            await self._end(worker)
            raise WorkerLostError("the verifier is closed" if self._closed else worker.post_mortem()) from error
        except asyncio.CancelledError:
            self._begin_end(worker)
            raise
        except Exception as error:
            await self._end(worker)
            raise WorkerLostError(f"the exchange with the worker failed: {describe(error)}") from error

    async def _end(self, worker: WorkerProcess) -> None:
        await in_thread(self._begin_end(worker).join)

    def _begin_end(self, worker: WorkerProcess, *, politely: bool = False) -> threading.Thread:
        self._busy.discard(worker)
        thread = threading.Thread(target=worker.end, kwargs={"politely": politely}, name="grpo worker end")
        thread.start()
        self._endings = [t for t in self._endings if t.is_alive()] + [thread]
        return thread


def _remove_leftovers() -> None:
    """The folders of this machine's trainers that were killed before they could remove them: the number in the name is the trainer's."""
    prefix = _folder_prefix()
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        trainer = folder.name.removeprefix(prefix).partition("-")[0]
        if trainer.isdigit() and not _alive(int(trainer)):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays


def _folder_prefix() -> str:
    """A shared folder for temporary files may hold those of other machines and containers, whose processes have the same numbers."""
    return f"grpo-worker-{zlib.crc32(platform.node().encode()):08x}-"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _worker_environ(folder: str) -> dict[str, str]:
    """What is importable here is importable there. Hashes are fixed: a task that depends on them is then the same in all workers."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {"PYTHONHASHSEED": "0", **os.environ, "PYTHONPATH": path, "TMPDIR": folder}
