"""Run folders of others: nothing that their config.json names runs without the user's word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.trust import risky_settings, trusted_folder
from grpo_core.train.trainer import Trainer

LETTERS = Path(__file__).parent / "letters.py"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A file with an environment that leaves a mark when its code runs."""
    file = tmp_path / "evil.py"
    file.write_text(f"{LETTERS.read_text()}\nopen({str(tmp_path / 'mark')!r}, 'a').close()\n")
    return file


@pytest.fixture
def folder(settings: dict[str, Any], tmp_path: Path) -> Path:
    """A finished run of an environment that is installed."""
    more = {
        "environment": "arithmetic",
        "steps": 1,
        "eval": {"tasks": 2},
        "sampling": {"max_new_tokens": 3},
        "weights": {},
    }
    Trainer(build_config([settings, more]), folder=tmp_path / "run").run()
    return tmp_path / "run"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change config.json as somebody would who wants it to be taken for that of a run."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    config.pop("digest", None)
    path.write_text(json.dumps(config))


def invoke(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def test_no_command_runs_a_file_that_a_folder_names_until_the_user_trusts_it(
    folder, evil, tmp_path
):
    name, mark = f"{evil}:Letters", tmp_path / "mark"
    rewrite(folder, lambda config: config.update(environment=name, env={}))
    unfinished = tmp_path / "unfinished"
    shutil.copytree(folder, unfinished)
    shutil.rmtree(unfinished / "final")
    shutil.rmtree(unfinished / "checkpoints", ignore_errors=True)
    common = ["--tasks", "1", "--samples", "1"]
    commands = (
        ["eval", "--run", folder, *common],
        ["generate", "--run", folder, "2 + 2"],
        ["run", "--resume", unfinished],
        [
            "export",
            folder,
            "--rollouts",
            tmp_path / "good.jsonl",
            "--split",
            "all",
            "--min-reward",
            "0",
        ],
        ["run", "--recipe", folder / "config.json", "--out", tmp_path / "new"],
    )
    for command in commands:
        status, output = invoke(*command)
        assert (status, "add --trust" in output, name in output) == (2, True, True), output
        assert not mark.exists(), command
    status, output = invoke("eval", "--run", folder, "--env", "arithmetic", *common)
    assert status == 0, output  # the folder's own environment is not used
    assert not mark.exists()
    status, output = invoke("eval", "--run", folder, "--env", name, *common)
    assert status == 0, output  # the command itself names the file
    assert mark.exists()
    mark.unlink()
    assert (
        invoke("eval", "--run", folder, *common)[0] == 2
    )  # naming it once is no trust in the folder
    status, output = invoke("eval", "--run", folder, "--trust", *common)
    assert status == 0, output
    status, output = invoke("eval", "--run", folder, *common)
    assert status == 0, output  # what was trusted once is remembered


def test_a_run_of_this_user_on_this_machine_needs_no_trust_and_a_changed_one_does(
    settings, evil, tmp_path, monkeypatch
):
    config = build_config(
        [settings, {"environment": f"{evil}:Letters", "steps": 1, "eval": {"tasks": 2}}]
    )
    Trainer(config, folder=tmp_path / "own").run()
    command = ["eval", "--run", tmp_path / "own", "--tasks", "1", "--samples", "1"]
    assert invoke(*command)[0] == 0
    (note,) = trusted_folder().iterdir()
    assert json.loads(note.read_text())["settings"] == {"environment": f"{evil}:Letters"}
    assert note.parent.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another-user"))
    assert invoke(*command)[0] == 2


def test_a_state_folder_that_cannot_be_written_costs_the_note_and_not_the_run(
    settings, evil, tmp_path, monkeypatch, caplog
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    config = build_config(
        [settings, {"environment": f"{evil}:Letters", "steps": 1, "eval": {"tasks": 2}}]
    )
    Trainer(config, folder=tmp_path / "own").run()
    assert "will ask for --trust" in caplog.text
    assert (tmp_path / "own" / "final").is_dir()


def test_the_python_interface_asks_as_the_command_line_does(folder, evil, tmp_path):
    rewrite(folder, lambda config: config.update(environment=f"{evil}:Letters", env={}))
    shutil.rmtree(folder / "final")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    with pytest.raises(ConfigError, match="add --trust"):
        Trainer.resumed(folder)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"environment": "/x/y.py:Env"}, ["environment"]),
        ({"mixture": {"arithmetic": {}, "/x/y.py:Env": {}}}, ["mixture./x/y.py:Env"]),
        ({"eval": {"also": ["arithmetic", "/x/y.py:Env"]}}, ["eval.also.1"]),
        ({"model": {"name": "org/name", "trust_remote_code": True}}, ["model.trust_remote_code"]),
        ({"env": {"path": "data.jsonl", "reward": "/x/reward.py:score"}}, ["env.reward"]),
        (
            {"mixture": {"dataset": {"env": {"reward": "/x/reward.py:score"}}}},
            ["mixture.dataset.env.reward"],
        ),
        (
            {"judges": {"default": {"name": "llm", "settings": {"base_url": "http://x/v1"}}}},
            ["judges.default.settings.base_url"],
        ),
        ({"judges": {"default": {"name": "/x/judge.py:Judge"}}}, ["judges.default.name"]),
        ({"sandbox": {"name": "/x/box.py:Box"}}, ["sandbox.name"]),
        (
            {"sandbox": {"name": "bubblewrap", "settings": {"python": "/x/python"}}},
            ["sandbox.settings.python"],
        ),
        (
            {
                "environment": "arithmetic",
                "env": {"path": "/data/x.jsonl"},
                "model": {"name": "/models/a.py/b"},
            },
            [],
        ),
        (
            {
                "provenance": {"environments": {"/x/y.py:Env": "1234"}},
                "environment": None,
                "judges": None,
                "mixture": 3,
            },
            [],
        ),
    ],
)
def test_what_runs_code_or_sends_data_is_known(config, names):
    assert list(risky_settings(config)) == names
