"""One running supervisor: requests go in, replies come out, and whatever goes wrong with it is a JailLostError, never a verdict."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Any

from grpo_core import Limits
from grpo_sandbox.supervisor import HEADER_BYTES, MAX_FRAME_BYTES

START_SECONDS = 20.0
GRACE_SECONDS = 8.0
"""How much longer than a program's own deadline its supervisor may take, which ends and cleans up: beyond that it is broken."""
_DOCKER_HEADER = 8
_STDOUT = 1


class JailLostError(Exception):
    """The jail could not be started, died, or does not answer: the machine's failure, not the program's."""


class Jail:
    """A supervisor behind two descriptors. Blocking; used by one thread at a time.

    writer, reader: its stdin and stdout, or twice the same socket. multiplexed: the reader carries Docker's stream of both outputs.
    end: kills it, whatever state it is in, and returns what is known about its end.
    """

    def __init__(self, name: str, *, writer: int, reader: int, end: Callable[[], str], multiplexed: bool = False) -> None:
        self.name = name
        self.jobs = 0
        self._writer, self._reader, self._end, self._multiplexed = writer, reader, end, multiplexed
        self._raw = b""
        self._buffer = b""
        self._complaints = b""
        os.set_blocking(writer, False)
        os.set_blocking(reader, False)
        self.python = str(self._receive(time.monotonic() + START_SECONDS).get("python", "?"))

    def call(self, source: str, entry: str, arguments: list[Any], limits: Mapping[str, Any]) -> dict[str, Any]:
        """The supervisor's reply to one call. arguments: as `supervisor.encode` gives them."""
        self.jobs += 1
        deadline = time.monotonic() + float(limits["wall_seconds"]) + GRACE_SECONDS
        body = json.dumps({"source": source, "entry": entry, "input": arguments, "limits": limits}).encode("utf-8", "surrogatepass")
        self._send(len(body).to_bytes(HEADER_BYTES, "big") + body, deadline)
        return self._receive(deadline)

    def close(self) -> None:
        """End the supervisor and everything in its jail."""
        self._end()

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

    def _receive(self, deadline: float) -> dict[str, Any]:
        size = int.from_bytes(self._take(HEADER_BYTES, deadline), "big")
        if size > MAX_FRAME_BYTES:
            raise self._lost("its reply is no frame")
        try:
            reply: dict[str, Any] = json.loads(self._take(size, deadline))
        except ValueError as error:
            raise self._lost(f"its reply is no JSON ({error})") from error
        return reply

    def _take(self, size: int, deadline: float) -> bytes:
        while len(self._buffer) < size:
            self._wait(self._reader, select.POLLIN, deadline)
            try:
                chunk = os.read(self._reader, 1 << 20)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._lost(str(error)) from error
            if not chunk:
                raise self._lost("its stream ended")
            self._feed(chunk)
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
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
            content, self._raw = self._raw[_DOCKER_HEADER : _DOCKER_HEADER + size], self._raw[_DOCKER_HEADER + size :]
            if kind == _STDOUT:
                self._buffer += content
            else:
                self._complaints = (self._complaints + content)[-2000:]

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poller = select.poll()
        poller.register(descriptor, event)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise self._lost("it does not answer")

    def _lost(self, why: str) -> JailLostError:
        how = ""
        with contextlib.suppress(Exception):  # what is known of its end is a help, not the point
            how = self._end()
        said = self._complaints.decode(errors="replace").strip()
        return JailLostError(f"the jail {self.name} was lost: {why}{f' ({how})' if how else ''}{f'; it said: {said}' if said else ''}")


def limits_to_json(limits: Limits) -> dict[str, Any]:
    """As the supervisor takes them."""
    return {name: getattr(limits, name) for name in Limits.__slots__}
