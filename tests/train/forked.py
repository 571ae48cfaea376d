"""`grpo` commands that begin as forks of a process which has imported everything, in milliseconds instead of seconds."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .zygote import Zygote

_SECONDS = 600.0


class Forked:
    """A command that is under way: what subprocess.Popen would offer of it."""

    def __init__(
        self, zygote: Zygote, arguments: tuple[str | Path, ...], *, logs: Path, cwd: Path
    ) -> None:
        self._zygote = zygote
        self._logs = (logs / "out", logs / "err")
        self.returncode: int | None = None
        out, err = (os.open(path, os.O_CREAT | os.O_WRONLY) for path in self._logs)
        try:
            self.pid = zygote.start(
                [str(argument) for argument in arguments],
                out=out,
                err=err,
                env=os.environ,
                cwd=cwd,
                plots=False,
            )
        finally:
            os.close(out)
            os.close(err)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._zygote.poll(self.pid)
        return self.returncode

    def communicate(self, *, timeout: float = _SECONDS) -> tuple[str, str]:
        """Wait for the end and return what it wrote to stdout and to stderr.

        Raises:
            TimeoutError: it has not ended in `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the command is still running after {timeout:g} s")
            time.sleep(0.02)
        out, err = (path.read_text(encoding="utf-8") for path in self._logs)
        return out, err


class Forks:
    """Starts commands."""

    def __init__(self, zygote: Zygote, logs: Path) -> None:
        self._zygote, self._logs = zygote, logs

    def start(self, *arguments: str | Path, cwd: Path) -> Forked:
        """Begin a command."""
        logs = Path(tempfile.mkdtemp(dir=self._logs))
        return Forked(self._zygote, arguments, logs=logs, cwd=cwd)

    def run(self, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Carry out a command."""
        started = self.start(*arguments, cwd=cwd)
        out, err = started.communicate()
        assert started.returncode is not None
        return subprocess.CompletedProcess(arguments, started.returncode, out, err)


@contextmanager
def forks() -> Iterator[Forks]:
    """Open a process that forks; at the end it ends with all that it has started."""
    with tempfile.TemporaryDirectory(prefix="grpo-forks-") as logs:
        zygote = Zygote()
        try:
            yield Forks(zygote, Path(logs))
        finally:
            zygote.close()
