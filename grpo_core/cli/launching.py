"""Start the processes of `--processes N` on this machine, and end them together.

They get the variables of torchrun (RANK, WORLD_SIZE and so on), which `grpo_core.engine.ranks`
reads, and a private folder to meet in instead of a port that others could reach first.
`accelerate launch` and torchrun stand on the same variables, but the first starts one process on a
CPU, both kill a process that saves for more than 30 seconds after Ctrl-C, and both print a
traceback of their own.

Each process has a process group of its own, so that Ctrl-C reaches this one alone. The first
process gets the signal; the others learn from it that a stop was requested.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

import typer

from grpo_core.calls.child import signal_name
from grpo_core.calls.meeting_folder import VARIABLE, MeetingFolder, meeting_folder
from grpo_core.cli.output import fail
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder

# -P: as in the console script, modules in the working directory are not found.
GRPO = (sys.executable, "-P", "-c", "from grpo_core.cli import main; main()")
"""The command `grpo` as this Python runs it."""

_LAUNCHER = "GRPO_LAUNCHER"
"""The variable with the process id of the launcher, for its children alone."""
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 20.0
"""How long the others may go on after one has failed: they may fail for the same reason, and save.

A process that was killed leaves nothing to wait for."""
_TAIL_BYTES = 20_000
"""How much of the end of a failed process's output is kept."""
_STOPPED = 128
"""Exit statuses from here on tell that a stop was requested."""


def is_later_rank() -> bool:
    """Tell whether this process is not the first of several; the first one writes and prints."""
    return int(os.environ.get("RANK", "0")) > 0


def processes_to_start(count: int | None) -> int:
    """Return how many processes this one has to start for `--processes COUNT`; 0 for none.

    A process that was started by `launch` is one of them. It will be killed when the launcher
    dies in any way.

    Args:
        count: the value of --processes.

    Raises:
        ConfigError: another launcher has started this process.
    """
    launcher = os.environ.get(_LAUNCHER)
    if launcher == str(os.getppid()):
        _die_with(int(launcher))
        return 0
    if count is None:
        return 0
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        found = ", ".join(
            f"{name}={os.environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in os.environ
        )
        raise ConfigError(
            f"--processes starts the processes itself, but a launcher such as torchrun has "
            f"started this one already ({found}); remove --processes, or use it without the "
            "launcher"
        )
    return count if count > 1 else 0


def launch(count: int, *, folder: Path | None, more: Sequence[str] = ()) -> NoReturn:
    """Run this command in `count` processes, and end with the exit status of the first.

    Only the first one has the terminal. What another one wrote is shown, and added to log.txt of
    the run, if it fails.

    Args:
        count: the number of processes.
        folder: the run folder; None if the command has none.
        more: arguments to add to those of this command.

    Raises:
        ConfigError: there is no place for the folder in which they meet.
        typer.Exit: otherwise.
    """
    processes = _Processes(count, folder)
    with (
        forwarding_signals(lambda: [process.popen for process in processes.started]) as forwarded,
        meeting_folder(count) as meeting,
    ):
        processes.forwarded = forwarded
        try:
            processes.start([*sys.argv[1:], *more], meeting)
            processes.wait()
        finally:
            processes.kill()
    processes.end()


@dataclass(slots=True)
class Forwarded:
    """Hold the first signal that was sent to a process while it waited for others."""

    number: int = 0
    """The number of the first signal; 0 for none."""


@contextlib.contextmanager
def forwarding_signals(
    processes: Callable[[], Sequence[subprocess.Popen[bytes]]],
) -> Iterator[Forwarded]:
    """Send what this process is sent to the first of its processes during the block.

    Ctrl-Z stops all of them with this one.

    Args:
        processes: returns those that run at that moment; each has a process group of its own.
    """
    forwarded = Forwarded()

    def forward(number: int, _: object) -> None:
        forwarded.number = forwarded.number or number
        for process in processes()[:1]:
            process.send_signal(number)

    def suspend(number: int, _: object) -> None:
        for process in processes():
            process.send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in processes():
            process.send_signal(signal.SIGCONT)

    handlers: dict[signal.Signals, Any] = {
        signal.SIGINT: forward,
        signal.SIGTERM: forward,
        signal.SIGTSTP: suspend,
        signal.SIGTTOU: signal.SIG_IGN,  # the first process may write to the terminal
    }
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = forward
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield forwarded
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class _Process:
    """One of the processes, and the file with its output; None for the first."""

    popen: subprocess.Popen[bytes]
    output: IO[bytes] | None

    def tail(self) -> str:
        """Return the end of what it wrote."""
        if self.output is None:
            return ""
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - _TAIL_BYTES))
        return self.output.read().decode(errors="replace").strip()


