"""kill -9 at random moments: the run that is resumed again and again ends bitwise where the undisturbed one ends."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from grpo_core.runlog import RunFolder, read_lines
from grpo_core.train.checkpoint import checkpoints

HERE = Path(__file__).parent
KILLS, STEPS = 20, 40
TIMED = ("time/", "verify/seconds/", "eval/verify/seconds/", "memory/", "eval/seconds")
PLAIN: dict[str, Any] = {}
EVERYTHING = {
    "optimizer.name": "adamw8bit",
    "curriculum.enabled": "true",
    "curriculum.attempts": "30",
    "curriculum.low": "0.0",
    "curriculum.high": "0.05",
    "sampling.refills": "2",
    "kl.target": "0.001",
    "kl.refresh_every": "7",
    "trainer.mu": "2",
    "advantage.whiten": "true",
}


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-c", "from grpo_core.cli import main; main()", "run", *arguments], stdout=file, stderr=file, cwd=HERE
        )


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    found = read_lines(folder / name)
    return [_untimed({key: value for key, value in line.items() if not key.startswith(TIMED)}) for line in found]


def _untimed(line: dict[str, Any]) -> dict[str, Any]:
    """Without the seconds that a verdict took."""
    return json.loads(json.dumps(line), object_hook=lambda found: {k: v for k, v in found.items() if k != "seconds"})  # type: ignore[no-any-return]


@pytest.mark.heavy
@pytest.mark.parametrize("more", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_twenty_kills_change_nothing(tiny_folder: Path, tmp_path: Path, more: dict[str, str]) -> None:
    settings = {
        "model.name": str(tiny_folder), "model.dtype": "float32", "prompts_per_step": "8", "group_size": "8", "steps": str(STEPS),
        "optimizer.lr": "0.01", "eval.tasks": "6", "eval.every": "10", "checkpoint.every": "2", "checkpoint.keep": "50", **more,
    }  # fmt: skip
    options = ["--env", f"{HERE / 'letters.py'}:Letters", *(f"--set={key}={value}" for key, value in settings.items())]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    began = time.monotonic()
    assert start(*options, "--out", str(whole), log=tmp_path / "whole.log").wait() == 0, (tmp_path / "whole.log").read_text()
    seconds = time.monotonic() - began

    rng, log, kills = random.Random(0), tmp_path / "parts.log", 0
    process = start(*options, "--out", str(parts), log=log)
    while True:
        try:
            # Mostly past the start, which takes as long as several steps, so that the run gets on.
            process.wait(rng.uniform(0.3, 1.0) * seconds if kills < KILLS else 600)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        else:
            assert process.returncode == 0, log.read_text()
            if kills >= KILLS:
                break
            # It was done before the kill came: once more, from earlier on.
            _take_back(parts, rng)
        begun = (parts / "config.json").exists()
        process = start(*(["--resume", str(parts)] if begun else [*options, "--out", str(parts)]), log=log)
    assert lines(parts, "metrics.jsonl") == lines(whole, "metrics.jsonl")
    assert lines(parts, "rollouts.jsonl") == lines(whole, "rollouts.jsonl")
    expected, found = (load_file(folder / "final" / "adapter_model.safetensors") for folder in (whole, parts))
    assert expected.keys() == found.keys()
    assert all((expected[name] == found[name]).all() for name in expected)
    assert RunFolder(parts).finished


def _take_back(folder: Path, rng: random.Random) -> None:
    """To an earlier checkpoint, as if nothing after it had been saved."""
    os.rename(folder / "final", folder / f".final-{rng.randrange(10**6)}")
    found = checkpoints(folder / "checkpoints")
    for later in found[rng.randrange(1, len(found) // 2) :]:
        shutil.rmtree(later)
