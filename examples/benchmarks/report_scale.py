"""Measure the report of a large run: the server's answers, the single file, the first paint.

    python examples/benchmarks/report_scale.py --out runs/large [--browser]

It writes a run folder with random English-like completions in groups of 8 (about 1 GB with the
defaults), indexes it, and asks the server of `grpo watch` what the page asks it: the facts, pages
of the list under filters and orders, searches, groups, forensics. Then it writes the single file.
With --browser it opens both in a Chromium and measures the first paint. The bars: each action
after the first opening within 2 s, 500 MB of memory, a file below 20 MB. Exits with 1 if one is
missed. A folder that is there is used again.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

from grpo_core import Group, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.runs.attempts import Fields
from grpo_core.runs.folder import RunFolder
from grpo_report.html.opened import OpenRun
from grpo_report.html.server import ReportData, ReportServer
from grpo_report.html.single import write_single_file

ATTEMPTS, GROUPS = 8, 50
"""Of a group, and of a step."""
SECONDS, MEMORY_MB, FILE_MB = 2.0, 500, 20
WORDS = [
    "".join(random.Random(number).choices("etaoinshrdlu", k=2 + number % 9))
    for number in range(5000)
]


def write_run(folder: RunFolder, rollouts: int, characters: int) -> None:
    """Write the run folder through the functions that a run uses."""
    config = build_config([{"environment": "arithmetic"}]).model_dump(mode="json")
    folder.start({**config, "provenance": {}})
    rng = random.Random(0)
    for number in range(rollouts // ATTEMPTS):
        step = 1 + number // GROUPS
        texts = [" ".join(rng.choices(WORDS, k=characters // 7)) for _ in range(ATTEMPTS)]
        verdicts = [
            Verdict(
                {"exact": Reward(float(rng.random() < 0.3)), "form": Reward(rng.random(), 0.2)},
                passed=rng.random() < 0.3,
                answer=str(rng.randrange(10)),
            )
            for _ in texts
        ]
        key = TaskKey("arithmetic", "train", number, 0, 0.0)
        task = Task(key, (Message("user", " ".join(rng.choices(WORDS, k=50))),), None)
        attempts = [Rollout((Message("assistant", text),)) for text in texts]
        fields = Fields(number=number % GROUPS)
        folder.rollouts(step, Group(task, attempts, verdicts, [0.1] * ATTEMPTS), fields)
        if number % GROUPS == 0:
            folder.metrics({"step": step, "kind": "step", "reward/mean": rng.random()})
            folder.compress_logs(above_bytes=64e6)


@contextmanager
def timed(name: str, times: dict[str, float]) -> Iterator[None]:
    started = time.monotonic()
    yield
    times[name] = time.monotonic() - started
    print(f"{name}: {times[name]:.2f} s", flush=True)


def peak_mb() -> float:
    """Return the highest memory use of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def ask_all(url: str, times: dict[str, float]) -> None:
    """Ask what the page asks, one question after the other."""
    word = WORDS[4321]
    actions = {
        "facts": "page",
        "metrics": "metrics?run=0",
        "first page": "groups?run=0",
        "page 300": "groups?run=0&page=300",
        "filter by reward and part": "groups?run=0&reward_from=1&part=form&part_from=0.9",
        "order by spread": "groups?run=0&order=spread",
        "duplicates": "groups?run=0&duplicate=yes",
        "steps": "groups?run=0&steps_from=100&steps_to=110",
        "search a word": f"groups?run=0&text={word}",
        "count a frequent word": f"count?run=0&text={word}",
        "search what is nowhere": "groups?run=0&text=zzzqqq",
        "search and filter": f"groups?run=0&text={word}&passed=yes&order=reward",
        "group": "group?run=0&step=200&split=train&number=7",
        "forensics": "forensics?run=0",
        "forensics again": "forensics?run=0",
    }
    for name, path in actions.items():
        with timed(name, times), urlopen(f"{url}api/{path}") as answer:
            json.load(answer)


def first_paint(url: str) -> float:
    """Return the milliseconds until Chromium has painted a page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=options)
        page = browser.new_page()
        page.goto(url)
        page.wait_for_selector("figure canvas")
        name = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        return float(page.evaluate(name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--characters", type=int, default=4000, help="of a completion, about")
    parser.add_argument("--browser", action="store_true", help="also measure the first paint")
    options = parser.parse_args()
    if not (options.out / "config.json").exists():
        write_run(RunFolder.unused(options.out), options.rollouts, options.characters)
    size = sum(path.stat().st_size for path in options.out.glob("rollouts*.jsonl*"))
    print(f"{size / 1e6:,.0f} MB of rollouts on disk, compressed beyond 64 MB")
    times: dict[str, float] = {}
    with timed("open", times):
        run = OpenRun(options.out, name="large")
    with ReportServer(ReportData([run])) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        ask_all(server.url, times)
        served_mb = peak_mb()
        if options.browser:
            print(f"first paint of the served page: {first_paint(server.url):.0f} ms")
        server.shutdown()
        thread.join()
    print(f"peak memory of the server: {served_mb:.0f} MB")
    path = options.out / "report.html"
    with timed("single file", times):
        file_mb = write_single_file(path, [run]) / 1e6
    print(f"single file: {file_mb:.1f} MB, peak memory {peak_mb():.0f} MB")
    if options.browser:
        print(f"first paint of the single file: {first_paint(path.absolute().as_uri()):.0f} ms")
    run.close()
    slow = [name for name, took in times.items() if took > SECONDS and name not in ONCE]
    print(f"slower than {SECONDS} s: {', '.join(slow) or 'none'}")
    return 0 if not slow and served_mb <= MEMORY_MB and file_mb < FILE_MB else 1


ONCE = ("open", "single file")
"""What is no action in the page: the index is made once, and the file is written once."""

if __name__ == "__main__":
    sys.exit(main())
