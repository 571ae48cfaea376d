"""Random faults on small runs: each has to end bitwise where the undisturbed run ends, or in one line that names a way there.

`python tests/train/faults.py --count 200 --seed 0` needs root on Linux, for file systems of its own;
`--only N` repeats one fault of a seed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults_bench import Bench, Place
from faults_disks import Disk, available
from faults_kinds import KINDS, ORDER, Scene
from faults_user import SAME, WAY_ON, FailedError, User


def one_fault(bench: Bench, number: int, seed: int, kinds: list[str]) -> dict[str, Any]:
    """Make the fault of this number and go on as a user would; returns its record."""
    rng = random.Random(f"{seed}-{number}")
    rounds, place_in_round = divmod(number, len(kinds))
    kind = kinds[place_in_round]
    folder = bench.work / f"fault-{number}"
    folder.mkdir()
    folder.chmod(0o755)
    place = Place(folder, folder / "run", folder / "cache")
    user = User(bench, place, rng)
    turn = rounds * kinds.count(kind) + kinds[:place_in_round].count(kind)
    scene = Scene(bench, place, user, rng, turn)
    started = time.monotonic()
    try:
        verdict = KINDS[kind](scene)
    except FailedError as error:
        verdict = f"failure: {error}"
    except Exception as error:  # noqa: BLE001 - such as a log that cannot be read
        verdict = f"failure: {type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    finally:
        for disk in scene.disks:
            disk.close()
    record = {"seed": seed, "number": number, "kind": kind, "details": scene.details}
    seconds = round(time.monotonic() - started, 1)
    return {**record, "verdict": verdict, "rounds": user.rounds, "seconds": seconds}


def records(arguments: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    """Yield the record of each fault. The folder of one that failed is kept if the user named the folder."""
    bench = Bench(work)
    try:
        numbers = range(arguments.count) if arguments.only is None else [arguments.only]
        for number in numbers:
            record = one_fault(bench, number, arguments.seed, arguments.kinds or list(ORDER))
            if not (arguments.work and _end(record) == "failure"):
                shutil.rmtree(work / f"fault-{number}", ignore_errors=True)
            yield record
    finally:
        bench.close()
        Disk.close_all()


def table(found: list[dict[str, Any]]) -> str:
    """Return how faults of each kind ended, as text."""
    rows = [f"{'kind':<16}{'count':>6}{'to the bit':>12}{'way on':>8}{'failures':>10}"]
    for kind in [*dict.fromkeys(record["kind"] for record in found), "all"]:
        ends = Counter(_end(record) for record in found if kind in ("all", record["kind"]))
        counts = f"{ends[SAME]:>12}{ends[WAY_ON]:>8}{ends['failure']:>10}"
        rows.append(f"{kind:<16}{ends.total():>6}{counts}")
    return "\n".join(rows)


def _end(record: dict[str, Any]) -> str:
    return str(record["verdict"]).split(":")[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="only faults of these kinds")
    parser.add_argument("--only", type=int, help="repeat the fault of this number")
    parser.add_argument("--work", type=Path, help="an empty folder, in which failed runs are left")
    arguments = parser.parse_args()
    if not available():
        parser.error("this needs root on Linux, and loop devices")
    return arguments


def main() -> int:
    arguments = _arguments()
    # A shell leaves it ignored for what runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    work = arguments.work.absolute() if arguments.work else Path(tempfile.mkdtemp(prefix="faults-"))
    work.mkdir(parents=True, exist_ok=True)
    found = []
    try:
        for record in records(arguments, work):
            found.append(record)
            print(json.dumps(record), flush=True)
    finally:
        if not arguments.work:
            shutil.rmtree(work, ignore_errors=True)
        if found:
            print(table(found), flush=True)
    return int(any(_end(record) == "failure" for record in found))


if __name__ == "__main__":
    sys.exit(main())
