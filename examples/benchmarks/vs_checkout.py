"""Compare the time of a step with that of another checkout of grpo-core.

    git worktree add BEFORE COMMIT
    python examples/benchmarks/vs_checkout.py --before BEFORE [--setting short|long] [--steps 6]

Both train with the settings of vs_trl.py, are loaded once and take their steps in turn, so that a
noisy machine disturbs both; which of them is first changes with each step. The results are medians
over the steps of the ratio of both times, without the first step. The processor's time is that of
all threads; other work on the machine changes it less. Exits with 1 if the speed, by the
processor's time, is below 0.97 of the other one's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from sides import Side, machine
from vs_trl import SETTINGS, settings_of

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "vs_trl.py"
BAR = 0.97
PARTS = ("seconds", "cpu", "rollout", "update")
"""What is compared: the time of a step, the processor's time for it, and both parts of a step."""


def python_of(checkout: Path) -> list[str]:
    """Return the command that runs Python with the code of a checkout.

    Raises:
        SystemExit: another grpo-core would be imported.
    """
    roots = [checkout, *(checkout / name for name in ("environments", "plugins", "sandbox"))]
    path = os.pathsep.join(map(str, roots))
    command = ["env", f"PYTHONPATH={path}", sys.executable]
    question = "import grpo_core; print(grpo_core.__file__)"
    answer = subprocess.run(
        [*command, "-c", question], capture_output=True, text=True, check=True, cwd=checkout
    ).stdout.strip()
    if not Path(answer).resolve().is_relative_to(checkout):
        sys.exit(f"{answer} is imported instead of the code in {checkout}")
    return command


def ratios(before: Side, here: Side, part: str) -> list[float]:
    """Return the time of each measured step of `before` relative to that of `here`."""
    pairs = zip(before.steps[1:], here.steps[1:], strict=True)
    return [old[part] / new[part] for old, new in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder of the other checkout")
    parser.add_argument("--setting", choices=SETTINGS, default="short")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=6, help="measured steps, after one of warm-up")
    parser.add_argument("--set", action="append", default=[], help="further settings of both")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(options, SETTINGS[options.setting], folder)
        before, here = (
            Side(
                [*python_of(checkout), str(SCRIPT), "--our-side"],
                {**settings, "out": f"{folder}/{name}"},
                Path(folder) / f"{name}.log",
            )
            for name, checkout in (
                ("before", options.before.resolve()),
                ("here", HERE.parents[1]),
            )
        )
        for number in range(options.steps + 1):
            for side in (before, here) if number % 2 else (here, before):
                side.step()
        for side in (before, here):
            side.close()
    print(f"{options.setting}, {machine(settings['dtype'])}")
    speed = {part: statistics.median(ratios(before, here, part)) for part in PARTS}
    for part, ratio in speed.items():
        each = ", ".join(f"{value:.2f}" for value in ratios(before, here, part))
        times = f"{before.medians()[part]:.2f} s before, {here.medians()[part]:.2f} s here"
        print(f"{part}: {ratio:.3f} times the speed before ({each}); {times}")
    if speed["cpu"] < BAR:
        sys.exit(f"missed: the bar is {BAR}")


if __name__ == "__main__":
    main()
