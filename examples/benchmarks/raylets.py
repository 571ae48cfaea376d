"""Two nodes of Ray on this machine, for ray_verification.py.

The second is in a network namespace of its own, as on another machine, where that is allowed (root
on Linux, with `ip`); else it is beside the first.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Raylets:
    """Two nodes that run."""

    address: str
    """Address of the cluster."""
    apart: bool
    """Whether the second is in a network namespace of its own."""
    second: subprocess.Popen[bytes]
    """`ray start` of the second node, the parent of its raylet."""

    def kill_second(self) -> None:
        """Kill the raylet of the second node, as if the machine had failed."""
        for process in psutil.Process(self.second.pid).children(recursive=True):
            if process.name() == "raylet":
                process.send_signal(signal.SIGKILL)


@contextmanager
def two_raylets(*, cpus: float, second_path: str = "") -> Iterator[Raylets]:
    """Start two nodes, and end them.

    Args:
        cpus: number of CPUs of each, as far as Ray counts them.
        second_path: PYTHONPATH of the second; "": as here.
    """
    name, net = f"grpo{os.getpid()}", f"10.213.{os.getpid() % 256}"
    apart = _make_namespace(name, net)
    host, other = (f"{net}.1", f"{net}.2") if apart else ("127.0.0.1", "127.0.0.1")
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    # Token authentication, so that nobody else on the network can use the cluster.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    folder = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))  # short: sockets are in it
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    ray += [f"--num-cpus={cpus:g}"]
    head = [*ray, "--head", f"--port={port}", f"--node-ip-address={host}"]
    head += ["--include-dashboard=false", f"--temp-dir={folder / 'a'}"]
    joined = [*ray, f"--address={host}:{port}", f"--node-ip-address={other}"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(head, folder / "head.log", dict(os.environ)))
        _wait_for(started[0], folder / "head.log")
        within = ["ip", "netns", "exec", name] if apart else []
        path = {"PYTHONPATH": second_path} if second_path else {}
        second = _start([*within, *joined], folder / "second.log", {**os.environ, **path})
        started.append(second)
        _wait_for(started[1], folder / "second.log")
        yield Raylets(f"{host}:{port}", apart, second)
    finally:
        for process in reversed(started):
            _end(process)
        if apart:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _make_namespace(name: str, net: str) -> bool:
    """Make a network namespace that is connected to this one; return whether that is allowed."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    inside = ["ip", "netns", "exec", name, "ip"]
    commands = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b"],
        ["ip", "link", "set", f"{name}b", "netns", name],
        ["ip", "addr", "add", f"{net}.1/24", "dev", f"{name}a"],
        ["ip", "link", "set", f"{name}a", "up"],
        [*inside, "addr", "add", f"{net}.2/24", "dev", f"{name}b"],
        [*inside, "link", "set", f"{name}b", "up"],
        [*inside, "link", "set", "lo", "up"],
    ]
    for command in commands:
        if subprocess.run(command, capture_output=True, check=False).returncode:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
            return False
    return True


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment
        )


def _wait_for(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a node says that it runs."""
    deadline = time.monotonic() + START_SECONDS
    while "Ray runtime started" not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"a node of Ray did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a node with all its processes."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.kill()
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(30)
