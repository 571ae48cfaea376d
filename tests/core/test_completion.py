"""Completion in shells: commands, options, names of environments and of settings, and the scripts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core.cli import shells
from grpo_core.cli.app import app
from grpo_core.cli.completion import environment_names, set_values

SCRIPT = Path(sys.executable).parent / "grpo"


def completed(line: str, *, shell: str = "bash") -> list[str]:
    """Return what a shell is offered at the end of a command line."""
    shells.answer_shells()
    env = {
        "_GRPO_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    result = CliRunner().invoke(app, [], prog_name="grpo", env=env)
    assert result.exit_code == 0, result.output
    return result.stdout.strip().splitlines()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("grpo re", ["report", "rescore"]),
        ("grpo config sh", ["show"]),
        ("grpo run --group", ["--group-size"]),
        ("grpo run --se", ["--seed", "--set", "--seeds"]),
        ("grpo run --seeds 2 --sw", ["--sweep"]),
        ("grpo eval --end", ["--endpoint"]),
        ("grpo run --env arith", ["arithmetic"]),
        ("grpo env show arith", ["arithmetic"]),
        ("grpo run --set kl.est", ["kl.estimator="]),
        ("grpo config explain kl.est", ["kl.estimator"]),
        ("grpo run --env ./mine", []),  # the shell completes names of files
    ],
)
def test_a_shell_is_offered_what_can_follow(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_each_shell_gets_its_form() -> None:
    (zsh,) = completed("grpo run --set kl.est", shell="zsh")
    assert zsh == """_arguments '*: :(("kl.estimator="))'"""
    assert completed("grpo run --set kl.est", shell="fish") == ["kl.estimator="]


def test_a_setting_of_few_values_is_completed_to_them() -> None:
    assert set_values("kl.estimator=k3") == [f"kl.estimator={k}" for k in ("k3", "k3_reverse", "k3_st")]  # fmt: skip
    assert set_values("lora.enabled=") == ["lora.enabled=true", "lora.enabled=false"]
    assert set_values("optimizer.lr=") == set_values("no.such.setting=") == []
    assert {"arithmetic", "wordle"} <= set(environment_names(""))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_and_installed_where_the_shell_reads_it(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="grpo")
    assert (shown.exit_code, f"complete_{shell}" in shown.stdout) == (0, True)
    installed = CliRunner().invoke(app, ["--install-completion"], prog_name="grpo")
    assert installed.exit_code == 0
    file = Path(installed.stdout.strip())
    assert file.is_relative_to(tmp_path)
    assert file.read_text().strip() == shown.stdout.strip()


def test_a_shell_that_cannot_complete_is_refused_by_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("dash", "/bin/dash"))
    refused = CliRunner().invoke(app, ["--show-completion"], prog_name="grpo")
    assert refused.exit_code == 2
    assert "completion is for bash, zsh, fish, and this shell is dash" in refused.stderr


@pytest.mark.skipif(not SCRIPT.exists(), reason="the console script is not installed")
def test_bash_itself_completes_with_the_script_that_it_is_given() -> None:
    """After KEY= there is no space, as the value follows at once."""
    asked = """
        eval "$(grpo --show-completion)"
        COMP_WORDS=(grpo run --set kl.est); COMP_CWORD=3
        compopt() { echo compopt "$@"; }
        _grpo_completion grpo
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", asked],
        env={**os.environ, "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}", "SHELL": "/bin/bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["compopt -o nospace", "kl.estimator="]
