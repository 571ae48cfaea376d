"""`--processes N`: how the processes of one command begin and end together."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import torch

from grpo_core.calls.stopping import StopRequest
from grpo_core.engine.models.device import pick_device
from grpo_core.engine.ranks import Ranks
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.actor import Actor
from grpo_core.train.run.checkpoint import checkpoints

from .processes import begin, ended, launch, said
from .short_runs import LETTERS
from .test_ranks import options as run_options
from .test_ranks import written

T = TypeVar("T")


def options(tiny_folder: Path, run: Path, *, env: str = LETTERS) -> list[str]:
    """Return those of a run that takes long."""
    size = {"steps": 400, "prompts_per_step": 2, "group_size": 4}
    given = run_options(tiny_folder, env=env, **size, **{"eval.tasks": 0, "checkpoint.every": 1000})
    return [*given, "--out", str(run)]


def wait_until(launcher: subprocess.Popen[bytes], is_reached: Callable[[], object]) -> None:
    """Wait for something that happens while the launcher runs."""
    deadline = time.monotonic() + 300
    while not is_reached():
        assert launcher.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ranks_of(launcher: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The two processes that it has started, as soon as they are there."""
    process = psutil.Process(launcher.pid)
    wait_until(launcher, lambda: len(process.children()) >= 2)
    return process.children()


def wait_for_steps(launcher: subprocess.Popen[bytes], log: Path, count: int) -> None:
    wait_until(launcher, lambda: said(log).count("\nstep ") >= count)


def words_of(log: Path) -> str:
    """Return what was said, without its line breaks."""
    return " ".join(said(log).split())


def failing(tmp_path: Path, when: str, code: str) -> str:
    """An environment that does something in the second of several processes."""
    line = f"if os.environ.get('RANK') == '1': {code}"
    judging = (
        "import signal\nclass Own(Letters):\n    def verify(self, task, rollout):\n"
        f"        {line}\n        return super().verify(task, rollout)\n"
    )
    return written(tmp_path / "failing.py", judging if when == "verify" else line)


@pytest.mark.slow
def test_ctrl_c_saves_once_and_leaves_nobody(tiny_folder, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    launcher = begin(2, "run", *options(tiny_folder, run), log=log)
    ranks = ranks_of(launcher)
    wait_for_steps(launcher, log, 2)
    launcher.send_signal(signal.SIGINT)
    assert ended([launcher]) == [130], said(log)
    assert not psutil.wait_procs(ranks, timeout=5)[1]
    assert said(log).count("stopping: finishing this step, then saving") == 1
    assert "Traceback" not in said(log)
    (saved,) = checkpoints(run / "checkpoints")
    steps = [line["step"] for line in read_lines(run / "metrics.jsonl")]
    assert saved.name == f"step-{steps[-1]:06d}"
    assert RunFolder(run).config()["provenance"]["processes"] == 2


def test_a_request_to_stop_that_only_this_process_knows_of_counts_the_next_time():
    """It may come while the processes ask one another; the others would go on without this one."""

    class Late(Ranks):
        def gather_values(self, value: T) -> list[T]:
            actor.stop.make("Ctrl-C")
            return [value, value]

    actor = object.__new__(Actor)
    actor.stop, actor.ranks = StopRequest(), Late(meeting_seconds=1.0)
    assert not actor.stops()
    assert actor.stops()


@pytest.mark.slow
def test_a_killed_process_ends_the_others_with_its_name_and_last_words(tiny_folder, tmp_path):
    code = r"os.write(1, b'\x1b[5mno memory'), os.kill(os.getpid(), signal.SIGKILL)"
    run, log = tmp_path / "run", tmp_path / "log"
    env = failing(tmp_path, "verify", code)
    launcher = begin(2, "run", *options(tiny_folder, run, env=env), log=log)
    ranks = ranks_of(launcher)
    assert ended([launcher]) == [1], said(log)
    assert not psutil.wait_procs(ranks, timeout=5)[1]
    shown = words_of(log)
    assert "error: process 1 of 2 was killed by SIGKILL: \\x1b[5mno memory" in shown
    assert f"continue with --resume {run} --processes 2" in shown
    assert "Traceback" not in shown
    logged = (run / "log.txt").read_text()
    assert "process 1 of 2 was killed by SIGKILL; its output:\n  \\x1b[5mno memory" in logged
    assert "\x1b[5m" not in shown + logged


@pytest.mark.heavy
def test_another_number_of_processes_goes_on_and_says_so(tiny_folder, tmp_path):
    run, log, again = tmp_path / "run", tmp_path / "log", tmp_path / "again"
    launcher = begin(2, "run", *options(tiny_folder, run), log=log)
    wait_for_steps(launcher, log, 1)
    launcher.send_signal(signal.SIGTERM)
    assert ended([launcher]) == [128 + signal.SIGTERM], said(log)
    done = len(list(read_lines(run / "metrics.jsonl")))
    assert launch(1, "--resume", str(run), f"--set=steps={done + 1}", log=again) == 0, said(again)
    assert "the run began with 2 processes and continues with 1" in words_of(again)


@pytest.mark.heavy
def test_a_process_that_fails_alone_ends_the_others(tiny_folder, tmp_path):
    log = tmp_path / "log"
    env = failing(tmp_path, "import", "raise ValueError('a broken file')")
    assert launch(2, *options(tiny_folder, tmp_path / "run", env=env), log=log) == 1
    assert "process 1 of 2 failed (status 2)" in said(log)
    assert "a broken file" in said(log)


@pytest.mark.heavy
def test_an_evaluation_in_two_processes_is_that_of_one(tiny_folder, tmp_path):
    given = ["--env", LETTERS, "--model", str(tiny_folder), "--tasks", "5", "--samples", "3"]
    results = []
    for count in (1, 2):
        log, attempts = tmp_path / f"log{count}", tmp_path / f"attempts{count}"
        more = ("--json", "--attempts", str(attempts))
        assert launch(count, *given, *more, log=log, command="eval") == 0, said(log)
        result = json.loads("{\n" + said(log).partition("{\n")[2])["results"]
        results.append((result, len(attempts.read_text().splitlines())))
    assert results[0] == results[1]
    assert results[0][1] == 15


@pytest.mark.parametrize(
    ("more", "started", "told"),
    [
        (["--set=optimizer.lr=-1"], {}, "optimizer.lr"),
        (
            [],
            {"RANK": "1", "WORLD_SIZE": "4"},
            "a launcher such as torchrun has started this one already (RANK=1, WORLD_SIZE=4)",
        ),
    ],
    ids=["a wrong setting", "a launcher around the launcher"],
)
def test_a_mistake_is_told_once(tiny_folder, tmp_path, more, started, told):
    log, given = tmp_path / "log", options(tiny_folder, tmp_path / "run")
    assert launch(2, *given, *more, log=log, **started) == 2
    assert words_of(log).count(told) == 1
    assert not (tmp_path / "run").exists()


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert pick_device("auto") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"3 processes .* torch finds 2 of kind 'cuda'"):
        pick_device("auto")
    assert pick_device("cpu") == torch.device("cpu")
