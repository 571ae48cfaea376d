"""Give a worker a process namespace and a /proc of its own, through bubblewrap on Linux.

The worker keeps its user, files and network. It cannot see the trainer's processes, so it can
neither read their variables and memory nor signal or trace them. All of its processes end with the
first process of the namespace.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

PARENT_PID_INSIDE = "1"
"""The process id of a worker's parent, as the worker sees it: bubblewrap's process 1."""
_SIGNALS_FROM = 128
"""Bubblewrap exits with this plus the number of the signal that ended the worker."""
_PROBE_SECONDS = 20.0
_ROOT_CAPABILITIES = (
    "CAP_SYS_ADMIN",  # could unmount /proc, and so uncover the machine's
    "CAP_SYS_RAWIO",  # reads the memory of the machine
    "CAP_SYS_MODULE",
    "CAP_BPF",
    "CAP_PERFMON",
)
"""What a worker of root must not keep, since it leads out of the namespace."""


def in_namespace(bwrap: str, command: list[str]) -> list[str]:
    """Return the command line that runs `command` in a namespace of its own.

    Args:
        bwrap: path of bubblewrap.
        command: the path of the program, and its arguments.
    """
    dropped = _ROOT_CAPABILITIES if os.geteuid() == 0 else ()
    return [
        bwrap,
        *("--unshare-pid", "--die-with-parent"),
        # The order matters: the second of these covers what the first one shows at /proc.
        *("--dev-bind", "/", "/", "--proc", "/proc"),
        *(argument for name in dropped for argument in ("--cap-drop", name)),
        "--",
        *command,
    ]


def signal_or_status(status: int) -> int:
    """Return the exit status of what bubblewrap ran, or the negative number of a signal."""
    return _SIGNALS_FROM - status if status > _SIGNALS_FROM else status


@functools.cache
def find_bubblewrap() -> tuple[str, str]:
    """Return the path of a bubblewrap that makes namespaces here, or "", and why there is none.

    It is tried once in each process, which takes some 20 ms.
    """
    if sys.platform != "linux":
        return "", "only Linux has process namespaces"
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "", "bubblewrap is not installed (apt install bubblewrap)"
    try:
        process = subprocess.run(
            in_namespace(bwrap, ["/bin/sh", "-c", "exec true"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PROBE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"bubblewrap cannot be run ({error})"
    if process.returncode == 0:
        return bwrap, ""
    said = " ".join(process.stderr.split())[:200] or f"status {process.returncode}"
    return "", f"this system lets bubblewrap make none ({said}); allow user namespaces"


def why_no_namespace(setting: str) -> str:
    """Return one sentence about workers that could have a namespace and have none; "" otherwise.

    Args:
        setting: the value of `verify.namespace`.
    """
    _, reason = find_bubblewrap() if setting != "off" else ("", "")
    if not reason:
        return ""
    return (
        "verifiers in worker processes can read the variables and the memory of this process, "
        f"since they have no process namespace: {reason}; verify.namespace=off silences this"
    )
