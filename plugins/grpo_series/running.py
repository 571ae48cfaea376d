"""Train the runs of a series one after the other, each in a process of its own.

Each process is the ordinary `grpo run`, so all memory is free again when it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_core import ConfigError
from grpo_core.api.runs import hold
from grpo_core.cli.launching import GRPO, Forwarded, forwarding_signals
from grpo_core.cli.output import remark
from grpo_series.folder import SeriesFolder, finished, has_begun

_PR_SET_PDEATHSIG = 1
_STOPPED = 128
"""Exit statuses from here on tell that a stop was requested."""
_WAIT_SECONDS = 300.0
"""How long to wait for a process that still writes to a run, as one that was just left behind."""
_POLL_SECONDS = 0.5


@dataclass(slots=True)
class SeriesEnd:
    """Say how the runs of a series ended in this command."""

    failed: dict[str, int] = field(default_factory=dict)
    """The exit status of each run that failed, by its name."""
    stopped: int = 0
    """The exit status that a request to stop gave; 0: there was none."""


def train_all(series: SeriesFolder, more: Sequence[str]) -> SeriesEnd:
    """Train what is not finished of a series; a run that fails does not end the others.

    Ctrl-C, SIGTERM and SIGHUP are sent to the run in progress, which saves and ends, and with it
    the series.

    Args:
        series: the series.
        more: further arguments of each run.
    """
    running: list[subprocess.Popen[bytes]] = []
    end = SeriesEnd()
    with forwarding_signals(lambda: running) as forwarded:
        for number, (name, run) in enumerate(zip(series.names, series.runs, strict=True), 1):
            if finished(run):
                remark(f"run {number} of {len(series.names)}, {name}: finished before")
                continue
            _wait_until_free(run, forwarded)
            if not forwarded.number:
                remark(f"run {number} of {len(series.names)}, {name}")
                running[:] = [_start(series, name, more)]
                if forwarded.number:  # it came before there was a process to send it to
                    running[0].send_signal(forwarded.number)
                status = running[0].wait()
            if forwarded.number:
                status = _STOPPED + forwarded.number
            if status < 0 or 0 < status < _STOPPED:
                end.failed[name] = status
            elif status:
                end.stopped = status
                break
    return end


def _start(series: SeriesFolder, name: str, more: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the process of a run, which begins it or continues it."""
    run = series.path / name
    arguments = (
        ["--resume", str(run)]
        if has_begun(run)
        else ["--recipe", str(series.recipe(name)), "--out", str(run)]
    )
    return subprocess.Popen(
        [*GRPO, "run", *arguments, *more],
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=_end_with_parent(os.getpid()),
    )


def _end_with_parent(parent: int) -> Callable[[], None] | None:
    """Return a function that makes the kernel stop a new process when this one is killed.

    It gets a SIGTERM, at which a run saves. Only Linux has this; elsewhere the run goes on, and the
    series waits for it when it is continued.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here, as a new process should do little

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(_STOPPED + signal.SIGTERM)

    return end_with_parent


def _wait_until_free(run: Path, forwarded: Forwarded) -> None:
    """Wait for a process that still writes to a run: one that outlived its series, and saves.

    Raises:
        ConfigError: it goes on for minutes.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    is_told = False
    while run.is_dir() and not forwarded.number:
        try:
            hold(run).release()
            return
        except ConfigError:
            if time.monotonic() > deadline:
                raise
        if not is_told:
            remark(f"another process is writing {run}; waiting until it has ended")
            is_told = True
        time.sleep(_POLL_SECONDS)
