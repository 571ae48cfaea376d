"""`grpo new KIND`: each kind of plugin is a complete package that passes its own tests, is listed, and does its work in a run."""

from __future__ import annotations

import csv
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import yaml

from grpo_core.kit.new_plugin import Kind, plugin_files
from grpo_core.protocol.hookspecs import OFFER_HOOKS

from ..commandline import words
from ..train.tiny import save_tiny
from .distributions import grpo, install, install_project, pytest_apart

KINDS = get_args(Kind)
SMALL = words(
    "--prompts-per-step=2 --group-size=2 --set=sampling.max_new_tokens=6 "
    "--set=eval.tasks=2 --set=kl.beta=0 --set=model.dtype=float32"
)


@pytest.fixture
def project(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a plugin of a kind, `my-own`, and installs it as pip would in editable mode."""

    def made(kind: str, name: str = "my-own") -> Path:
        result = grpo("new", kind, name)
        assert result.exit_code == 0, result.stderr
        folder = site / f"grpo-{kind}-{name}"
        install_project(site, folder, monkeypatch)
        return folder

    return made


def test_each_kind_of_plugin_has_a_scaffold() -> None:
    # An endpoint is a whole server, of which there is no small one to begin with; a listener is
    # one method, which its chapter shows.
    assert {*KINDS, "environment", "endpoint", "listener"} == set(OFFER_HOOKS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_of_each_kind_is_listed_and_passes_its_own_tests(
    kind: str, project: Callable[..., Path]
) -> None:
    folder = project(kind)
    listed = {row["name"]: row for row in json.loads(grpo("plugins", "--json").stdout)}
    assert listed["my-own"]["status"] == "ok"
    assert listed["my-own"]["offers"][kind][0] == "my-own"
    done = pytest_apart(cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_a_plugin_is_well_formed_and_tidy(kind: Kind, tmp_path: Path) -> None:
    files = plugin_files(kind, "my-own")
    package = f"grpo_{kind}_my_own"
    wanted = {".gitignore", "README.md", "pyproject.toml", f"tests/test_{kind}.py"}
    assert wanted | {f"{package}/__init__.py", f"{package}/py.typed"} <= files.keys()
    assert [path for path, text in files.items() if "$" in text.replace("${{ matrix", "")] == []
    steps = yaml.safe_load(files[".github/workflows/test.yml"])["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step][-2:] == [
        "pytest",
        "grpo plugins my-own --check",
    ]
    for path, text in files.items():
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), path
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for command in (["check", "--select", "E,F,W,I,UP,B"], ["format", "--check"]):
        tidy = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", "."]
        done = subprocess.run(tidy, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_name_may_be_that_of_something_the_module_imports(
    kind: str, site: Path, tmp_path: Path
) -> None:
    assert grpo("new", kind, "outcome", "--out", str(tmp_path / "judge")).exit_code == 0
    for file in (tmp_path / "judge").rglob("*.py"):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", file],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("My_Judge", "cannot name a judge; write lowercase letters"),
        ("docker", "the name 'docker' is taken by grpo-core"),
        ("import", "'import' is a keyword of Python"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_written(
    site: Path, name: str, reason: str
) -> None:
    before = sorted(site.iterdir())
    result = grpo("new", "judge", name)
    assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert reason in result.stderr
    assert sorted(site.iterdir()) == before


def test_new_env_is_env_new(site: Path) -> None:
    shown = [
        grpo(*words, "word-sums", "--kind", "dialogue", "--out", name)
        for words, name in ((("new", "env"), "one"), (("env", "new"), "two"))
    ]
    assert shown[0].stdout == shown[1].stdout.replace("two", "one")
    files = [
        {
            path.relative_to(site / name): path.read_bytes()
            for path in (site / name).rglob("*")
            if path.is_file()
        }
        for name in ("one", "two")
    ]
    assert files[0] == files[1]


def test_the_judge_agrees_with_its_pairs(project: Callable[..., Path]) -> None:
    pairs = project("judge") / "tests" / "pairs.jsonl"
    done = grpo("judge", "check", str(pairs), "--judge", "my-own")
    assert done.exit_code == 0, done.output
    assert "4 right, 0 tied, 0 wrong" in done.stdout


def test_the_sandbox_runs_the_programs_of_an_environment(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["fizzbuzz", "--set", "sandbox.name=my-own"]
    monkeypatch.syspath_prepend(project("sandbox") / "tests")
    service = importlib.import_module("service").service
    shown = grpo("env", "show", "fizzbuzz", "--reference")
    answer = shown.stdout.rpartition("[reference]\n")[2].strip()
    with service() as url:
        setting = f"--set=sandbox.settings.url={url}"
        done = grpo("env", "score", *words, setting, "--answer", "-", stdin=answer)
    assert done.exit_code == 0, done.output
    assert "passed" in done.stdout
    assert "not passed" not in done.stdout


def test_a_run_uses_the_estimator_the_loss_the_tracker_and_the_recipe(
    project: Callable[..., Path], site: Path, tmp_path: Path
) -> None:
    model = save_tiny(tmp_path / "model")
    for kind in ("algorithm", "tracker", "recipe"):
        project(kind, f"my-{kind}")
    install(site, "grpo-env-rival", entry_points={"arithmetic": "nowhere"})
    folder = tmp_path / "run"
    done = grpo(
        "run",
        "--recipe=my-recipe",
        "--env=arithmetic",
        f"--model={model}",
        "--steps=2",
        *SMALL,
        "--set=advantage.name=plugin:my-algorithm",
        "--set=loss.name=plugin:my-algorithm/loss",
        "--set=log.trackers=plugin:my-tracker",
        f"--out={folder}",
    )
    assert done.exit_code == 0, done.output
    assert json.loads((folder / "config.json").read_text())["optimizer"]["lr"] == 2e-5
    assert (folder / "log.txt").read_text().count("the plugin of grpo-env-rival 1.0 has") == 1
    rows = list(csv.DictReader((folder / "my-tracker.csv").open(encoding="utf-8")))
    assert {row["step"] for row in rows if row["metric"] == "reward/mean"} == {"1", "2"}
