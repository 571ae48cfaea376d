"""Run the conformance kit on reasoning-gym, a published library.

    python examples/benchmarks/check_reasoning_gym.py [--out FILE.json] [NAME ...]

It shows which datasets reward junk, have a constant answer, raise or are not deterministic. Every
dataset is an environment `reasoning-gym/NAME` with the library's own questions and verifier; this
script has no knowledge of their faults. Prints each fault in the kit's words, and writes
{dataset: {check: message}}. Needs no model and no GPU; all datasets take 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.testing import check_environment

TASKS = {
    "task.process": 40,  # the fault may show in only one of them
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
"""The checks to run, each with its number of tasks."""


_ACCEPTED = {"execute_answers": True, "allow_faulty": True}
"""Settings without which some datasets are refused."""


def faults(name: str, checks: Mapping[str, int] = TASKS) -> dict[str, str]:
    """Return the kit's message for each check that the dataset `name` fails."""
    messages: dict[str, str] = {}
    for count in sorted(set(checks.values())):
        env = load_environment(PluginHost(), f"reasoning-gym/{name}", _ACCEPTED)
        report = check_environment(
            env, tasks=count, only=[check for check, tasks in checks.items() if tasks == count]
        )
        messages |= {
            result.check: result.message
            for result in (*report.problems, *report.consequences)
            if result.severity == "fault"
        }
    return messages


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
    checks = {check: TASKS[check] for check in options.only or TASKS}
    report: dict[str, dict[str, str]] = {}
    for name in names:
        started = time.monotonic()
        report[name] = faults(name, checks)
        print(f"{name}: {len(report[name])} faults, {time.monotonic() - started:.0f} s", flush=True)
        for check, message in report[name].items():
            print(f"    {check:<15} {message}", flush=True)
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    for check in checks:
        failing = [name for name, messages in report.items() if check in messages]
        print(f"{check}: {len(failing)} of {len(names)}: {', '.join(failing)}")


if __name__ == "__main__":
    main()
