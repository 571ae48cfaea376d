"""Random faults on small runs, in a process of their own: forks must not inherit what other tests have started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..commandline import words

HERE = Path(__file__).parent
NO_MOUNTS = os.geteuid() != 0 or not Path("/dev/loop-control").exists()
pytestmark = pytest.mark.skipif(
    NO_MOUNTS, reason="only root can mount file systems that fill up or lose their power"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "seed"), [(20, 0), pytest.param(200, 1, marks=pytest.mark.heavy)]
)
def test_random_faults_lose_nothing_or_name_a_way_on_that_works(count, seed):
    command = [sys.executable, *words(f"{HERE / 'faults.py'} --count {count} --seed {seed}")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == count
    left_out = done.stderr.count(
        "left out: "
    )  # where another user cannot enter the Python's folder
    assert len({record["kind"] for record in found}) == 14 - left_out
