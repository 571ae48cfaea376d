"""OpenMP's waiting threads, of a process of its own: the tests compute with one thread."""

import subprocess
import sys

import pytest

from grpo_core.engine.compute import openmp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")

COUNTED = """
import os, time, torch
from concurrent.futures import ThreadPoolExecutor
torch.set_num_threads(2)
expected = {expected}
end = time.monotonic() + 10
from grpo_core.engine.compute.openmp import Helpers
def compute(): return float((torch.ones(2**20) * 2).sum())
def tasks(): return len(os.listdir("/proc/self/task"))
start = tasks()
def more(expected):
    # A thread that has ended is listed for a moment longer.
    while tasks() - start != expected and time.monotonic() < end: time.sleep(0.01)
    return tasks() - start
assert compute() == 2**21
if tasks() == start: raise SystemExit("this build of torch does not compute with OpenMP")
with_helpers = more(expected[0])
helpers = Helpers()
helpers._alone = {alone}
helpers.hand_over()
after = more(expected[1])
def elsewhere():
    compute()
    helpers.hand_back()
other = ThreadPoolExecutor(1)  # its thread stays, and with it the helpers that were not given back
other.submit(elsewhere).result()
assert compute() == 2**21
print((with_helpers, after, more(expected[2])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alone", "left"), [(True, (1, 0, 2)), (False, (1, 1, 3))], ids=["given_back", "kept"]
)
def test_helpers_are_given_back_where_the_cores_are_ours_and_kept_otherwise(alone, left):
    code = COUNTED.format(alone=alone, expected=left)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(left)


@pytest.mark.parametrize(
    ("others", "own", "alone"),
    [(0.0, 2.0, True), (0.1, 2.0, True), (1.0, 1.5, False), (0.5, 0.1, False)],
    ids=str,
)
def test_the_cores_are_ours_unless_others_need_them(monkeypatch, others, own, alone):
    """Over 10 seconds on two cores, with two threads."""
    clock = iter([(10.0, 5.0 + 10 * own, 100.0 + 10 * (own + others))] * 2)
    monkeypatch.setattr(openmp, "STARTED", (0.0, 5.0, 100.0))
    monkeypatch.setattr(openmp, "_clock", lambda: next(clock))
    monkeypatch.setattr(openmp, "_cores", lambda: 2)
    monkeypatch.setattr(openmp.torch, "get_num_threads", lambda: 2)
    given_back: list[bool] = []
    monkeypatch.setattr(openmp, "release", lambda: given_back.append(True))
    openmp.Helpers().hand_over()
    assert given_back == [True] * alone
