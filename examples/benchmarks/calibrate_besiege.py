"""Compare the scores of example machines in the simulated world with the published range.

    python examples/benchmarks/calibrate_besiege.py [--random 16] [--speed] [--set spin_torque=350]

The plain car has to come near 34 m in 5 s (the published mean of the best model is 33.96, its best
machine 41.66), and the catapults have to throw 5 to 22 m (21.95 is the best published machine).
`--set` changes a constant of `grpo_env_besiege.physics.Physics`, to calibrate. Exits with 1 if an
example is out of its range.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from multiprocessing import get_context
from typing import Any

from grpo_env_besiege.growing import grow
from grpo_env_besiege.levels import LEVELS, Level
from grpo_env_besiege.machines import MACHINES
from grpo_env_besiege.measure import Measured, measure
from grpo_env_besiege.physics import DEFAULT, Physics
from grpo_env_besiege.tree import Tree
from grpo_env_besiege.validity import Machine, check_tree

RANGES = {
    "paper car": (32.0, 36.0),
    "six wheels": (30.0, 42.0),
    "sprung car": (25.0, 42.0),
    "heavy car": (25.0, 36.0),
    "paper catapult": (5.0, 22.0),
    "rotor catapult": (5.0, 22.0),
    "short catapult": (5.0, 22.0),
    "band catapult": (5.0, 22.0),
}


def row(
    name: str, level: Level, physics: Physics, *, expected: tuple[float, float] | None = None
) -> tuple[str, bool]:
    """Measure a machine, and return its line of the table and whether it is in its range."""
    tree = MACHINES[name]
    started = time.perf_counter()
    measured = measure(machine(tree), level, physics=physics)
    seconds = time.perf_counter() - started
    code = measure(machine(tree), level, formula="code", physics=physics)
    score = measured.score
    inside = expected is None or expected[0] <= score.distance <= expected[1]
    span = "" if expected is None else f"{expected[0]:g}..{expected[1]:g}"
    values = f"{score.distance:8.2f} {score.height:8.2f} {score.value:8.2f} {code.score.value:8.2f}"
    note = "; ".join(score.reasons) + ("" if inside else "  OUT OF RANGE")
    return (
        f"{name:16} {level.name:22} {values} {span:>9} {measured.disagreement:6.1%} "
        f"{1000 * seconds:6.1f}  {note}",
        inside,
    )


def machine(tree: Tree) -> Machine:
    """Return the machine of a valid tree."""
    checked = check_tree(tree)
    if checked.machine is None or not checked.valid:
        raise SystemExit("\n".join(map(str, checked.faults)))
    return checked.machine


def random_rows(count: int, physics: Physics) -> list[str]:
    """Return mean and best score of random valid machines of 8 to 30 blocks, for two levels."""
    lines = []
    for name in ("car/road", "delivery/push"):
        rng, level = random.Random(0), LEVELS[name]
        machines = [
            machine(grow(rng, size=rng.randint(8, 30), types=level.allowed)) for _ in range(count)
        ]
        started = time.perf_counter()
        runs: list[Measured] = [measure(grown, level, physics=physics) for grown in machines]
        seconds = time.perf_counter() - started
        values = [run.score.value for run in runs]
        faults = sum(run.trajectory.fault is not None for run in runs)
        lines.append(
            f"{count} random machines, {name}: mean {statistics.fmean(values):.2f}, "
            f"best {max(values):.2f}, {1000 * seconds / count:.1f} ms each, {faults} faults"
        )
    return lines


def speed(*, count: int = 64, processes: int = 2) -> str:
    """Time a group of machines, second runs included, in this process and in several others.

    The text says whether all rounds and this process agree to the bit.
    """
    rng, level = random.Random(0), LEVELS["car/road"]
    machines = [
        machine(grow(rng, size=rng.randint(8, 30), types=level.allowed)) for _ in range(count)
    ]
    started = time.process_time()
    expected = [measure(grown, level) for grown in machines]
    processor = time.process_time() - started
    rounds, same = [], True
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for _ in range(5):
            started = time.perf_counter()
            same = (
                list(pool.map(measure, machines, [level] * count, chunksize=2)) == expected and same
            )
            rounds.append(time.perf_counter() - started)
    walls = ", ".join(f"{seconds:.2f}" for seconds in rounds)
    return (
        f"{count} machines: {processor:.2f} s of processor time; on {processes} processes "
        f"{walls} s; {'identical' if same else 'DIFFERENT'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--random", type=int, default=16, help="how many random machines for each family"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a constant of the physics"
    )
    parser.add_argument(
        "--speed", action="store_true", help="also time 64 random machines on two processes"
    )
    arguments = parser.parse_args()
    names = {field.name for field in fields(Physics)}
    pairs = [text.partition("=") for text in arguments.set]
    if unknown := [name for name, _, _ in pairs if name not in names]:
        parser.error(
            f"no constant is called {', '.join(unknown)}; use one of {', '.join(sorted(names))}"
        )
    changed: dict[str, Any] = {name: float(value) for name, _, value in pairs}
    physics = replace(DEFAULT, **changed)
    print(
        f"{'machine':16} {'level':22} {'metres':>8} {'rise':>8} {'paper':>8} {'code':>8} "
        f"{'wanted':>9} {'dt/2':>6} {'ms':>6}"
    )
    inside = True
    for name in MACHINES:
        line, fine = row(
            name,
            LEVELS["catapult/field" if "catapult" in name else "car/road"],
            physics,
            expected=RANGES.get(name),
        )
        print(line)
        inside = inside and fine
    for level in LEVELS.values():
        if level.name not in ("car/road", "catapult/field"):
            name = "rotor catapult" if level.family == "catapult" else "paper car"
            print(row(name, level, physics)[0])
    print("\n".join(random_rows(arguments.random, physics)))
    if arguments.speed:
        print(speed())
    return 0 if inside else 1


if __name__ == "__main__":
    sys.exit(main())
