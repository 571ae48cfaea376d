"""`grpo run` in one or several processes, as `--processes` or torchrun starts them."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
GRPO = ("-c", "from grpo_core.cli import main; main()")


def launch(processes: int, *arguments: str, log: Path, command: str = "run", **more: str) -> int:
    """`grpo run --processes N`, or another command; its exit status."""
    (status,) = ended([begin(processes, command, *arguments, log=log, **more)])
    return status


def begin(
    processes: int, command: str, *arguments: str, log: Path, **more: str
) -> subprocess.Popen[bytes]:
    """A command with `--processes N`, which is under way."""
    options = ("--processes", str(processes), *arguments)
    (launcher,) = start(1, *GRPO, command, *options, log=log, **more)
    return launcher


def start(processes: int, *arguments: str, log: Path, **more: str) -> list[subprocess.Popen[bytes]]:
    """Python with `arguments`, so many times, as torchrun starts it. Each writes to a file of its own beside `log`; more: environment variables."""
    port, started = _free_port(), []
    for rank in range(processes):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
        meeting = {name: str(value) for name, value in ranks.items()}
        meeting = {**meeting, "MASTER_ADDR": "127.0.0.1"} if processes > 1 else {}
        env = {**os.environ, **meeting, "OMP_NUM_THREADS": "1", **more}
        command = [sys.executable, *arguments]
        with (log.parent / f"{log.name}.{rank}").open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=env, cwd=HERE)
        started.append(process)
    return started


def _free_port() -> int:
    """Below those that the system hands out, so that nobody else gets it before the processes meet."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def ended(processes: Sequence[subprocess.Popen[bytes]], *, seconds: float = 600) -> list[int]:
    """Exit statuses; when one process has failed, the others are ended, as torchrun does. Raises TimeoutError if they run on."""
    deadline = time.monotonic() + seconds
    while None in (statuses := {process.poll() for process in processes}) and statuses <= {None, 0}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the processes are still running after {seconds:g} s")
        time.sleep(0.02)
    if any(process.poll() for process in processes):
        for process in processes:
            process.kill()
    return [process.wait() for process in processes]


def said(log: Path) -> str:
    return "".join(path.read_text() for path in sorted(log.parent.glob(f"{log.name}.*")))
