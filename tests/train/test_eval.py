"""`grpo eval` from the command line: a model or a run, several levels, greedy, stopped, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.actor import Actor
from grpo_core.train.trainer import Trainer

from ..commandline import words

LETTERS = f"{Path(__file__).parent / 'letters.py'}:Letters"


def evaluated(*arguments: str | Path) -> Any:
    done = CliRunner().invoke(app, ["eval", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def run_folder(settings: dict[str, Any], tmp_path: Path) -> Path:
    config = build_config(
        [
            settings,
            {
                "environment": LETTERS,
                "steps": 25,
                "eval": {"tasks": 8},
                "sampling": {"max_new_tokens": 7},
            },
        ]
    )
    Trainer(config, folder=tmp_path / "run").run()
    return tmp_path / "run"


@pytest.mark.slow
def test_a_run_is_measured_beside_the_model_that_it_began_with(run_folder, tiny_folder, tmp_path):
    """The tasks and draws are the same at every call, and those of the run's own evaluation."""
    attempts = tmp_path / "attempts.jsonl"
    common = ["--env", LETTERS, "--tasks", "8", "--samples", "4", "--json"]
    before = json.loads(
        evaluated(
            "--model", tiny_folder, "--dtype", "float32", "--max-new-tokens", "7", *common
        ).stdout
    )
    again = json.loads(
        evaluated(
            "--model", tiny_folder, "--dtype", "float32", "--max-new-tokens", "7", *common
        ).stdout
    )
    after = json.loads(evaluated("--run", run_folder, "--attempts", attempts, *common[2:]).stdout)
    assert before["results"] == again["results"]
    rewards = [found["results"][0]["statistics"]["reward"]["value"] for found in (before, after)]
    assert rewards[1] > rewards[0] + 0.3
    lines = list(read_lines(attempts))
    assert len(lines) == 32
    logged = {
        line["key"]["index"]: line["messages"]
        for line in RunFolder(run_folder).rollout_lines()
        if line["key"]["split"] == "eval"
    }  # the last evaluation's
    first = {line["key"]["index"]: line["messages"] for line in lines if line["attempt"] == 0}
    assert first == logged
    refused = CliRunner().invoke(
        app, ["eval", "--run", str(run_folder), "--attempts", str(attempts)]
    )
    assert refused.exit_code == 2
    assert "exists already" in refused.output


def test_several_levels_stand_side_by_side_for_people(tiny_folder):
    done = evaluated(
        *words(f"--env arithmetic --model {tiny_folder} --tasks 3 --samples 2 --level 0"),
        *words("--level 0.4"),
    )
    for text in (
        "level 0",
        "level 0.4",
        "pass rate",
        "pass@2",
        "max@2",
        "majority@2",
        "part exact",
        "±",
    ):
        assert text in done.stdout


def test_greedy_attempts_are_all_the_same(tiny_folder):
    found = json.loads(
        evaluated(
            "--env", LETTERS, "--model", tiny_folder, "--tasks", "3", "--samples", "2", "--temperature", "0", "--json"
        ).stdout
    )  # fmt: skip
    statistics = found["results"][0]["statistics"]
    assert statistics["max@2"] == statistics["reward"]


@pytest.mark.slow
def test_a_run_is_asked_as_its_own_evaluations_were(run_folder):
    """Greedy, if they were; another environment has a budget of its own."""
    config = json.loads((run_folder / "config.json").read_text())
    config["eval"]["temperature"] = 0.0
    del config["digest"]
    (run_folder / "config.json").write_text(json.dumps(config))
    found = json.loads(
        evaluated("--run", run_folder, "--tasks", "3", "--samples", "2", "--json").stdout
    )["results"][0]
    assert found["statistics"]["max@2"] == found["statistics"]["reward"]
    assert found["tokens"] <= 6 * 7
    named = json.loads(
        evaluated(
            "--run", run_folder, "--env", LETTERS, "--tasks", "3", "--samples", "2", "--json"
        ).stdout
    )["results"][0]
    assert named == found  # the run's own environment, with the run's settings
    other = json.loads(
        evaluated(
            "--run", run_folder, "--env", "arithmetic", "--tasks", "3", "--samples", "2", "--json"
        ).stdout
    )["results"][0]
    assert other["environment"] == "arithmetic"
    assert other["tokens"] > 6 * 7  # it writes a's to the end of a budget of 16


def test_a_stop_prints_what_was_measured(tiny_folder, monkeypatch):
    monkeypatch.setattr("grpo_core.train.run.measure.CHUNK", 2)
    roll_out = Actor.sample_and_verify

    async def and_stop(self: Actor, *arguments: Any, **more: Any) -> Any:
        self.stop.make()
        return await roll_out(self, *arguments, **more)

    monkeypatch.setattr(Actor, "sample_and_verify", and_stop)
    done = CliRunner().invoke(
        app,
        words(f"eval --env {LETTERS} --model {tiny_folder} --tasks 5 --samples 2 --json"),
    )
    assert done.exit_code == 130
    assert json.loads(done.stdout)["results"][0]["tasks"] == 1
    assert "stopped before all tasks were done" in done.stderr


def test_wrong_input_is_one_line(tiny_folder, tmp_path):
    for arguments, message in (
        (["--run", str(tmp_path)], "holds no run"),
        (["--run", str(tmp_path), "--model", str(tiny_folder)], "exclude each other"),
        (["--env", LETTERS, "--set", "eval.tasks=2"], "give --tasks 2 instead"),
        (["--model", str(tiny_folder)], "no environment is named"),
        (["--env", "arithmetc"], "arithmetic"),
        (
            words(
                f"--env {LETTERS} --model {tiny_folder} --attempts {tmp_path / 'none' / 'x.jsonl'}"
            ),
            "does not exist",
        ),
    ):
        done = CliRunner().invoke(app, ["eval", *arguments])
        assert done.exit_code == 2, done.output
        assert message in done.output
        assert len(done.output.strip().splitlines()) == 1


def test_a_run_is_measured_with_its_settings_however_its_environment_is_named(
    settings, tmp_path, monkeypatch
):
    more = {
        "environment": LETTERS,
        "env": {"fail_below": -0.5},
        "steps": 1,
        "eval": {"tasks": 0},
        "sampling": {"max_new_tokens": 5},
    }
    Trainer(build_config([settings, more]), folder=tmp_path / "run").run()
    monkeypatch.chdir(Path(__file__).parent)
    arguments = ["--run", tmp_path / "run", "--tasks", "3", "--samples", "2", "--json"]
    found, named = (
        json.loads(evaluated(*arguments, *env).stdout)["results"]
        for env in ([], ["--env", "letters.py:Letters"])
    )
    assert named == found
    assert found[0]["tokens"] <= 6 * 5


@pytest.mark.slow
def test_the_members_of_a_mixture_are_measured_at_their_own_levels(settings, tmp_path):
    mixed = {
        "environment": None,
        "mixture": {LETTERS: {}, "arithmetic": {"level": 0.4}},
        "steps": 1,
        "eval": {"tasks": 0},
    }
    Trainer(build_config([settings, mixed]), folder=tmp_path / "run").run()
    common = ["--run", tmp_path / "run", "--tasks", "2", "--samples", "2", "--json"]
    for more, levels in (([], [0.0, 0.4]), (["--level", "0.2"], [0.2, 0.2])):
        found = json.loads(evaluated(*common, *more).stdout)["results"]
        assert [result["level"] for result in found] == levels
