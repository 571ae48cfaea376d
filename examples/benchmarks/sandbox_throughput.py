"""Measure a sandbox's isolated calls per second and its memory, compared with `docker exec`.

    grpo sandbox build
    python examples/benchmarks/sandbox_throughput.py [--name bubblewrap] [--calls 2000]
        [--long 20000] [--out FILE.json]

Every call is a fork of its own with a trivial program; there are as many callers as jails. The
sandbox and `docker exec` alternate in the same run, so that a noisy machine disturbs both. The bars
for Docker on two cores: 300 calls a second, ten times as many as with `docker exec`, no more memory
after the calls of --long than after a fifth of them (within 5 MB), and no call waits for a program
that hangs. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from grpo_core import Limits, Program
from grpo_core.config.settings import SandboxConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import open_sandbox

ADD_ONE = "def f(x): return x + 1"
LIMITS = Limits(wall_seconds=2, cpu_seconds=1)
ROUNDS = 4


async def timed(
    call: Callable[[int], Awaitable[Any]], count: int, *, callers: int
) -> tuple[float, list[float]]:
    """Return the calls per second, and the seconds of each call as measured by its caller."""
    seconds: list[float] = []
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            started = time.perf_counter()
            value = await call(number)
            seconds.append(time.perf_counter() - started)
            if value != number + 1:
                raise RuntimeError(f"call {number} returned {value!r}")

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return count / (time.perf_counter() - started), seconds


class Exec:
    """The usual way: a sleeping container, and for every call a `docker exec` with a new Python."""

    def __init__(self) -> None:
        import docker

        self._client = docker.from_env(max_pool_size=64)
        self._container = self._client.containers.run(
            "grpo-sandbox", ["sleep", "3600"], detach=True, network_mode="none", auto_remove=True
        )

    async def call(self, number: int) -> int:
        return await asyncio.to_thread(self._call, number)

    def _call(self, number: int) -> int:
        result = self._container.exec_run(
            ["python3", "-I", "-S", "-c", f"{ADD_ONE}\nprint(f({number}))"]
        )
        return int(result.output)

    def close(self) -> None:
        self._container.remove(force=True)
        self._client.close()


def memory_mb() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def supervisors_mb() -> float:
    """Return the largest resident memory of a supervisor on this machine in MiB."""
    sizes = [0.0]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"grpo_sandbox.inside.supervisor" in (folder / "cmdline").read_bytes():
                sizes.append(
                    int((folder / "statm").read_text().split()[1])
                    * os.sysconf("SC_PAGE_SIZE")
                    / 2**20
                )
        except OSError:  # it has ended meanwhile
            continue
    return max(sizes)


async def main(name: str, calls: int, long: int, jails: int) -> dict[str, Any]:
    sandbox = open_sandbox(PluginHost(), SandboxConfig(name=name, settings={"jails": jails}))
    exec_ = Exec() if name == "docker" else None

    async def call(number: int) -> Any:
        ((outcome,),) = await sandbox.run([Program(ADD_ONE, "f", [(number,)], LIMITS)])
        return outcome.value

    try:
        await timed(call, 20 * jails, callers=jails)  # starts every jail
        rates: list[float] = []
        exec_rates: list[float] = []
        latencies: list[float] = []
        for _ in range(ROUNDS):
            rate, seconds = await timed(call, calls // ROUNDS, callers=jails)
            rates.append(rate)
            latencies += seconds
            if exec_ is not None:
                exec_rates.append(
                    (await timed(exec_.call, max(20, calls // ROUNDS // 20), callers=jails))[0]
                )
        results: dict[str, Any] = {
            "machine": machine(),
            "sandbox": name,
            "jails": jails,
            "calls": calls,
        }
        results["calls_per_second"] = statistics.median(rates)
        results["milliseconds"] = {
            "median": 1000 * statistics.median(latencies),
            "p99": 1000 * statistics.quantiles(latencies, n=100)[98],
        }
        if exec_rates:
            results["docker_exec_per_second"] = statistics.median(exec_rates)
            results["ratio"] = statistics.median(rates) / statistics.median(exec_rates)
        results["hanging"] = await hanging(sandbox, call, jails)
        results["memory_mb"] = await memory(call, long, jails)
        return results
    finally:
        await sandbox.close()
        if exec_ is not None:
            exec_.close()


async def hanging(
    sandbox: Any, call: Callable[[int], Awaitable[Any]], jails: int
) -> dict[str, float]:
    """Run a program that hangs together with 200 other calls.

    Returns:
        Its deadline, its seconds, and those of the slowest of the other calls.
    """
    started = time.perf_counter()
    hung = asyncio.ensure_future(
        sandbox.run([Program("import time\ndef f(x): time.sleep(1000)", "f", [(1,)], LIMITS)])
    )
    _, seconds = await timed(call, 200, callers=jails)
    ((outcome,),) = await hung
    if outcome.status != "timeout_wall":
        raise RuntimeError(f"the hanging program ended with {outcome.status}")
    return {
        "deadline": LIMITS.wall_seconds,
        "its_seconds": time.perf_counter() - started,
        "slowest_neighbour": max(seconds),
    }


async def memory(
    call: Callable[[int], Awaitable[Any]], long: int, jails: int
) -> list[dict[str, float]]:
    """Make `long` calls and measure the memory after each fifth of them.

    Returns:
        The resident memory of this process and of the largest supervisor, in MiB.
    """
    sizes = []
    for fifth in range(1, 6):
        await timed(call, long // 5, callers=jails)
        sizes.append(
            {
                "calls": fifth * long // 5,
                "this_process": memory_mb(),
                "largest_supervisor": supervisors_mb(),
            }
        )
    return sizes


def missed(results: dict[str, Any]) -> list[str]:
    """Return the bars that were missed."""
    first, last = results["memory_mb"][0], results["memory_mb"][-1]
    bars = {
        "300 calls a second": results["sandbox"] != "docker" or results["calls_per_second"] >= 300,
        "10 x docker exec": results.get("ratio", 10) >= 10,
        "flat memory": all(
            last[who] - first[who] < 5 for who in ("this_process", "largest_supervisor")
        ),
        "a hanging program delays no other": results["hanging"]["slowest_neighbour"]
        < LIMITS.wall_seconds / 2,
    }
    return [bar for bar, met in bars.items() if not met]


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores, {platform.machine()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="docker", choices=["docker", "bubblewrap"])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--long", type=int, default=20_000)
    parser.add_argument("--jails", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measured = asyncio.run(main(options.name, options.calls, options.long, options.jails))
    measured["missed"] = missed(measured)
    text = json.dumps(measured, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(1 if measured["missed"] else 0)
