"""Common parts of the comparisons: processes that take turns, and a description of the machine."""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Side:
    """A process that waits for a line before each of its steps.

    It answers with "@" and a line of JSON. From its first step on it is stopped, with its children,
    while it is not its turn: some engines keep the cores busy while they wait.
    """

    def __init__(self, command: list[str], settings: Mapping[str, Any], log: Path) -> None:
        self.log = log
        self.steps: list[dict[str, float]] = []
        # In a process group of its own, but in this session: if this process ends, the system
        # continues stopped processes and sends them SIGHUP.
        self._process = subprocess.Popen(
            [*command, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            text=True,
            process_group=0,
        )

    def step(self) -> dict[str, float]:
        """Let the process take a step, and return its measurements."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("@"):
                self._signal(signal.SIGSTOP)
                self.steps.append(json.loads(line[1:]))
                return self.steps[-1]
            with self.log.open("a") as log:
                log.write(line)
        raise RuntimeError(f"it ended: {self.log.read_text()[-3000:]}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def medians(self) -> dict[str, float]:
        """Return the median of each measurement, without the first step, which is for warm-up."""
        return {
            name: statistics.median(step[name] for step in self.steps[1:]) for name in self.steps[0]
        }


def machine(dtype: str) -> str:
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{torch.get_num_threads()} threads, {platform.machine()}{gpu}, "
        f"torch {torch.__version__}, {dtype}"
    )
