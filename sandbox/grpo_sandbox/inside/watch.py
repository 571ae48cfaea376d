"""Watches one call from outside: captures its output, enforces its deadline, records its end."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import time
from typing import Any

from grpo_sandbox.inside.frames import REPLY, REQUESTS, STATUSES

STREAMS = ("result", "stdout", "stderr")
STARTED = b"\x01"
"""Written by a child to its result before it starts the program; without it, the program never
ran."""
TICKS_PER_CALL = 40
SHORTEST_TICK, LONGEST_TICK = 0.02, 0.5
STALL_SECONDS = 0.5
"""If a supervisor wakes up this much later than it should, it or its machine was stopped."""
_VIEWS, _NUMBERS = 64, 512
"""More memory views and more numbers than a call ever has at once."""


def tick_seconds(wall_seconds: float) -> float:
    """Return how often a call with this time limit is looked at, here and from outside.

    So a stop of a twentieth of the limit is noticed.
    """
    return min(LONGEST_TICK, max(SHORTEST_TICK, wall_seconds / TICKS_PER_CALL))


class OutputMemory:
    """Memory for replies and the output of calls, which forked processes do not inherit.

    One call's output must not be in the memory of the next call's process, where it could be read.
    The bytes go from the pipe into this memory and from there into the reply, and nowhere else.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._start: dict[str, int] = {}
        self._cap: dict[str, int] = {}
        self.size: dict[str, int] = {}

    def prepare(self, caps: dict[str, int]) -> None:
        """Make room for one call: `caps` bytes of each stream, and one more to detect an excess."""
        self._cap, self.size = caps, dict.fromkeys(caps, 0)
        total = REPLY.size
        for name, cap in caps.items():
            self._start[name] = total
            total += cap + 1
        if len(self._memory) < total:
            self._memory.close()
            self._memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_DONTFORK)

    def take(self, name: str, reader: int) -> int:
        """Read once from the pipe `reader`, and return the number of bytes, 0 at its end."""
        first = self._start[name] + self.size[name]
        last = self._start[name] + self._cap[name] + 1
        with memoryview(self._memory)[first:last] as room:
            count = os.readv(reader, [room])
        self.size[name] += count
        return count

    def is_over(self, name: str) -> bool:
        """Return whether the stream has more bytes than its cap."""
        return self.size[name] > self._cap[name]

    def started(self) -> bool:
        """Return whether the child started the program."""
        return self.size["result"] > 0 and self._memory[REPLY.size : REPLY.size + 1] == STARTED

    def reply(
        self,
        status: str,
        wait_status: int = 0,
        cpu: float = 0.0,
        wall: float = 0.0,
        *,
        clean: bool,
        ran_out: bool = False,
    ) -> list[memoryview]:
        """Return the reply to a request, ready to be written; see `frames.REPLY`."""
        parts = self.parts()
        numbers = (STATUSES.index(status), wait_status, cpu, wall, clean, ran_out)
        REPLY.pack_into(self._memory, 0, *numbers, *map(len, parts))
        return [memoryview(self._memory)[: REPLY.size], *parts]

    def forget(self) -> None:
        """Overwrite the sizes of a call's output.

        Freed objects stay in memory, which children inherit, so new objects have to replace them.
        """
        self.size = dict.fromkeys(self.size, 0)
        view = memoryview(self._memory)
        [view[:0] for _ in range(_VIEWS)]
        list(range(-_NUMBERS, -5))  # without the small integers that Python caches

    def parts(self) -> list[memoryview]:
        """Return the captured bytes of each stream, up to its cap and without the start mark."""
        view = memoryview(self._memory)
        parts = []
        for name in STREAMS:
            first, size = self._start[name], min(self.size[name], self._cap[name])
            skipped = min(size, len(STARTED)) if name == "result" else 0
            parts.append(view[first + skipped : first + size])
        return parts


class ChildWatch:
    """Follows a child until it ends, its time is up, or it writes too much.

    Attributes:
        over: The stream to which it wrote too much, or None.
        late: Whether its deadline passed.
        stalled_seconds: How long this jail was stopped as a whole meanwhile.
        status: Its wait status once it has ended, else None.
        usage: Its resource usage once it has ended.
    """

    def __init__(self, pid: int, readers: dict[str, int], capture: OutputMemory) -> None:
        self.pid, self._readers, self._capture = pid, readers, capture
        self.over: str | None = None
        self.late = False
        self.stalled_seconds = 0.0
        self.status: int | None = None
        self.usage: Any = None
        self._pidfd = os.pidfd_open(pid)
        self._poller = select.poll()
        self._poller.register(self._pidfd, select.POLLIN)
        self._poller.register(REQUESTS, 0)  # reports when the caller has closed the stream
        for reader in readers.values():
            os.set_blocking(reader, False)
            self._poller.register(reader, select.POLLIN)

    def until(self, deadline: float, tick: float) -> None:
        """Follow the child up to `deadline`, in seconds of the monotonic clock.

        It wakes up every `tick` seconds, by which those outside see that it is not stopped. Time
        during which this jail was stopped as a whole does not count: nothing in it could run.
        """
        while self.status is None and self.over is None and not self.late:
            before = time.monotonic()
            wait = min(deadline - before, tick)
            ready = self._poll(wait) if wait > 0 else []
            stalled = time.monotonic() - before - max(wait, 0.0)
            if stalled > STALL_SECONDS:
                deadline += stalled
                self.stalled_seconds += stalled
            self.late = not ready and time.monotonic() >= deadline
            if self._pidfd in ready:
                self.reap()
            for name, reader in self._readers.items():
                if reader in ready or self.status is not None:
                    self._drain(name, reader)
        os.close(self._pidfd)

    def reap(self) -> None:
        """Read the status of the child, which has ended."""
        _, self.status, self.usage = os.wait4(self.pid, 0)

    def reap_killed(self, seconds: float) -> bool:
        """Wait for the child, which has been killed; return whether it ended in time."""
        pidfd = os.pidfd_open(self.pid)
        try:
            if not select.select([pidfd], [], [], seconds)[0]:
                return False
        finally:
            os.close(pidfd)
        self.reap()
        return True

    def _poll(self, seconds: float) -> list[int]:
        events = self._poller.poll(seconds * 1000)
        if any(descriptor == REQUESTS for descriptor, _ in events):
            os._exit(0)  # the end of process 1 ends the jail
        return [descriptor for descriptor, _ in events]

    def _drain(self, name: str, reader: int) -> None:
        """Read the available bytes, up to the cap."""
        while self.over is None:
            try:
                count = self._capture.take(name, reader)
            except BlockingIOError:
                return
            if count == 0:
                with contextlib.suppress(KeyError):
                    self._poller.unregister(reader)
                return
            if self._capture.is_over(name):
                self.over = name
