"""The short examples run as they stand, on a machine without torch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def no_torch(tmp_path: Path) -> dict[str, str]:
    """The variables of a process that cannot import torch or transformers."""
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text(
            f"raise ModuleNotFoundError('No module named {name!r}', name={name!r})\n"
        )
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))),
    }


def run(name: str, env: dict[str, str]) -> str:
    result = subprocess.run(
        [sys.executable, EXAMPLES / name],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_scoring_one_answer_shows_a_pass_and_two_failures_with_their_rewards(
    no_torch: dict[str, str],
) -> None:
    asked, *scores = run("01_score_one_answer.py", no_torch).splitlines()
    assert "Calculate (" in asked
    assert [
        "reward 1.0  passed" in scores[0],
        "reward 0.4  not passed" in scores[1],
        "reward 0.0  not passed" in scores[2],
    ] == [True] * 3


@pytest.mark.slow
def test_the_environment_of_the_example_keeps_every_promise_that_the_checks_know(
    no_torch: dict[str, str],
) -> None:
    report = run("02_write_an_environment.py", no_torch)
    assert report.startswith("Reverse: 0 faults")
    assert "references pass with 1" in report


@pytest.mark.heavy
def test_the_script_for_gpus_runs_on_a_cpu_and_writes_table_and_picture(tmp_path: Path) -> None:
    script = EXAMPLES / "benchmarks" / "gpu.py"
    command = [sys.executable, script, "--device", "cpu", "--small", "--out", tmp_path]
    if python := os.environ.get("GRPO_TRL_PYTHON"):
        command += ["--trl-python", python]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    table = (tmp_path / "gpu.md").read_text()
    assert "| generation, 2 x 4, 12 + 6 tokens | grpo-core |" in table
    assert ("| step, 2 x 2, 8 + 4 tokens | trl |" in table) == bool(python)
    assert "vLLM was left out" in table
    assert (tmp_path / "gpu.png").stat().st_size > 1000


@pytest.mark.heavy
def test_sessions_of_a_sandbox_open_and_run_commands_fast_enough(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    script = EXAMPLES / "benchmarks" / "sandbox_sessions.py"
    out = tmp_path / "sessions.json"
    command = [sys.executable, str(script), "--name", "bubblewrap", "--times", "50"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(out.read_text())["missed"] == []
