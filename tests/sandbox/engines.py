"""A Docker engine of a test's own, so that it may be broken: its images come from the engine that is there."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..commandline import words

IMAGE = "grpo-sandbox"


def missing(reason: str) -> None:
    """Skip, or fail where GRPO_NEED_SANDBOX says that nothing may be missing."""
    if os.environ.get("GRPO_NEED_SANDBOX"):
        pytest.fail(reason)
    pytest.skip(reason)


class Engine:
    """dockerd in a folder; nothing of it is outside, and it has no network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder / 'docker.sock'}"

    def start(self) -> None:
        command = [*words("dockerd --bridge none --iptables=false -H"), self.host]
        for option, name in {"pidfile": "pid", "data-root": "data", "exec-root": "exec"}.items():
            command += [f"--{option}", str(self.folder / name)]
        deadline = time.monotonic() + 100
        self._spawn(command)
        while self.docker("info", check=False).returncode != 0:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            # One that was killed leaves containers whose remains its successor waits for, on a busy
            # machine for longer than it has patience. A service manager would start it again, too.
            if self._process.poll() is not None:
                self._spawn(command)
            time.sleep(0.1)

    def _spawn(self, command: list[str]) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(60)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["docker", "-H", self.host, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=120)


@contextmanager
def engine_of_its_own(*, with_image: bool) -> Iterator[Engine]:
    """Skips without root, dockerd, or (with_image) an engine that has the image."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        missing("needs root and dockerd")
    with tempfile.TemporaryDirectory(
        prefix="grpo-engine-"
    ) as name:  # short: a socket's path may have 107 characters
        engine = Engine(Path(name))
        engine.start()
        try:
            if with_image:
                saved = Path(name, "image.tar")
                command = ["docker", "save", IMAGE, "-o", str(saved)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    missing(f"no image: {done.stderr.strip()}")
                engine.docker("load", "-i", str(saved))
            yield engine
        finally:
            engine.stop()
            unmount_below(Path(name))


def unmount_below(folder: Path) -> None:
    """A daemon that was killed leaves its mounts behind, which keep the folder from being removed."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in sorted(
        (place for place in places if Path(place).is_relative_to(folder)), reverse=True
    ):
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
