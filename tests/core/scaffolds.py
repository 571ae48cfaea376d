"""What new projects have in common: how they are installed, tested by themselves, and found tidy."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from .distributions import grpo, install_project, pytest_apart


def make_project(command: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have `grpo` make a project in the working directory, and install it as pip would in editable mode."""
    result = grpo(*command)
    assert result.exit_code == 0, result.stderr
    install_project(folder.parent, folder, monkeypatch)
    return folder


def own_tests(folder: Path, *options: str) -> str:
    done = pytest_apart(*options, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    return done.stdout


def assert_tidy(files: Mapping[str, str], folder: Path, *, last_steps: list[str]) -> None:
    """Check that nothing is left to fill in, how CI ends, and that ruff has nothing to say."""
    for path, text in files.items():
        assert "$" not in text.replace("${{ matrix", "").replace('"$(grpo', ""), path
    steps = yaml.safe_load(files[".github/workflows/test.yml"])["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step][-len(last_steps) :] == last_steps
    for path, text in files.items():
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), path
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for command in (["check", "--select", "E,F,W,I,UP,B"], ["format", "--check"]):
        assert_ruff(folder, *command, "--line-length", "120")


def assert_ruff(folder: Path, *command: str) -> None:
    tidy = [sys.executable, "-m", "ruff", *command, "--isolated", "."]
    done = subprocess.run(tidy, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
