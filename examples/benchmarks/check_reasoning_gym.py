"""The conformance kit on a published library: which datasets of reasoning-gym pay for junk, have a constant answer, raise or drift.

    python examples/benchmarks/check_reasoning_gym.py [--out FILE.json] [NAME ...]

Every dataset is an environment `reasoning-gym/NAME` with the library's own questions and verifier; nothing here knows what is wrong with
it. Prints each fault as the kit tells it, and writes {dataset: {check: message}}. No model, no GPU; 20 minutes for all on two cores.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

from grpo_core.plugins.host import PluginHost
from grpo_core.testing import check_environment

TASKS = {
    "task.process": 40,  # of which one may show it
    **dict.fromkeys(
        (
            "verdict.form",
            "floor.empty",
            "floor.junk",
            "floor.other",
            "floor.constant",
            "safety.eval",
        ),
        8,
    ),
}
"""The checks that are asked, each with how many tasks."""


def faults(name: str, asked: Mapping[str, int] = TASKS) -> dict[str, str]:
    """What the kit finds, by check. name: of a dataset."""
    found: dict[str, str] = {}
    for count in sorted(set(asked.values())):
        env = PluginHost().load("environment", f"reasoning-gym/{name}")()
        report = check_environment(
            env, tasks=count, only=[check for check, wanted in asked.items() if wanted == count]
        )
        found |= {each.check: each.message for each in report.problems}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="datasets; none: all")
    parser.add_argument(
        "--only", choices=TASKS, action="append", help="a check; none: all of these"
    )
    parser.add_argument("--out", type=Path, default=Path("reasoning_gym_faults.json"))
    options = parser.parse_args()
    offered = [offer.spec.name for offer in PluginHost().specs("environment")]
    names = options.names or [
        name.partition("/")[2] for name in offered if name.startswith("reasoning-gym/")
    ]
    asked = {check: TASKS[check] for check in options.only or TASKS}
    found: dict[str, dict[str, str]] = {}
    for name in names:
        started = time.monotonic()
        found[name] = faults(name, asked)
        print(f"{name}: {len(found[name])} faults, {time.monotonic() - started:.0f} s", flush=True)
        for check, message in found[name].items():
            print(f"    {check:<15} {message}", flush=True)
    options.out.write_text(json.dumps(found, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    by_check = {check: [name for name, each in found.items() if check in each] for check in asked}
    for check, those in by_check.items():
        print(f"{check}: {len(those)} of {len(names)}: {', '.join(those)}")


if __name__ == "__main__":
    main()
