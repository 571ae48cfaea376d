"""Decides whether a program or the infrastructure is to blame when a call does not end as calls do.

A call that loses its jail, is killed, or waits until its deadline may be the program's doing or the
machine's. So a known-good program, the probe, is run while no suspect runs. If the probe fails, the
infrastructure is unavailable: all calls wait, with growing pauses. If it passes, the suspect runs
again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


class UnavailableError(Exception):
    """The infrastructure is unavailable, and calls do not wait for it any longer."""


class BlameGate:
    """Lets suspects wait for a passing probe, and run again. Thread-safe.

    Any number of suspects may run at once; a probe runs only while none of them does. One probe
    serves all suspects whose failure came before its start.

    Args:
        name: Name of the sandbox in messages.
        probe: Runs a known-good program in a fresh jail; returns why that failed, or "".
        patience_seconds: How long an outage may last before `wait` gives up.
    """

    def __init__(self, name: str, probe: Callable[[], str], *, patience_seconds: float) -> None:
        self._name = name
        self._probe = probe
        self._patience_seconds = patience_seconds
        self._changed = threading.Condition()
        self._waiting = 0
        self._running = 0
        self._probing = False
        self._begun = 0
        self._passed = 0
        self._failed = 0
        self._reason = ""
        self._closed = False
        self._unavailable_since: float | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._next_probe_at = 0.0

    def wait(self, abandoned: Callable[[], bool]) -> None:
        """Return once a probe has passed that began after this call, while no suspect ran.

        Args:
            abandoned: Returns whether the answer is no longer needed; called after each `wake`.

        Raises:
            UnavailableError: The probes have failed for `patience_seconds`, `close` was called, or
                the answer is not needed any more.
        """
        with self._changed:
            needed = self._begun + 1
            self._waiting += 1
            try:
                while self._passed < needed:
                    if self._closed or abandoned():
                        raise UnavailableError(
                            f"{self._name} was closed, or the request was cancelled"
                        )
                    if self._failed >= needed and (reason := self._gave_up()):
                        raise UnavailableError(reason)
                    pause = self._next_probe_at - time.monotonic()
                    if self._probing or self._running:
                        self._changed.wait()
                    elif pause > 0:
                        self._changed.wait(pause)
                    else:
                        self._run_probe()
            finally:
                self._waiting -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Make all waiting calls fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Make all waiting calls check whether their answers are still needed."""
        with self._changed:
            self._changed.notify_all()

    def open(self) -> None:
        """Undo `close`."""
        with self._changed:
            self._closed = False

    @contextlib.contextmanager
    def suspect_running(self) -> Iterator[None]:
        """Hold back probes while a suspect runs inside this `with` block."""
        with self._changed:
            while self._probing or self._waiting:
                self._changed.wait()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _run_probe(self) -> None:
        """Run one probe without holding the lock, which the caller holds."""
        self._probing = True
        self._begun += 1
        number = self._begun
        reason = "the probe was broken off"
        self._changed.release()
        try:
            reason = self._probe()
        finally:
            self._changed.acquire()
            self._probing = False
            self._settle(number, reason)
            self._changed.notify_all()

    def _settle(self, number: int, reason: str) -> None:
        log = logging.getLogger(__name__)
        now = time.monotonic()
        if not reason:
            self._passed = number
            if self._unavailable_since is not None:
                log.warning(
                    "%s is available again after %.0f s", self._name, now - self._unavailable_since
                )
            self._unavailable_since = None
            self._pause_seconds = FIRST_PAUSE_SECONDS
            self._next_probe_at = 0.0
            return
        self._failed, self._reason = number, reason
        if self._unavailable_since is None:
            self._unavailable_since = now
            log.warning(
                "%s is unavailable: %s; waiting for it, at most %g s",
                self._name,
                reason,
                self._patience_seconds,
            )
        self._next_probe_at = now + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _gave_up(self) -> str:
        """Return why waiting is over, or "" if it is not."""
        if self._unavailable_since is None:
            return ""
        seconds = time.monotonic() - self._unavailable_since
        if seconds <= self._patience_seconds:
            return ""
        return f"{self._name} has been unavailable for {seconds:.0f} s: {self._reason}"
