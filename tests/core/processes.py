"""What tests ask of the machine's processes."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def workers_below(process: int) -> list[int]:
    """List the workers among the descendants of a process, without what is above each."""
    command = ["ps", "-ww", "-eo", "pid=,ppid=,args="]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in output.splitlines()]
    family, size = {process}, 0
    while len(family) != size:
        size = len(family)
        family |= {int(pid) for pid, parent, *_ in rows if int(parent) in family}
    return [int(pid) for pid, _, *args in rows if int(pid) in family and _is_worker(" ".join(args))]


def _is_worker(command: str) -> bool:
    program = command.partition(" ")[0]
    above = "reaper.py" in command or program.endswith("bwrap")
    return "-m grpo_core.verify.workers.worker" in command and not above


def running_with(argument: object) -> list[str]:
    """List the command lines of running processes that have this argument, in any namespace."""
    command = ["ps", "-ww", "-eo", "args="]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line for line in output.splitlines() if str(argument) in line.split()]


def is_alive(pid: int) -> bool:
    """Tell whether a process runs. A zombie does not, though its number is still taken."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until a condition holds, and return whether it does."""
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    return condition()
