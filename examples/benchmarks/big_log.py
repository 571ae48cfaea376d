"""Measure how fast the index of a large run opens, filters, pages and searches.

`python examples/benchmarks/big_log.py --run RUN --out FOLDER` writes a run folder of 1 GB from the
lines of a real run: each group again and again at later steps, with the words of its completions in
another order. It builds the index and times every action in a process of its own, the first after
the log has grown by a group. It exits with 1 if an action takes more than 2 s or 500 MB of memory.
`--plain` leaves the log uncompressed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grpo_core.runs.log import LineLog
from grpo_report.indexes.index import Filter, Range, RolloutIndex
from grpo_report.indexes.index_place import index_path

PART_BYTES = 64_000_000
"""As log.part_mb."""
SECONDS, MEGABYTES = 2.0, 500.0
"""The bar for each action, once the index exists."""


def groups_of(run: Path) -> list[list[dict[str, Any]]]:
    """Return the lines of each training group of a run: its own, and those of its rollouts."""
    groups: list[list[dict[str, Any]]] = []
    for line in (run / "rollouts.jsonl").read_text().splitlines():
        value = json.loads(line)
        if "prompt" in value and value["key"]["split"] == "train":
            groups.append([value])
        elif "attempt" in value and value["key"]["split"] == "train":
            groups[-1].append(value)
    return groups


def varied(
    group: list[dict[str, Any]], step: int, number: int, rng: random.Random
) -> Iterator[str]:
    """Yield the lines of a group at another step, with other completions of the same words."""
    key = group[0]["key"] | {"index": rng.randrange(10_000)}
    for line in group:
        changed = line | {"step": step, "group": number, "key": key}
        if "attempt" in line:
            words = [word for message in line["messages"] for word in message["content"].split()]
            rng.shuffle(words)
            text = " ".join([*words, f"so it is {rng.randrange(100_000)}"])
            changed.pop("policy_tokens", None)  # without them, more rollouts make 1 GB
            changed["messages"] = [{"role": "assistant", "content": text}]
            if rng.random() < 0.1 and line["verdict"]["error"] is None:
                changed["verdict"] = line["verdict"] | {"total": rng.random(), "answer": "7"}
        yield json.dumps(changed)


def write(run: Path, folder: Path, size: float, *, plain: bool) -> None:
    """Write a folder with `size` bytes of rollouts."""
    folder.mkdir(parents=True)
    source, rng, path = groups_of(run), random.Random(0), folder / "rollouts.jsonl"
    log = LineLog(path)
    done, step = 0, 0
    while done < size:
        with path.open("a") as file:
            while done < size and (plain or file.tell() < PART_BYTES):
                step += 1
                for number, group in enumerate(rng.choices(source, k=8)):
                    for line in varied(group, step, number, rng):
                        done += file.write(line + "\n")
        if not plain and done < size:
            log.compress(above_bytes=0)


def actions(index: RolloutIndex) -> dict[str, Callable[[RolloutIndex], Any]]:
    """Return what is timed, by name."""
    last, steps = index.count().groups, index.facets().steps
    assert steps.high is not None
    middle = Range(steps.high * 0.4, steps.high * 0.6)
    return {
        "facets": lambda index: index.facets(),
        "count all": lambda index: index.count(),
        "first page": lambda index: index.groups(),
        "last page": lambda index: index.groups(offset=last - 50),
        "page by reward": lambda index: index.groups(order="reward", descending=True, offset=1_000),
        "rollouts by tokens": lambda index: index.rollouts(order="tokens", offset=1_000),
        "filter by steps": lambda index: (
            index.count(Filter(steps=middle)),
            index.groups(Filter(steps=middle)),
        ),
        "filter by part and length": lambda index: index.count(
            Filter(parts={name: Range(0.5) for name in index.facets().parts}, tokens=Range(10))
        ),
        "filter truncated, failed": lambda index: index.groups(
            Filter(truncated=True, passed=False), order="spread", descending=True
        ),
        "search, rare": lambda index: (
            index.count(Filter(text="is 77777")),
            index.groups(Filter(text="is 77777")),
        ),
        "search, frequent, first page": lambda index: index.rollouts(Filter(text="so it is")),
        "search, frequent, count": lambda index: index.count(Filter(text="so it is 1")),
        "search, in all rollouts, count": lambda index: index.count(Filter(text="so it is")),
        "read the first group": lambda index: index.read(1),
        "read a group in the middle": lambda index: index.read(last // 2),
        "read the last group": lambda index: index.read(last),
        "disagreements": lambda index: index.disagreements(),
        "flips": lambda index: index.flips(),
    }


def time_action(folder: Path, name: str) -> None:
    """Print seconds to open, seconds and CPU seconds of the action, and megabytes of memory."""
    started = time.perf_counter()
    with RolloutIndex.open(folder) as index:
        opening = time.perf_counter() - started
        action = actions(index)[name]
        opened, computed = time.perf_counter(), time.process_time()
        action(index)
        done, computed = time.perf_counter(), time.process_time() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000
    print(json.dumps([opening, done - opened, computed, peak]))


def build(folder: Path) -> None:
    """Build the index, and print how long that took and how large it is."""
    started, size = time.perf_counter(), 0

    def progress(done: int, total: int) -> None:
        nonlocal size
        size = total
        print(f"\r{done / total:.0%} of {total / 1e9:.2f} GB", end="", file=sys.stderr, flush=True)

    with RolloutIndex.open(folder, progress=progress) as index:
        count = index.count()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000
    stored = sum(path.stat().st_size for path in folder.glob("rollouts*.jsonl*"))
    print(
        f"\n{size / 1e9:.2f} GB of lines ({stored / 1e9:.2f} GB stored), {count.groups:,} groups, "
        f"{count.rollouts:,} rollouts; index {index_path(folder).stat().st_size / 1e9:.2f} GB in "
        f"{seconds:.0f} s ({size / 1e6 / seconds:.1f} MB/s), {peak:.0f} MB of memory"
    )


def grow(folder: Path) -> None:
    """Append the rollouts of the last group once more, at the next step."""
    with RolloutIndex.open(folder) as index, (folder / "rollouts.jsonl").open("a") as file:
        for line in index.read(index.count().groups)["rollouts"]:
            file.write(json.dumps(line | {"step": line["step"] + 1}) + "\n")


def main() -> None:
    """Write the folder if need be, and measure it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="run folder whose lines are taken")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--action", help="time this one alone")
    arguments = parser.parse_args()
    if arguments.action is not None:
        return time_action(arguments.out, arguments.action)
    if not arguments.out.exists():
        write(arguments.run, arguments.out, arguments.gb * 1e9, plain=arguments.plain)
    build(arguments.out)
    missed = False
    with RolloutIndex.open(arguments.out) as index:
        names = list(actions(index))
    grow(arguments.out)  # so that the first one compares the log and extends the index
    for name in names:
        done = subprocess.run(
            [sys.executable, __file__, "--out", str(arguments.out), "--action", name],
            capture_output=True,
            text=True,
            check=True,
        )
        opened, seconds, computed, peak = json.loads(done.stdout)
        missed |= max(opened, seconds) > SECONDS or peak > MEGABYTES
        print(
            f"| {name} | {opened:.2f} | {seconds:.2f} | {computed:.2f} | {peak:.0f} |", flush=True
        )
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
