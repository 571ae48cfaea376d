"""One running supervisor: requests go in, replies come out.

Any failure of the supervisor itself is a JailLostError, never a verdict.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core import Limits
from grpo_sandbox.clock import CoreClock
from grpo_sandbox.inside.frames import LENGTH_BYTES, MAX_BODY_BYTES, REPLY, STATUSES, pack
from grpo_sandbox.inside.watch import STREAMS

START_SECONDS, SCAN_SECONDS = 20.0, 180.0
"""How long a supervisor may take to start, and to look for forbidden packages in its jail."""
GRACE_SECONDS = 8.0
"""How much longer than a program's own deadline its supervisor may take to end the program and
clean up: a supervisor that takes longer is broken, or its machine is stopped."""
_DOCKER_HEADER = 8
_STDOUT = 1
_STDERR_BYTES = 2000


class JailLostError(Exception):
    """The jail could not be started, died, or does not answer.

    Attributes:
        out_of_memory: Whether the kernel killed it because its own memory limit was reached.
    """

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


@dataclass(frozen=True, slots=True)
class SupervisorEnd:
    """Describe how a supervisor ended."""

    how: str = ""
    """A description; "" if it is not known."""
    out_of_memory: bool = False
    """Whether the kernel killed it because its memory limit was reached."""


class Jail:
    """A supervisor behind two descriptors. Blocking; only `interrupt` is for other threads.

    Args:
        name: Name of the jail in messages.
        writer: Descriptor of the supervisor's stdin.
        reader: Descriptor of its stdout; it may be the same socket as `writer`.
        multiplexed: Whether the reader carries Docker's stream of both outputs.
        start_seconds: How long it may take to report that it is ready.
        supervisor: Returns the supervisor's process, or None if this machine does not show it.
        end: Kills the supervisor in any state, and returns what is known about its end.
        interrupt: Makes the supervisor end soon; quick, and harmless at any time before `end`.

    Raises:
        JailLostError: It does not report in time that it is ready.
    """

    def __init__(
        self,
        name: str,
        *,
        writer: int,
        reader: int,
        end: Callable[[], SupervisorEnd],
        interrupt: Callable[[], None],
        multiplexed: bool = False,
        start_seconds: float = START_SECONDS,
        supervisor: Callable[[], int | None],
    ) -> None:
        self.name = name
        self.jobs = 0
        self._writer, self._reader, self._multiplexed = writer, reader, multiplexed
        self._end, self._interrupt = end, interrupt
        self._ending = threading.Lock()
        self._ended = False
        self._raw = b""
        self._buffer = bytearray()
        self._stderr = b""
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        ready = self._receive_head(time.monotonic() + start_seconds)
        self.python = str(ready.get("python", "?"))
        self.visible = [str(path) for path in ready.get("visible", [])]
        self._supervisor = supervisor()

    def call(
        self, source: str, entry: str, arguments: list[Any], limits: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Run one call and return the supervisor's reply.

        Args:
            arguments: As `inside.values.encode` returns them.
            limits: As `limits_to_json` returns them.

        Returns:
            status, exit, cpu_seconds, wall_seconds (without the time for which the jail was
            stopped), kept (a KeptSeconds, or None if it is not known), clean (whether nothing is
            left in the jail, and its memory never ran out, which Docker would attribute to a later
            call); result, stdout, stderr as texts.

        Raises:
            JailLostError: There was no reply, or none that a supervisor writes.
        """
        body = json.dumps({"source": source, "entry": entry, "input": arguments}).encode()
        reply = self.request("call", body, limits)
        texts = {name: reply[name].decode("utf-8", "replace") for name in STREAMS}
        return {**reply, **texts, "clean": reply["clean"] and not reply["ran_out"]}

    def request(
        self, kind: str, body: bytes = b"", limits: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send one request and return the supervisor's reply.

        Args:
            kind: "call", or a request of a session: "begin", "exec", "write", "read" or "end".
            body: What the child reads that serves the request.
            limits: As for `call`; "begin" and "end" need none.

        Returns:
            As `call`, with `ran_out` for the jail's memory apart from `clean`, and the streams as
            bytes.

        Raises:
            JailLostError: There was no reply, or none that a supervisor writes.
        """
        self.jobs += 1
        limits = dict(limits or {})
        seconds = float(limits.get("wall_seconds", 0.0))
        deadline = time.monotonic() + seconds + GRACE_SECONDS
        clock = CoreClock(self._supervisor, seconds) if self._supervisor and seconds else None
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"a request has {len(body):,} bytes; at most {MAX_BODY_BYTES:,} fit")
        self._send(pack({"kind": kind, "size": len(body), "limits": limits}) + body, deadline)
        status, wait_status, cpu, wall, clean, ran_out, *sizes = REPLY.unpack(
            self._take(REPLY.size, deadline, clock)
        )
        if status >= len(STATUSES):
            raise self._lost("its reply is not one of a supervisor")
        parts = [self._take(size, deadline) for size in sizes]
        return {
            "status": STATUSES[status],
            "exit": wait_status,
            "cpu_seconds": cpu,
            "wall_seconds": wall,
            "kept": clock.kept(wall, cpu) if clock else None,
            "clean": bool(clean),
            "ran_out": bool(ran_out),
            **dict(zip(STREAMS, parts, strict=True)),
        }

    @property
    def is_alive(self) -> bool:
        """Return whether the supervisor waits for a call: it has not ended or written anything."""
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        return not self._ended and not poller.poll(0)

    def interrupt(self) -> None:
        """Make a running call end with JailLostError soon; any thread may call this."""
        with self._ending:
            if not self._ended:
                self._interrupt()

    def close(self) -> None:
        """End the supervisor and everything in its jail."""
        self._end_once()

    def _end_once(self) -> SupervisorEnd:
        with self._ending:
            if self._ended:
                return SupervisorEnd()
            self._ended = True
            return self._end()

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(self._writer, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._writer, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._lost(str(error)) from error

    def _receive_head(self, deadline: float) -> dict[str, Any]:
        size = int.from_bytes(self._take(LENGTH_BYTES, deadline), "big")
        try:
            head = json.loads(self._take(size, deadline))
        except ValueError as error:
            raise self._lost(f"its reply is not JSON ({error})") from error
        if not isinstance(head, dict):
            raise self._lost("its reply is not an object")
        return head

    def _take(self, size: int, deadline: float, clock: CoreClock | None = None) -> bytes:
        if size > MAX_BODY_BYTES:
            raise self._lost("its reply is too large to be one")
        while len(self._buffer) < size:
            self._wait(self._reader, select.POLLIN, deadline, clock)
            try:
                chunk = os.read(self._reader, 1 << 20)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._lost(str(error)) from error
            if not chunk:
                raise self._lost("its stream ended")
            self._feed(chunk)
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _feed(self, chunk: bytes) -> None:
        if not self._multiplexed:
            self._buffer += chunk
            return
        self._raw += chunk
        while len(self._raw) >= _DOCKER_HEADER:
            kind, size = self._raw[0], int.from_bytes(self._raw[4:_DOCKER_HEADER], "big")
            if len(self._raw) < _DOCKER_HEADER + size:
                return
            content = self._raw[_DOCKER_HEADER : _DOCKER_HEADER + size]
            self._raw = self._raw[_DOCKER_HEADER + size :]
            if kind == _STDOUT:
                self._buffer += content
            else:
                self._stderr = (self._stderr + content)[-_STDERR_BYTES:]

    def _wait(
        self, descriptor: int, event: int, deadline: float, clock: CoreClock | None = None
    ) -> None:
        poller = select.poll()
        poller.register(descriptor, event)
        while clock and time.monotonic() + clock.tick < deadline:
            if poller.poll(clock.tick * 1000):
                return
            clock.sample()
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise self._lost("it does not answer")

    def _lost(self, why: str) -> JailLostError:
        end = SupervisorEnd()
        with contextlib.suppress(Exception):  # the description of its end is optional
            end = self._end_once()
        stderr = self._stderr.decode(errors="replace").strip()
        parts = [
            f" ({end.how})" if end.how else "",
            f"; it wrote: {stderr}" if stderr else "",
        ]
        return JailLostError(
            f"the jail {self.name} was lost: {why}{''.join(parts)}", out_of_memory=end.out_of_memory
        )


def limits_to_json(limits: Limits) -> dict[str, Any]:
    """Return the limits of one call in the form that a supervisor takes."""
    names = (
        "cpu_seconds",
        "wall_seconds",
        "memory_mb",
        "output_bytes",
        "result_bytes",
        "processes",
        "file_mb",
    )
    return {name: getattr(limits, name) for name in names}
