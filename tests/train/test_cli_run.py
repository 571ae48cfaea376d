"""`grpo run`, `grpo generate` and what happens when they are interrupted, with real processes and a tiny model."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.cli.run import run as run_command
from grpo_core.config.overrides import build_config
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

from ..commandline import words
from .forked import Forks, forks

TINY = [
    f"--set={setting}"
    for setting in (
        "prompts_per_step=2",
        "group_size=2",
        "sampling.max_new_tokens=6",
        "eval.tasks=4",
    )
]
SMALL = words("--prompts-per-step 2 --group-size 2 --max-new-tokens 6 --set eval.tasks=4")


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from grpo_core.cli import main; main()", *map(str, arguments)]


@pytest.fixture(scope="module")
def grpo() -> Iterator[Forks]:
    """Starts commands as forks: to import torch and transformers takes longer than all they do."""
    with forks() as opened:
        yield opened


def steps_in(folder: Path) -> list[int]:
    return [line["step"] for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


def wait_for_steps(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(steps_in(folder)) < count:
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.05)


def test_a_run_from_the_command_line_trains_draws_answers_and_can_be_replayed(
    grpo, tiny_folder, tmp_path
):
    """The first one is a process as a user starts it."""
    arguments = ["--env", "arithmetic", "--model", tiny_folder, "--steps", "2", *SMALL]
    done = subprocess.run(
        command("run", *arguments, "--out", "runs/first"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "step 2/2" in done.stdout
    assert re.search(r"held-out.*before.*after.*gain", done.stdout)
    folder = tmp_path / "runs" / "first"
    for name in (
        "config.json",
        "metrics.jsonl",
        "rollouts.jsonl",
        "training_curve.png",
        "kl_divergence.png",
        "final/adapter_config.json",
    ):
        assert (folder / name).stat().st_size > 0
    assert (folder / "training_curve.png").read_bytes().startswith(b"\x89PNG")

    answered = grpo.run("generate", "(1 + 1) + 1", "--max-new-tokens", "5", cwd=tmp_path)
    assert answered.returncode == 0, answered.stderr
    assert "final\nwriting an answer of at most 5 tokens" in answered.stderr

    replayed = grpo.run(
        "run", "--recipe", folder / "config.json", "--out", "runs/second", cwd=tmp_path
    )
    assert replayed.returncode == 0, replayed.stderr
    texts = [
        [line["messages"] for line in RunFolder(f).rollout_lines()]
        for f in (folder, tmp_path / "runs" / "second")
    ]
    assert texts[0] == texts[1]

    again = grpo.run(
        "run", "--recipe", folder / "config.json", "--out", "runs/second", cwd=tmp_path
    )
    assert again.returncode == 2
    assert "already holds a run; continue it with --resume" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("run", signal.SIGINT),
        pytest.param("sft", signal.SIGINT, marks=pytest.mark.heavy),
        pytest.param("run", signal.SIGTERM, marks=pytest.mark.heavy),
    ],
)
def test_a_signal_saves_after_the_step_and_resume_goes_on_from_there(
    grpo, tiny_folder, tmp_path, method, number
):
    process = grpo.start(
        method,
        *words(f"--env arithmetic --model {tiny_folder} --steps 500"),
        *TINY,
        "--out",
        "run",
        cwd=tmp_path,
    )
    wait_for_steps(tmp_path / "run", 2)
    process.send_signal(number)
    process.send_signal(number)  # as a wrapper that forwards signals does: still one wish
    output = "".join(process.communicate(timeout=300))
    assert process.returncode == 128 + number, output
    assert "continue with --resume run" in output
    assert (
        f"stopped after step {steps_in(tmp_path / 'run')[-1]} of 500: {number.name} was received"
        in (tmp_path / "run" / "log.txt").read_text()
    )
    done = steps_in(tmp_path / "run")
    saved = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert saved.name == f"step-{done[-1]:06d}"

    process = grpo.start(method, "--resume", "run", cwd=tmp_path)
    wait_for_steps(tmp_path / "run", len(done) + 2)
    process.send_signal(number)
    output = "".join(process.communicate(timeout=300))
    assert f"after step {done[-1]} of 500" in output
    assert steps_in(tmp_path / "run") == list(range(1, len(steps_in(tmp_path / "run")) + 1))


def test_a_run_under_way_is_not_resumed_by_a_second_process(grpo, tiny_folder, tmp_path):
    process = grpo.start(
        *words(f"run --env arithmetic --model {tiny_folder} --steps 500"),
        *TINY,
        "--out",
        "run",
        cwd=tmp_path,
    )
    wait_for_steps(tmp_path / "run", 2)
    second = grpo.run("run", "--resume", "run", cwd=tmp_path)
    assert (second.returncode, second.stderr.count("error:")) == (2, 1)
    assert "another process is writing the run" in second.stderr
    wait_for_steps(tmp_path / "run", len(steps_in(tmp_path / "run")) + 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert steps_in(tmp_path / "run") == list(range(1, len(steps_in(tmp_path / "run")) + 1))
    assert "another process" not in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.heavy
def test_after_kill_minus_9_every_file_of_a_warm_start_is_readable_and_resume_works(
    grpo, tiny_folder, tmp_path
):
    arguments = [
        *words(f"--env arithmetic --model {tiny_folder} --steps 500"),
        *TINY,
        "--set",
        "checkpoint.every=1",
        "--out",
        "run",
    ]
    process = grpo.start("sft", *arguments, cwd=tmp_path)
    wait_for_steps(tmp_path / "run", 3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    json.loads((tmp_path / "run" / "config.json").read_text())
    done = steps_in(tmp_path / "run")
    list(RunFolder(tmp_path / "run").rollout_lines())
    process = grpo.start("sft", "--resume", "run", cwd=tmp_path)
    wait_for_steps(tmp_path / "run", len(done) + 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert steps_in(tmp_path / "run") == list(range(1, len(steps_in(tmp_path / "run")) + 1))


def limited(room: int, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A limit on the size of files fails as a full disk does."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

    environ = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # Python 3.11 does not notice that a cache of byte code was cut off
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=limit,
        check=False,
        env=environ,
    )


@pytest.mark.parametrize(
    ("method", "room"),
    [
        ("run", 2_000),
        pytest.param("run", 30_000, marks=pytest.mark.heavy),
        pytest.param("sft", 30_000, marks=pytest.mark.heavy),
    ],
    ids=str,
)
def test_a_full_disk_stops_the_run_with_one_line_and_loses_nothing(
    tiny_folder, tmp_path, method, room
):
    """At once, or after a few steps."""
    arguments = [
        *words(f"--env arithmetic --model {tiny_folder} --steps 300"),
        *TINY,
        "--set",
        "checkpoint.every=0",
        "--out",
        "run",
    ]
    done = limited(room, method, *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert "cannot be written: " in done.stderr
    if room > 10_000:
        assert done.returncode == 1
        json.loads((tmp_path / "run" / "config.json").read_text())
        lines = list(RunFolder(tmp_path / "run").rollout_lines())
        assert (tmp_path / "run" / "rollouts.jsonl").read_bytes().endswith(b"\n")
        assert lines


@pytest.mark.heavy
def test_a_full_disk_stops_an_export_with_one_line_and_leaves_no_part_of_it(
    grpo, tiny_folder, tmp_path
):
    done = grpo.run(
        *words(f"run --env arithmetic --model {tiny_folder} --steps 2"),
        *TINY,
        "--out",
        "run",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for more in (["--rollouts", "good.jsonl", "--min-reward", "-1"], ["--weights", "merged"]):
        done = limited(500, "export", "run", *more, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("error:")) == (1, 1), done.stderr
        assert "cannot be written: " in done.stderr
        assert "make room, then export again" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / more[1]).exists()
        done = grpo.run("export", "run", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_ctrl_c_in_an_evaluation_prints_what_was_measured(grpo, tiny_folder, tmp_path):
    arguments = words(
        f"--env arithmetic --model {tiny_folder} --tasks 300 --samples 20 --attempts attempts.jsonl"
    )
    process = grpo.start("eval", *arguments, cwd=tmp_path)
    deadline = time.monotonic() + 300
    while not (tmp_path / "attempts.jsonl").exists():
        assert time.monotonic() < deadline, "nothing was attempted"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = "".join(process.communicate(timeout=300))
    assert process.returncode == 130, output
    assert "stopped before all tasks were done" in output
    assert "pass@1" in output
    assert list(read_lines(tmp_path / "attempts.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "arithmetik"], "did you mean 'arithmetic'"),
        ([], "no environment is named"),
        (["--env", "arithmetic", "--group-size", "1"], "group_size"),
        (["--env", "arithmetic", "--set", "optimiser.lr=1"], "did you mean 'optimizer"),
        (["--env", "arithmetic", "--set", "optimizer.lr=fast"], "optimizer.lr"),
        (["--env", "arithmetic", "--set", "env.shot=1"], "did you mean 'env.shots'"),
        (["--env", "arithmetic", "--set", "weights.exakt=1"], "did you mean 'exact'"),
        (["--env", "arithmetic", "--set", "steps"], "key=value"),
        (["--env", "arithmetic", "--steps", "3", "--epochs", "1"], "exclude each other"),
        (["--env", "arithmetic", "--set", "sampling.temperature=0"], "temperature"),
        (["--env", "arithmetic", "--recipe", "missing.toml"], "missing.toml"),
        (["--env", "arithmetic", "--env", "dataset"], "needs rows: set env.path"),
        (["--env", "none.py:Task"], "is not a file"),
        (["--env", "arithmetic", "--set", "eval.also=arithmetik"], "did you mean 'arithmetic'"),
        (["--env", "arithmetic", "--set", "stop.patience=2"], "set eval.every"),
        (
            ["--env", "arithmetic", "--set", "mixture.dataset.share=1"],
            "mixture replaces environment",
        ),
        (
            ["--env", "dataset", "--set", "env.name=openai/gsm8k"],
            "pip install 'grpo-core[datasets]'",
        ),
        (["--env", "arithmetic", "--model", "."], "config.json"),
        (["--env", "arithmetic", "--out", "/proc/run"], "choose another --out"),
        (["--resume", "nothing"], "holds no run"),
        (["--resume", "nothing", "--lr", "1"], "remove the other options"),
        (["--env", "arithmetic", "--device", "cuda"], "cuda"),
    ],
)
def test_wrong_input_gives_one_clear_line_and_writes_nothing(
    tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)  # as without the extra
    if "cuda" in arguments:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has the device that the test says is absent")
    result = CliRunner().invoke(app, ["run", *arguments])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.count("error:") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("[kl]\nbta = 1\n", "setting 'kl.bta' is not known; did you mean 'kl.beta'?"),
        ("[kl]\nbeta = 'much'\n", "setting 'kl.beta': input should be a valid number"),
        ("group_size = 1\n", "setting 'group_size': input should be greater than or equal to 2"),
        ("kl = 3\n", "setting 'kl'"),
        ("[kl\n", "is not valid TOML"),
    ],
)
def test_a_recipe_that_is_wrong_gives_one_clear_line(tmp_path, monkeypatch, recipe, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.toml").write_text(recipe)
    result = CliRunner().invoke(app, ["run", "--env", "arithmetic", "--recipe", "wrong.toml"])
    assert (result.exit_code, result.output.count("error:")) == (2, 1)
    assert message in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.toml"]


def test_a_model_without_a_chat_template_is_refused_before_anything_is_written(
    grpo, tiny_folder, tmp_path
):
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        path = tiny_folder / name
        if path.suffix == ".json":
            path.write_text(
                json.dumps(
                    {k: v for k, v in json.loads(path.read_text()).items() if k != "chat_template"}
                )
            )
        else:
            path.unlink(missing_ok=True)
    done = grpo.run(
        *words(f"run --env arithmetic --model {tiny_folder} --steps 1"),
        *SMALL,
        "--out",
        "run",
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "set model.chat_template" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("group_size", "group_size"),
        ("prompts_per_step", "prompts_per_step"),
        ("seed", "seed"),
    ],
)
def test_the_defaults_that_the_help_names_are_those_of_the_config(option, key):
    value = build_config([{"environment": "arithmetic"}])
    for part in key.split("."):
        value = getattr(value, part)
    (typed,) = [
        m
        for m in get_type_hints(run_command, include_extras=True)[option].__metadata__
        if hasattr(m, "help")
    ]
    assert float(typed.help.partition("[default: ")[2].rstrip("]")) == value
