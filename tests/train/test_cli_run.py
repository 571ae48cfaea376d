"""`grpo run`, `grpo generate` and what happens when they are interrupted, with a tiny model."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest
from click.testing import Result
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.cli.run import run as run_command
from grpo_core.config.overrides import build_config
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

from ..commandline import words
from .short_runs import grpo
from .tiny import save_tiny

SMALL = words(
    "--set prompts_per_step=2 --set group_size=2 --set sampling.max_new_tokens=6 --set eval.tasks=2"
)


def grpo_with_signals(arrives: Callable[[], bool], *arguments: str | Path, number: int) -> Result:
    """Run a command; send this process the signal twice as soon as `arrives` returns true.

    A wrapper that forwards signals sends two: that is still one wish.
    """

    def send() -> None:
        deadline = time.monotonic() + 300
        while not arrives() and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(2):
            os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    result = grpo(*arguments, status=128 + number)
    sender.join()
    return result


def steps_in(folder: Path) -> list[int]:
    return [line["step"] for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


@pytest.fixture
def options(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a run of many steps to the folder "run"."""
    monkeypatch.chdir(tmp_path)
    return [*words(f"--env arithmetic --model {tiny_folder} --steps 500 --out run"), *SMALL]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run by a process as a user starts it, and what that printed."""
    place = tmp_path_factory.mktemp("first")
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", "run", *SMALL]
    options = words(f"--env arithmetic --model {save_tiny(place / 'tiny')} --steps 2")
    done = subprocess.run(
        [*command, *options, "--out", "runs/first"],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place / "runs" / "first", done.stdout


def test_a_run_from_the_command_line_trains_and_names_what_comes_next(first_run):
    folder, output = first_run
    assert "step 2/2" in output
    assert "grpo generate --run runs/first" in output
    assert "grpo report runs/first" in output
    assert re.search(r"held-out.*before.*after.*gain", output)
    for name in ("config.json", "metrics.jsonl", "rollouts.jsonl", "final/adapter_config.json"):
        assert (folder / name).stat().st_size > 0


def test_the_newest_run_answers(first_run, monkeypatch):
    monkeypatch.chdir(first_run[0].parents[1])
    answered = grpo("generate", "(1 + 1) + 1", "--max-new-tokens", "5")
    assert "final\nwriting an answer of at most 5 tokens" in answered.stderr


def test_a_run_can_be_replayed_and_does_not_write_over_another(first_run, tmp_path):
    folder, second = first_run[0], tmp_path / "second"
    grpo("run", "--recipe", folder / "config.json", "--out", second)
    first, again = (
        [line["messages"] for line in RunFolder(run).rollout_lines()] for run in (folder, second)
    )
    assert first == again
    refused = grpo("run", "--recipe", folder / "config.json", "--out", second, status=2)
    assert "already holds a run; continue it with --resume" in refused.stderr


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
    options, tmp_path, method, number
):
    run = tmp_path / "run"

    def stopped_after(count: int, *arguments: str) -> str:
        arrives = lambda: len(steps_in(run)) >= count  # noqa: E731
        return grpo_with_signals(arrives, method, *arguments, number=number).output

    assert "continue with --resume run" in stopped_after(2, *options)
    last = steps_in(run)[-1]
    reason = f"stopped after step {last} of 500: {number.name} was received"
    assert reason in (run / "log.txt").read_text()
    assert max((run / "checkpoints").iterdir()).name == f"step-{last:06d}"
    assert f"after step {last} of 500" in stopped_after(last + 2, "--resume", "run")
    assert steps_in(run) == list(range(1, len(steps_in(run)) + 1))


def test_a_run_that_another_process_writes_is_not_resumed(first_run, tmp_path):
    folder = Path(shutil.copytree(first_run[0], tmp_path / "run"))
    shutil.rmtree(folder / "final")  # as before its end
    log = (folder / "log.txt").read_bytes()
    program = "import sys; from pathlib import Path; from grpo_core.runs.hold import hold; lock = hold(Path(sys.argv[1])); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        writer.stdout.readline()
        second = grpo("run", "--resume", folder, status=2)
        writer.communicate(b"\n")
    assert second.stderr.count("error:") == 1
    assert "another process is writing the run" in second.stderr
    assert (folder / "log.txt").read_bytes() == log


def limited(room: int, *arguments: str | Path) -> Result:
    """Run a command that can write files of so many bytes, which fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            return CliRunner().invoke(app, [str(argument) for argument in arguments])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("method", "room"),
    [
        ("run", 2_000),
        pytest.param("run", 30_000, marks=pytest.mark.heavy),
        pytest.param("sft", 30_000, marks=pytest.mark.heavy),
    ],
    ids=str,
)
def test_a_full_disk_stops_the_run_with_one_line_and_loses_nothing(options, tmp_path, method, room):
    """At once, or after a few steps."""
    done = limited(room, method, *options, "--set", "checkpoint.every=0")
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.count("error:") == 1
    assert "cannot be written: " in done.stderr
    if room > 10_000:
        assert done.exit_code == 1
        json.loads((tmp_path / "run" / "config.json").read_text())
        assert list(RunFolder(tmp_path / "run").rollout_lines())
        assert (tmp_path / "run" / "rollouts.jsonl").read_bytes().endswith(b"\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [["--rollouts", "good.jsonl", "--min-reward", "-1"], ["--weights", "merged"]], ids=str
)
def test_a_full_disk_stops_an_export_with_one_line_and_leaves_no_part_of_it(
    first_run, tmp_path, monkeypatch, more
):
    monkeypatch.chdir(tmp_path)
    done = limited(500, "export", first_run[0], *more)
    assert (done.exit_code, done.stderr.count("error:")) == (1, 1), done.stderr
    assert "cannot be written: " in done.stderr
    assert "make room, then export again" in done.stderr
    assert not (tmp_path / more[1]).exists()
    grpo("export", first_run[0], *more)


