"""Play episodes in a shell while workers, containers and the trainer are killed.

    python examples/benchmarks/episode_kills.py [--episodes 1000] [--open 64] [--name docker]

A process plays the references of the environment `terminal`, many at once, each in a session of the
sandbox. Another one kills by SIGKILL, at random times, workers, containers and the whole process,
which is then started again and plays what has no verdict yet. The bars: every episode has exactly
one verdict, every verdict is that of the reference (it passed), and at the end there is no
container, process, folder or open file that was not there before. Exits with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grpo_core import TaskKey
from grpo_core.config.overrides import build_config
from grpo_core.runs.lines import read_lines
from grpo_core.verify.episodes.playing import play
from grpo_core.verify.sources import Sources

WORKER = "grpo_core.verify.workers.worker"
LABEL = "grpo.sandbox"
SECONDS_BETWEEN_KILLS = 1.0
TRAINER_SHARE = 0.03
"""Share of the kills that hit the whole process."""
CLEAN_SECONDS = 30.0
"""How long after the end something may still be there."""


async def drive(out: Path, episodes: int, most: int, name: str) -> None:
    """Play the episodes that have no line in `out` yet, at most `most` at once."""
    done = {line["episode"] for line in read_lines(out)}
    config = build_config(
        [
            {
                "environment": "terminal",
                "verify": {"cache": "off"},
                "sandbox": {"name": name, "settings": {"sessions": most}},
            }
        ]
    )
    slots, open_now, widest = asyncio.Semaphore(most), 0, 0
    with out.open("a", encoding="utf-8") as file:
        async with Sources.of(config, {}) as sources:

            async def attempt(number: int) -> None:
                nonlocal open_now, widest
                async with slots:
                    open_now += 1
                    widest = max(widest, open_now)
                    key = TaskKey("terminal", "train", number, 0, (number % 6) / 5)
                    tasks = await sources.tasks([key])
                    (turns,) = await sources.references(tasks)
                    played = await play(
                        sources,
                        tasks[0],
                        turns or "",
                        max_turns=sources["terminal"].env.max_turns,
                        judge=True,
                    )
                    open_now -= 1
                    verdict = played.verdict
                    assert verdict is not None
                    line = {"episode": number, "passed": verdict.passed, "error": verdict.error}
                    file.write(json.dumps(line) + "\n")
                    file.flush()

            await asyncio.gather(*(attempt(n) for n in range(episodes) if n not in done))
    left = {"open": len(os.listdir("/proc/self/fd")), "children": len(children(os.getpid()))}
    print(json.dumps({"widest": widest, **left}), flush=True)


def children(pid: int) -> list[int]:
    """Return the ids of all processes that a process has started, directly or not."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        started = parents.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def workers(pid: int) -> list[int]:
    """Return the ids of the worker processes that a process has started."""

    def command(child: int) -> str:
        try:
            return Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        except OSError:
            return ""

    return [child for child in children(pid) if WORKER in command(child)]


def containers(owner: int) -> list[str]:
    """Return the ids of the sandbox's containers that a process has made."""
    command = ["docker", "ps", "-aq", "--filter", f"label={LABEL}={owner}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def kill_one(process: subprocess.Popen[str], rng: random.Random, name: str) -> str:
    """Kill something at random, and return what it was; "" if there was nothing."""
    if rng.random() < TRAINER_SHARE:
        process.kill()
        return "trainer"
    if name == "docker" and rng.random() < 0.5:
        found = containers(process.pid)
        if found:
            subprocess.run(["docker", "kill", rng.choice(found)], capture_output=True, check=False)
            return "container"
        return ""
    pids = workers(process.pid)
    if pids:
        os.kill(rng.choice(pids), signal.SIGKILL)
        return "worker"
    return ""


def leftovers(owners: Sequence[int]) -> list[str]:
    """Return what the killed and ended processes have left, after some time to end."""
    deadline = time.monotonic() + CLEAN_SECONDS
    while (left := present(owners)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def present(owners: Sequence[int]) -> list[str]:
    """Return the owners' containers and folders, and what this process has started."""
    folders = Path(tempfile.gettempdir()).glob("grpo-worker-*")
    return [
        *(container for owner in owners for container in containers(owner)),
        *(str(folder) for folder in folders if folder.name.split("-")[3] in map(str, owners)),
        *map(str, children(os.getpid())),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--open", type=int, default=64, help="episodes that are open at once")
    parser.add_argument("--name", default="docker", help="the sandbox: docker or bubblewrap")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        asyncio.run(drive(options.drive, options.episodes, options.open, options.name))
        return 0
    rng, kills, started, ends = random.Random(options.seed), Counter[str](), time.monotonic(), ""
    owners: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "verdicts.jsonl")
        out.touch()
        command = [sys.executable, __file__, *sys.argv[1:], "--drive", str(out)]
        while not ends:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            owners.append(process.pid)
            while process.poll() is None:
                time.sleep(rng.expovariate(1 / SECONDS_BETWEEN_KILLS))
                kills[kill_one(process, rng, options.name)] += process.poll() is None
            ends = process.communicate()[0]
            kills["trainer"] += not ends
        lines = list(read_lines(out))
    del kills[""]
    left, errors = leftovers(owners), [line["error"] for line in lines if line["error"]]
    counts = Counter(line["episode"] for line in lines)
    passed = sum(line["passed"] for line in lines)
    state = json.loads(ends)
    print(
        f"{options.name}: {len(counts)} episodes, {len(lines)} verdicts, {passed} passed, "
        f"{len(errors)} errors; at most {state['widest']} open at once; killed: "
        + ", ".join(f"{count} {kind}s" for kind, count in sorted(kills.items()))
        + f"; left: {', '.join(left) or 'nothing'}, {state['children']} children; "
        f"{time.monotonic() - started:.0f} s"
    )
    for error, count in Counter(errors).most_common(5):
        print(f"{count} times: {error}")
    whole = set(counts.values()) == {1} and len(counts) == passed == options.episodes
    return 0 if whole and not left and not state["children"] else 1


if __name__ == "__main__":
    sys.exit(main())
