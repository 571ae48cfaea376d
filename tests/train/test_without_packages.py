"""An installation without the packages around the core, in which nothing of them can be imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..commandline import words

PACKAGES = ("grpo_evals", "grpo_kit", "grpo_report", "grpo_trl")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of processes that have none of these packages, nor have their children."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({PACKAGES!r}))\n"
    (tmp_path / "sitecustomize.py").write_text(blocked)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    cache = {"GRPO_CACHE": str(tmp_path / "cache")}
    return {**os.environ, **cache, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.mark.slow
def test_it_trains_verifies_and_evaluates_and_says_what_is_missing(
    tiny_folder: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    def done(code: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *words(text)]
        return subprocess.run(
            command, capture_output=True, text=True, env=environ, cwd=tmp_path, check=False
        )

    def grpo(text: str) -> subprocess.CompletedProcess[str]:
        return done("from grpo_core.cli import main; main()", text)

    small = "--steps 1 --prompts-per-step 2 --group-size 2 --set eval.tasks=2"
    trained = grpo(f"run --env arithmetic --model {tiny_folder} --out run {small}")
    assert trained.returncode == 0, trained.stderr
    measured = grpo("eval --run run --tasks 2 --samples 2")
    assert measured.returncode == 0, measured.stderr
    assert "check   Cannot be used: its module grpo_kit" in grpo("env --help").stdout
    refused = grpo("env check arithmetic")
    assert refused.returncode == 2
    assert "its module grpo_kit.commands.check is not installed" in refused.stderr
    testing = "from grpo_core.testing import load_checks; load_checks()"
    assert "grpo_kit" in done(testing).stderr.splitlines()[-1]
