"""Compare a sandbox's throughput with that of another checkout, and measure each protection's cost.

    git worktree add /tmp/before COMMIT
    python examples/benchmarks/sandbox_pairs.py --before /tmp/before [--name docker] [--rounds 20]
        [--calls 400] [--out FILE.json]

Both checkouts run in turn, within a second of each other, so that a noisy machine disturbs both
alike; the result is the median of the ratios of all rounds. Every call is a fork of its own with a
trivial program; two callers use two jails. The bar is 0.85. The cost of each protection alone is
measured as root on Linux, in processes of this machine: microseconds beyond a plain fork.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BAR = 0.85
JAILS = 2
BACK_ENDS = {"bubblewrap": "Bubblewrap", "docker": "Docker"}
FORKS = 300


def serve(name: str) -> None:
    """Read numbers of calls from stdin, and answer each with the calls' times and their total."""
    from grpo_core import Program

    module = importlib.import_module(f"grpo_sandbox.{name}")
    config = getattr(module, f"{BACK_ENDS[name]}Config")(jails=JAILS)
    pool = getattr(module, BACK_ENDS[name])(config)
    seconds: list[float] = []

    async def caller(calls: int) -> None:
        for number in range(calls):
            started = time.perf_counter()
            ((outcome,),) = await pool.run([Program("def f(x): return x + 1", "f", [(number,)])])
            seconds.append(time.perf_counter() - started)
            if outcome.value != number + 1:
                raise RuntimeError(f"call {number} ended with {outcome}")

    async def callers(calls: int) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(caller(calls // JAILS) for _ in range(JAILS)))
        return time.perf_counter() - started

    asyncio.run(callers(20 * JAILS))  # starts every jail
    for line in sys.stdin:
        seconds.clear()
        whole = asyncio.run(callers(int(line)))
        print(json.dumps({"seconds": seconds, "whole": whole}), flush=True)
    asyncio.run(pool.close())


class Server:
    """The sandbox of a checkout, in a process of its own."""

    def __init__(self, checkout: Path, name: str) -> None:
        path = os.pathsep.join([str(checkout), str(checkout / "sandbox")])
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", "--name", name]
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=checkout,
        )
        self.seconds: list[float] = []
        self.rates: list[float] = []

    def measure(self, calls: int) -> float:
        """Make `calls` calls and return their number per second."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        self.seconds += answer["seconds"]
        self.rates.append(len(answer["seconds"]) / answer["whole"])
        return self.rates[-1]

    def summary(self) -> dict[str, float]:
        percentiles = statistics.quantiles(self.seconds, n=100)
        return {
            "calls_per_second": round(statistics.median(self.rates), 1),
            "p50_ms": round(1000 * percentiles[49], 2),
            "p99_ms": round(1000 * percentiles[98], 2),
        }

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


def compare(before: Path, name: str, *, rounds: int, calls: int) -> dict[str, Any]:
    """Return the results of both checkouts and the ratios of their rounds."""
    old, new = Server(before, name), Server(Path(__file__).resolve().parents[2], name)
    try:
        ratios = []
        for number in range(rounds):
            first, second = (old, new) if number % 2 else (new, old)
            first.measure(calls)
            second.measure(calls)
            ratios.append(new.rates[-1] / old.rates[-1])
        return {
            "before": old.summary(),
            "after": new.summary(),
            "ratio": {
                "median": round(statistics.median(ratios), 3),
                "lowest": round(min(ratios), 3),
                "highest": round(max(ratios), 3),
            },
        }
    finally:
        old.close()
        new.close()


def protections() -> dict[str, float]:
    """Return the microseconds that each protection alone adds to a call."""
    from grpo_sandbox.inside.filter import SystemCallFilter
    from grpo_sandbox.inside.places import OwnNamespaces
    from grpo_sandbox.inside.watch import OutputMemory

    libc = __import__("ctypes").CDLL(None, use_errno=True)
    capture, caps = OutputMemory(), {"result": 64_001, "stdout": 64_000, "stderr": 64_000}
    call_filter = SystemCallFilter.of_call(OwnNamespaces.system_calls)
    whole_filter = SystemCallFilter.of_jail(())

    def mount() -> None:
        libc.unshare(0x20000)
        libc.mount(b"call", folder.encode(), b"tmpfs", 14, b"size=16m,nr_inodes=1024")

    def renew() -> None:
        os.mkdir(f"{folder}/call")
        os.chmod(f"{folder}/call", 0o777)
        os.rmdir(f"{folder}/call")

    with tempfile.TemporaryDirectory() as folder:
        return {
            "the filter of a call, two system calls (bubblewrap)": forked(call_filter.apply),
            "for comparison: the whole filter in each call": forked(whole_filter.apply),
            "a folder mounted for the call (bubblewrap)": forked(mount),
            "a folder made for the call (Docker)": repeated(renew),
            "memory that children do not inherit": repeated(lambda: capture.prepare(caps)),
        }


def forked(work: Callable[[], None]) -> float:
    """Return the microseconds that `work` adds to a fork, as the median of pairs."""

    def fork(inside: Callable[[], None]) -> float:
        started = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            inside()
            os._exit(0)
        os.waitpid(pid, 0)
        return time.perf_counter() - started

    differences = [fork(work) - fork(lambda: None) for _ in range(FORKS)]
    return round(1e6 * statistics.median(differences), 1)


def repeated(work: Callable[[], None]) -> float:
    """Return the median time of `work` in microseconds."""
    seconds = []
    for _ in range(FORKS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return round(1e6 * statistics.median(seconds), 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", type=Path, help="another checkout, with the commit to compare with"
    )
    parser.add_argument("--name", default="docker", choices=sorted(BACK_ENDS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=400, help="calls of each side in each round")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.name)
        sys.exit(0)
    if options.before is None or not (options.before / "sandbox" / "grpo_sandbox").is_dir():
        parser.error(f"--before must name a checkout of this project; found {options.before}")
    cores = len(os.sched_getaffinity(0))
    report: dict[str, Any] = {
        "machine": (
            f"{cores} cores, {platform.machine()}, Linux {platform.release()}, "
            f"Python {platform.python_version()}"
        ),
        "sandbox": options.name,
        **compare(
            options.before.resolve(), options.name, rounds=options.rounds, calls=options.calls
        ),
        "microseconds_of_each_protection": protections() if os.geteuid() == 0 else "needs root",
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if report["ratio"]["median"] >= BAR else 1)
