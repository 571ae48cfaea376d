"""Measure how long a sandbox takes to open a session and to run a command in it.

    grpo sandbox build
    python examples/benchmarks/sandbox_sessions.py [--name bubblewrap] [--times 300] [--out FILE]

Commands alternate with function calls of the same sandbox, one at a time, so that a noisy machine
disturbs both. The bars: half of the warm sessions open in under 100 ms, and the command `true`
takes at most twice as long as a call. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from grpo_core import Program
from grpo_core.config.settings import SandboxConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import open_sandbox

ADD_ONE = Program("def f(x): return x + 1", "f", [(1,)])
FILES = {"main.py": "print('hello')\n", "tests/data.txt": "1 2 3\n"}
AT_ONCE = 64


async def timed(work: Callable[[], Awaitable[Any]], seconds: list[float]) -> None:
    """Do `work`, and append how long it took."""
    started = time.perf_counter()
    await work()
    seconds.append(time.perf_counter() - started)


async def main(name: str, times: int) -> dict[str, Any]:
    """Return the medians in milliseconds, and their ratio."""
    sandbox = open_sandbox(PluginHost(), SandboxConfig(name=name, settings={"jails": 1}))
    opened: list[float] = []
    commands: list[float] = []
    calls: list[float] = []

    async def open_and_close() -> None:
        started = time.perf_counter()
        session = await sandbox.session(FILES)
        opened.append(time.perf_counter() - started)
        await session.close()

    try:
        started = time.perf_counter()
        session = await sandbox.session(FILES)  # the first one finds out what its jail shows
        first = time.perf_counter() - started
        await sandbox.run([ADD_ONE])
        await open_and_close()  # makes the jail that the others find warm
        opened.clear()
        for _ in range(times):
            await open_and_close()
            await timed(lambda: session.exec("true"), commands)
            await timed(lambda: sandbox.run([ADD_ONE]), calls)
        await session.close()
        at_once: list[float] = []
        await timed(lambda: many(sandbox), at_once)
    finally:
        await sandbox.close()
    return {
        "sandbox": name,
        "first_session_ms": 1000 * first,
        "open_warm_session_ms": 1000 * statistics.median(opened),
        "command_ms": 1000 * statistics.median(commands),
        "call_ms": 1000 * statistics.median(calls),
        "ratio": statistics.median(commands) / statistics.median(calls),
        f"{AT_ONCE}_sessions_s": at_once[0],
    }


async def many(sandbox: Any) -> None:
    """Open sessions so that all are open at once, run a command in each, and close them."""
    sessions = await asyncio.gather(*(sandbox.session(FILES) for _ in range(AT_ONCE)))
    results = await asyncio.gather(*(session.exec("cat main.py") for session in sessions))
    if any(result.stdout != FILES["main.py"] for result in results):
        raise RuntimeError("a session has lost its file")
    await asyncio.gather(*(session.close() for session in sessions))


def missed(results: dict[str, Any]) -> list[str]:
    """Return the bars that were missed."""
    bars = {
        "a warm session opens in under 100 ms": results["open_warm_session_ms"] < 100,
        "a command takes at most twice as long as a call": results["ratio"] <= 2,
    }
    return [bar for bar, met in bars.items() if not met]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="docker", choices=["docker", "bubblewrap"])
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measured = asyncio.run(main(options.name, options.times))
    measured["missed"] = missed(measured)
    text = json.dumps(measured, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(1 if measured["missed"] else 0)
