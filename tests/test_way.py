"""The way of a rollout from the prompt to the loss and the log does not grow."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("way.py")
MOST = {"functions": 60, "files": 30, "shapes": 12}
"""What a commit may lower, and must not raise without saying why."""


@pytest.mark.slow
def test_a_rollout_passes_no_more_functions_files_and_shapes_than_before() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--list"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    *_, line = done.stdout.splitlines()
    words = line.split()
    counts = {name: int(words[words.index(name) - 1]) for name in MOST}
    assert all(0 < counts[name] <= most for name, most in MOST.items()), done.stdout
