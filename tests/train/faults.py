"""Random faults on small runs: each has to end bitwise where the undisturbed run ends, or in one line that names a way there.

`python tests/train/faults.py --count 200 --seed 0` needs root on Linux, for file systems of its own;
`--only N` repeats one fault of a seed.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from faults_bench import Bench, Place
from faults_kinds import KINDS, MOUNTED, ORDER, Scene, unmount
from faults_user import FailedError


def one_fault(bench: Bench, number: int, seed: int) -> dict[str, Any]:
    """Make the fault of this number and go on as a user would; returns its record."""
    rounds, place_in_round = divmod(number, len(ORDER))
    kind = ORDER[place_in_round]
    turn = rounds * ORDER.count(kind) + ORDER[:place_in_round].count(kind)
    folder = bench.work / f"fault-{number}"
    folder.mkdir()
    folder.chmod(0o755)
    place = Place(folder, folder / "run", folder / "cache")
    scene = Scene(bench, place, random.Random(f"{seed}-{number}"), turn=turn)
    started = time.monotonic()
    try:
        verdict = KINDS[kind](scene)
    except FailedError as error:
        verdict = f"failure: {error}"
    except Exception as error:  # noqa: BLE001 - such as a log that cannot be read
        verdict = f"failure: {type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    finally:
        unmount(*MOUNTED)
        shutil.rmtree(folder, ignore_errors=True)
    record = {"seed": seed, "number": number, "kind": kind, "details": scene.details}
    seconds = round(time.monotonic() - started, 1)
    return {**record, "verdict": verdict, "rounds": scene.rounds, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat the fault of this number")
    arguments = parser.parse_args()
    # A shell leaves it ignored for what runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    has_failed, work = False, Path(tempfile.mkdtemp(prefix="faults-"))
    bench = Bench(work)
    try:
        numbers = range(arguments.count) if arguments.only is None else [arguments.only]
        for number in numbers:
            record = one_fault(bench, number, arguments.seed)
            has_failed |= record["verdict"].startswith("failure")
            print(json.dumps(record), flush=True)
    finally:
        bench.close()
        shutil.rmtree(work, ignore_errors=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