def test_ctrl_c_in_an_evaluation_prints_what_was_measured(tiny_folder, tmp_path):
    attempts = tmp_path / "attempts.jsonl"
    arguments = f"eval --env arithmetic --model {tiny_folder} --tasks 300 --samples 20"
    done = grpo_with_signals(
        attempts.exists, *words(arguments), "--attempts", attempts, number=signal.SIGINT
    )
    assert "stopped before all tasks were done" in done.output
    assert "pass@1" in done.output
    assert list(read_lines(attempts))


WRONG = [
    ("--env arithmetik", "did you mean 'arithmetic'"),
    ("", "no environment is named"),
    ("--env arithmetic --group-size 1", "group_size"),
    ("--env arithmetic --set optimiser.lr=1", "did you mean 'optimizer"),
    ("--env arithmetic --set optimizer.lr=fast", "optimizer.lr"),
    ("--env arithmetic --set env.shot=1", "did you mean 'env.shots'"),
    ("--env arithmetic --set weights.exakt=1", "did you mean 'exact'"),
    ("--env arithmetic --set steps", "key=value"),
    ("--env arithmetic --steps 3 --epochs 1", "exclude each other"),
    ("--env arithmetic --set sampling.temperature=0", "temperature"),
    ("--env arithmetic --recipe missing.toml", "missing.toml"),
    ("--env arithmetic --env dataset", "needs rows: set env.path"),
    ("--env none.py:Task", "is not a file"),
    ("--env arithmetic --set eval.also=arithmetik", "did you mean 'arithmetic'"),
    ("--env arithmetic --set stop.patience=2", "set eval.every"),
    ("--env arithmetic --set mixture.dataset.share=1", "mixture replaces environment"),
    ("--env dataset --set env.name=openai/gsm8k", "pip install 'grpo-core[datasets]'"),
    ("--env arithmetic --model .", "config.json"),
    ("--env arithmetic --out /proc/run", "choose another --out"),
    ("--resume nothing", "holds no run"),
    ("--resume nothing --env arithmetic", "remove --env, --data, --reward, --recipe and --out"),
    ("--env arithmetic --device cuda", "cuda"),
]
WRONG_RECIPES = [
    ("[kl]\nbta = 1\n", "setting 'kl.bta' is not known; did you mean 'kl.beta'?"),
    ("[kl]\nbeta = 'much'\n", "setting 'kl.beta': input should be a valid number"),
    ("group_size = 1\n", "setting 'group_size': input should be greater than or equal to 2"),
    ("kl = 3\n", "setting 'kl'"),
    ("[kl\n", "is not valid TOML"),
]


def assert_refused(arguments: str, message: str) -> None:
    output = grpo(*words(arguments), status=2).output
    assert output.count("error:") == 1
    assert message in output


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_input_gives_one_clear_line_and_writes_nothing(
    tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)  # as without the extra
    if "cuda" in arguments and pytest.importorskip("torch").cuda.is_available():
        pytest.skip("this machine has the device that the test says is absent")
    assert_refused(f"run {arguments}", message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("recipe", "message"), WRONG_RECIPES)
def test_a_recipe_that_is_wrong_gives_one_clear_line(tmp_path, monkeypatch, recipe, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.toml").write_text(recipe)
    assert_refused("run --env arithmetic --recipe wrong.toml", message)
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.toml"]


def test_a_model_without_a_chat_template_is_refused_before_anything_is_written(
    options, tiny_folder, tmp_path
):
    (tiny_folder / "chat_template.jinja").unlink()
    assert "set model.chat_template" in grpo("run", *options, status=2).stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["group_size", "prompts_per_step", "seed"])
def test_the_defaults_that_the_help_names_are_those_of_the_config(option):
    value = getattr(build_config([{"environment": "arithmetic"}]), option)
    metadata = get_type_hints(run_command, include_extras=True)[option].__metadata__
    (typed,) = [data for data in metadata if hasattr(data, "help")]
    assert float(typed.help.partition("[default: ")[2].rstrip("]")) == value
