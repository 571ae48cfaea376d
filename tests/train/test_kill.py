"""kill -9 at random moments: the run that is resumed again and again ends bitwise where the undisturbed one ends."""

import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core.runs.folder import RunFolder
from grpo_core.train.run.checkpoint import checkpoints

from .processes import begin, ended, launch, said
from .short_runs import LETTERS, steps_of
from .test_durability import assert_same

KILLS, STEPS = 20, 40
EVERYTHING: dict[str, Any] = {
    "optimizer.name": "adamw8bit",
    "curriculum.enabled": "true",
    "curriculum.attempts": 30,
    "curriculum.low": 0.0,
    "curriculum.high": 0.05,
    "sampling.refills": 2,
    "kl.target": 0.001,
    "kl.refresh_every": 7,
    "trainer.mu": 2,
    "advantage.whiten": "true",
}


def options(tiny_folder: Path, more: dict[str, Any]) -> list[str]:
    settings = {
        "model.name": tiny_folder, "model.dtype": "float32", "prompts_per_step": 8, "group_size": 8, "steps": STEPS,
        "optimizer.lr": 0.01, "eval.tasks": 6, "eval.every": 10, "checkpoint.every": 2, "checkpoint.keep": 50, **more,
    }  # fmt: skip
    return ["--env", LETTERS, *(f"--set={key}={value}" for key, value in settings.items())]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("processes", "more"),
    [(1, {}), (1, EVERYTHING), (2, EVERYTHING)],
    ids=["plain", "everything", "everything, two processes"],
)
def test_twenty_kills_change_nothing(tiny_folder, tmp_path, processes, more):
    given = options(tiny_folder, more)
    whole, log = tmp_path / "whole", tmp_path / "whole.log"
    assert launch(processes, *given, "--out", str(whole), log=log) == 0, said(log)
    _run_with_kills(tmp_path / "parts", processes, given)
    assert_same(tmp_path / "parts", whole)


@pytest.mark.heavy
def test_kill_9_and_resume_lose_and_double_no_prompt(tiny_folder, tmp_path):
    """Of a pipeline, where it depends on the clock what is sampled ahead, and by which weights."""
    folder = tmp_path / "run"
    _run_with_kills(folder, 1, options(tiny_folder, {"pipeline.max_staleness": 2}))
    asked = [line for line in RunFolder(folder).rollout_lines() if line["key"]["split"] == "train"]
    prompts = [(step, 8 * (step - 1) + p) for step in range(1, STEPS + 1) for p in range(8)]
    found = [(line["step"], line["key"]["index"]) for line in asked]
    assert found == [prompt for prompt in prompts for _ in range(8)]
    assert [line["step"] for line in steps_of(folder)] == list(range(1, STEPS + 1))
    assert 0 < max(line["staleness/max"] for line in steps_of(folder)) <= 2


def _run_with_kills(parts: Path, processes: int, options: list[str]) -> None:
    """Run a command, and resume its run, until it was killed often enough and has ended."""
    rng, log, kills, begun = random.Random(0), parts.with_suffix(".log"), 0, 0
    while kills < KILLS or not RunFolder(parts).finished:
        if RunFolder(parts).finished:  # the end came before the kill, or just before it
            _take_back(parts, rng)
        is_begun = (parts / "config.json").exists()
        begun += is_begun
        told = said(log).count("\nstep ")
        again = ["--resume", str(parts)] if is_begun else [*options, "--out", str(parts)]
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


def _kill_one(launcher: subprocess.Popen[bytes], processes: int, rng: random.Random) -> None:
    """The launcher or one of the processes that it has started; none of them outlives it for long."""
    children = psutil.Process(launcher.pid).children()
    below = [child for child in children if "--processes" in child.cmdline()]
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
