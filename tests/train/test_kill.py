"""kill -9 at random moments: the run that is resumed again and again ends bitwise where the undisturbed one ends."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.run.checkpoint import checkpoints

from .processes import HERE, begin, ended, launch, said

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


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    found = read_lines(folder / name)
    return [
        _untimed({key: value for key, value in line.items() if not key.startswith(TIMED)})
        for line in found
    ]


def _untimed(line: dict[str, Any]) -> dict[str, Any]:
    """Without the seconds that a verdict took."""
    return json.loads(
        json.dumps(line),
        object_hook=lambda found: {k: v for k, v in found.items() if k != "seconds"},
    )  # type: ignore[no-any-return]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("processes", "more"),
    [(1, PLAIN), (1, EVERYTHING), (2, EVERYTHING)],
    ids=["plain", "everything", "everything, two processes"],
)
def test_twenty_kills_change_nothing(
    tiny_folder: Path, tmp_path: Path, processes: int, more: dict[str, str]
) -> None:
    settings = {
        "model.name": str(tiny_folder), "model.dtype": "float32", "prompts_per_step": "8", "group_size": "8", "steps": str(STEPS),
        "optimizer.lr": "0.01", "eval.tasks": "6", "eval.every": "10", "checkpoint.every": "2", "checkpoint.keep": "50", **more,
    }  # fmt: skip
    options = [
        "--env",
        f"{HERE / 'letters.py'}:Letters",
        *(f"--set={key}={value}" for key, value in settings.items()),
    ]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    status = launch(processes, *options, "--out", str(whole), log=tmp_path / "whole.log")
    assert status == 0, said(tmp_path / "whole.log")

    rng, log, kills, begun = random.Random(0), tmp_path / "parts.log", 0, 0
    while kills < KILLS or not RunFolder(parts).finished:
        if RunFolder(parts).finished:  # the end came before the kill, or just before it
            _take_back(parts, rng)
        begun += (parts / "config.json").exists()
        again = (
            ["--resume", str(parts)]
            if (parts / "config.json").exists()
            else [*options, "--out", str(parts)]
        )
        told = said(log).count("\nstep ")
        running = begin(processes, "run", *again, log=log)
        if kills < KILLS:
            # After a few steps, and at any moment of the next one; once in a while before the first.
            steps = rng.choice((0, 1, 2, 4, 8))
            while running.poll() is None and said(log).count("\nstep ") < told + steps:
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.2 if steps else 8.0))
            if running.poll() is None:
                _kill_one(running, processes, rng)
                kills += 1
                continue
        assert ended([running]) == [0], said(log)
    assert begun > KILLS / 2  # else hardly a kill came after the start
    assert lines(parts, "metrics.jsonl") == lines(whole, "metrics.jsonl")
    assert lines(parts, "rollouts.jsonl") == lines(whole, "rollouts.jsonl")
    expected, found = (
        load_file(folder / "final" / "adapter_model.safetensors") for folder in (whole, parts)
    )
    assert expected.keys() == found.keys()
    assert all((expected[name] == found[name]).all() for name in expected)


def _kill_one(launcher: subprocess.Popen[bytes], processes: int, rng: random.Random) -> None:
    """The launcher or one of the processes that it has started; none of them outlives it for long."""
    below = [
        child
        for child in psutil.Process(launcher.pid).children()
        if "--processes" in child.cmdline()
    ]
    assert len(below) == processes or processes == 1 or not below  # it may have started none yet
    rng.choice([launcher, *below]).kill()
    ended([launcher])
    assert not psutil.wait_procs(below, timeout=5)[1]


def _take_back(folder: Path, rng: random.Random) -> None:
    """To an earlier checkpoint, as if nothing after it had been saved."""
    os.rename(folder / "final", folder / f".final-{rng.randrange(10**6)}")
    found = checkpoints(folder / "checkpoints")
    for later in found[rng.randrange(1, len(found) // 2) :]:
        shutil.rmtree(later)