@dataclass(slots=True)
class _Processes:
    """All processes of one command, and how they end."""

    count: int
    folder: Path | None
    started: list[_Process] = field(default_factory=list)
    failed: tuple[int, int] | None = None
    """Rank and status of the process that ended the others."""
    forwarded: Forwarded = field(default_factory=Forwarded)
    """What this process was sent."""

    def start(self, arguments: Sequence[str], meeting: MeetingFolder) -> None:
        """Start them all; they meet in a folder."""
        shared = {
            **os.environ,
            "WORLD_SIZE": str(self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
            VARIABLE: str(meeting.path),
            _LAUNCHER: str(os.getpid()),
        }
        shared.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // self.count)))
        for rank in range(self.count):
            self.started.append(_start(rank, arguments, shared))
        if self.forwarded.number:  # it came before there was a process to send it to
            self.started[0].popen.send_signal(self.forwarded.number)

    def wait(self) -> None:
        """Wait until all have ended, or until the others have to be killed because one failed."""
        deadline: float | None = None
        while deadline is None or time.monotonic() < deadline:
            statuses = [process.popen.poll() for process in self.started]
            self.failed = self.failed or _first_failure(statuses)
            is_killed = self.failed is not None and self.failed[1] < 0
            # Without the first process, nothing is written.
            if is_killed or statuses[0] or None not in statuses:
                return
            if deadline is None and (self.failed or statuses[0] == 0):
                deadline = time.monotonic() + _GRACE_SECONDS
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Kill those that still run; the workers of a process end with it."""
        for process in self.started:
            process.popen.kill()
        for process in self.started:
            process.popen.wait()

    def end(self) -> NoReturn:
        """End this process as the first one has ended, or say which other one has failed."""
        status = self.started[0].popen.returncode
        number = self.forwarded.number
        if number and status == -number:  # it came before it could be handled
            raise typer.Exit(_STOPPED + number)
        # Where the first process has failed by itself, it has told the reason.
        if self.failed is None or (self.failed[1] > 0 and status > 0):
            raise typer.Exit(status)
        self._report(*self.failed)

    def _report(self, rank: int, status: int) -> NoReturn:
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"failed (status {status})"
        what = f"process {rank} of {self.count} {how}"
        tail = self.started[rank].tail()
        has_run = self.folder is not None and (self.folder / "config.json").exists()
        parts = [what]
        if tail:
            parts[0] += f": {tail.splitlines()[-1].removeprefix('error: ')}"
        if status == -signal.SIGKILL:
            parts.append("this may be for want of memory")
        parts.append("the others were ended")
        if self.folder is not None and has_run:
            if tail:
                RunFolder(self.folder).log(f"{what}; its output:\n{tail}")
                parts.append(f"its output is in {self.folder / 'log.txt'}")
            parts.append(f"continue with --resume {self.folder} --processes {self.count}")
        fail("; ".join(parts), status=1)


def _start(rank: int, arguments: Sequence[str], shared: Mapping[str, str]) -> _Process:
    """Start one process; only the first has the terminal."""
    command = [*GRPO, *arguments]
    output = tempfile.TemporaryFile() if rank else None  # noqa: SIM115 - read when all have ended
    popen = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        process_group=0,
    )
    return _Process(popen, output)


def _first_failure(statuses: Sequence[int | None]) -> tuple[int, int] | None:
    """Return rank and status of a process that has failed, of one that was killed if any was.

    Above 128 an exit status means that a stop was requested.
    """
    ended = [(rank, status) for rank, status in enumerate(statuses) if status is not None]
    killed = [(rank, status) for rank, status in ended if status < 0]
    failed = [(rank, status) for rank, status in ended if 0 < status < _STOPPED]
    return next(iter(killed + failed), None)


def _die_with(launcher: int) -> None:
    """Make the kernel kill this process when the launcher ends; nothing else stops it on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:
            os.kill(os.getpid(), signal.SIGKILL)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
