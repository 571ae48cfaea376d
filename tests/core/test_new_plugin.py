"""`grpo new KIND`: each kind of plugin is a complete package that passes its own tests, is listed, and does its work in a run."""

import csv
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from grpo_core.protocol.hookspecs import OFFER_HOOKS
from grpo_kit.scaffold.new_plugin import Kind, plugin_files

from ..commandline import words
from ..train.tiny import save_tiny
from .distributions import grpo, install, install_project
from .scaffolds import assert_ruff, assert_tidy, make_project, own_tests

KINDS = get_args(Kind)
SMALL = words(
    "--prompts-per-step=2 --group-size=2 --set=sampling.max_new_tokens=6 "
    "--set=eval.tasks=2 --set=kl.beta=0 --set=model.dtype=float32"
)


@pytest.fixture
def project(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a plugin of a kind, `my-own`, and installs it as pip would in editable mode."""

    return lambda kind, name="my-own": make_project(
        ("new", kind, name), site / f"grpo-{kind}-{name}", monkeypatch
    )


def test_each_kind_of_plugin_has_a_scaffold() -> None:
    # An endpoint is a whole server, of which there is no small one to begin with; a listener is
    # one method, which its chapter shows; the checks of environments are our own.
    assert {*KINDS, "environment", "endpoint", "listener", "checks"} == set(OFFER_HOOKS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_of_each_kind_is_listed_and_passes_its_own_tests(
    kind: str, project: Callable[..., Path]
) -> None:
    folder = project(kind)
    listed = {row["name"]: row for row in json.loads(grpo("plugins", "--json").stdout)}
    assert listed["my-own"]["status"] == "ok"
    assert listed["my-own"]["offers"][kind][0] == "my-own"
    own_tests(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_a_plugin_is_well_formed_and_tidy(kind: Kind, tmp_path: Path) -> None:
    files = plugin_files(kind, "my-own")
    package = f"grpo_{kind}_my_own"
    wanted = {".gitignore", "README.md", "pyproject.toml", f"tests/test_{kind}.py"}
    assert wanted | {f"{package}/__init__.py", f"{package}/py.typed"} <= files.keys()
    assert_tidy(files, tmp_path, last_steps=["pytest", "grpo plugins my-own --check"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_name_may_be_that_of_something_the_module_imports(
    kind: str, site: Path, tmp_path: Path
) -> None:
    assert grpo("new", kind, "outcome", "--out", str(tmp_path / "plugin")).exit_code == 0
    assert_ruff(tmp_path / "plugin", "check", "--select", "F")


def test_new_env_is_env_new(site: Path) -> None:
    files = []
    for command in (("new", "env"), ("env", "new")):
        out = site / command[0]
        assert grpo(*command, *words(f"word-sums --kind dialogue --out {out}")).exit_code == 0
        files.append(
            {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        )
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


@pytest.mark.slow
def test_a_run_on_a_new_environment_uses_the_estimator_the_loss_the_tracker_and_the_recipe(
    project: Callable[..., Path], site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny(tmp_path / "model")
    for kind in ("algorithm", "tracker", "recipe"):
        project(kind, f"my-{kind}")
    assert grpo("env", "new", "word-sums").exit_code == 0
    install_project(site, site / "grpo-env-word-sums", monkeypatch)
    install(site, "grpo-env-zzz", entry_points={"word-sums": "nowhere"})
    folder = tmp_path / "run"
    done = grpo(
        "run",
        "--recipe=my-recipe",
        "--env=word-sums",
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
    assert (folder / "log.txt").read_text().count("the plugin of grpo-env-zzz 1.0 has") == 1
    rows = list(csv.DictReader((folder / "my-tracker.csv").open(encoding="utf-8")))
    assert {row["step"] for row in rows if row["metric"] == "reward/mean"} == {"1", "2"}
