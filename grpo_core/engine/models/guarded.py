"""Try what a model folder brings as a program, with a deadline and a limit of memory.

One child process does it for this process (see `trial`). It starts in a tenth of a second, beside
whatever else is loaded, and a template takes there about as long as here. A child that does not
answer in time is killed with all that it started; the next request gets a new one.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_core.calls.child import Child, signal_name
from grpo_core.engine.models import trial

START_SECONDS = 60.0
"""Deadline for the start of the child, on a machine that may be busy."""
SECONDS = 8.0
"""Deadline for what takes milliseconds: a template, or patterns."""
MEGABYTES = 256
"""Memory that a template or a pattern may take."""
_KEPT_VARIABLES = ("PATH", "HOME", "TZ", "LANG", "LC_ALL", "LC_TIME", "LD_LIBRARY_PATH")
"""The variables of the environment that the child gets."""
_MAX_REPLY_BYTES = 8 * trial.MAX_TEXT
_CHUNK_BYTES = 2**16


class TrialError(Exception):
    """Report that the content failed."""


class OverrunError(TrialError):
    """Report that the content took too long or too much memory, or ended its process."""


class _Trials:
    """Hold the child process and exchange messages with it, one at a time."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._owner = 0
        self._is_ready = False
        self._templates: dict[str, int] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Start the child, unless it runs, without waiting for it."""
        with self._lock:
            self._running()

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the text of a template, which is sent once; later its number stands for it.

        Raises:
            TrialError: the content failed.
        """
        with self._lock:
            child = self._running()  # a new one has no templates yet
            number = self._templates.get(template)
            if number is None:
                number = len(self._templates)
                arguments: dict[str, Any] = {"template": template}
            else:
                arguments = {}
            arguments |= {"number": number, "variables": variables}
            text = self._ask(child, "render", SECONDS, MEGABYTES, arguments)
            self._templates[template] = number
            return str(text)

    def ask(self, operation: str, *, seconds: float, megabytes: int, **arguments: Any) -> Any:
        """Return the child's answer.

        Raises:
            TrialError: the content failed.
        """
        with self._lock:
            return self._ask(self._running(), operation, seconds, megabytes, arguments)

    def _ask(
        self,
        child: Child,
        operation: str,
        seconds: float,
        megabytes: int,
        arguments: Mapping[str, Any],
    ) -> Any:
        message = {"operation": operation, "megabytes": megabytes, "arguments": arguments}
        body = json.dumps(message, default=_placeholder).encode() + b"\n"
        try:
            if not self._is_ready:
                self._exchange(child, b"", START_SECONDS)
                self._is_ready = True
            reply = self._exchange(child, body, seconds)
        except BaseException:
            self._end()
            raise
        if "value" in reply:
            return reply["value"]
        raise (OverrunError if "overrun" in reply else TrialError)(str(reply.get("error")))

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._end()

    def _running(self) -> Child:
        """Return the child of this process; one that a forked process inherited is not its own."""
        if self._owner != os.getpid():
            self._child = None
        if self._child is not None and self._child.status is not None:
            self._end()
        if self._child is None:
            environ = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
            environ["PYTHONPATH"] = os.pathsep.join(filter(os.path.isabs, sys.path))
            command = [sys.executable, "-P", trial.__file__]
            self._child, self._owner = Child(command, environ), os.getpid()
            self._is_ready, self._templates = False, {}
            os.set_blocking(self._child.stdin.fileno(), False)
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None and self._owner == os.getpid():
            child.kill()

    def _exchange(self, child: Child, body: bytes, seconds: float) -> dict[str, Any]:
        """Send a message and return the next line of the child."""
        deadline = time.monotonic() + seconds
        unsent, parts, size = memoryview(body), [b""], 0
        poll = select.poll()  # select would refuse high numbers of descriptors
        poll.register(child.stdout, select.POLLIN)
        poll.register(child.stdin, select.POLLOUT if unsent else 0)
        while not parts[-1].endswith(b"\n"):
            left = deadline - time.monotonic()
            events = dict(poll.poll(max(left, 0.0) * 1000))
            if not events and left <= 0:
                raise OverrunError(f"it had not ended after {seconds:.0f} seconds")
            if unsent and child.stdin.fileno() in events:
                unsent = unsent[_written(child, unsent) :]
                if not unsent:
                    poll.modify(child.stdin, 0)
            if child.stdout.fileno() in events:
                parts.append(os.read(child.stdout.fileno(), _CHUNK_BYTES))
                size += len(parts[-1])
                if not parts[-1]:
                    raise OverrunError(_ending(child))
            if size > _MAX_REPLY_BYTES:
                raise OverrunError("its text is too long")
        reply: dict[str, Any] = json.loads(b"".join(parts))
        return reply


def _written(child: Child, data: memoryview) -> int:
    """Write what the child takes at once, and return how many bytes it took."""
    try:
        return child.stdin.write(data) or 0
    except BrokenPipeError:
        raise OverrunError(_ending(child)) from None


def _ending(child: Child) -> str:
    """Return why the child ended by itself."""
    child.wait(1.0)
    status = child.status or 0
    return (
        f"it ended its process by {signal_name(-status)}" if status < 0 else "it ended its process"
    )


def _placeholder(value: object) -> str:
    """Return what stands for a value that is not JSON: its type, without its methods."""
    return f"<{type(value).__name__}>"


_trials = _Trials()
atexit.register(_trials.close)
prepare = _trials.prepare


def render(template: str, variables: dict[str, Any]) -> str:
    """Return the text that a chat template makes of its variables.

    Raises:
        TrialError: the template failed, or took too long or too much memory.
    """
    return _trials.render(template, variables)


def match(forms: list[tuple[str, str]], names: list[str]) -> None:
    """Match patterns against names, to see that they end.

    Args:
        forms: pairs of a pattern and "whole", or "part" for a pattern inside another.
        names: the names.

    Raises:
        TrialError: a pattern is not valid, or takes too long.
    """
    _trials.ask("match", seconds=SECONDS, megabytes=MEGABYTES, forms=forms, names=names)


def try_tokenizer(path: Path) -> None:
    """Load a tokenizer.json and use it, to see that it ends.

    Raises:
        TrialError: it fails, or takes too long or too much memory.
    """
    megabytes = MEGABYTES + 40 * path.stat().st_size // 2**20
    seconds = SECONDS + path.stat().st_size / 2**20
    _trials.ask("tokenizer", seconds=seconds, megabytes=megabytes, path=str(path.absolute()))
