"""`grpo eval` from the command line: a model or a run, several levels, greedy, stopped, for people and for programs."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config, nested
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.trainer import Trainer

from ..commandline import words
from .short_runs import LETTERS, QUICK, grpo, tiny_settings

FEW = words("--tasks 3 --samples 2 --json")


def results(*arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(grpo("eval", *arguments).stdout)["results"]
    return found


def trained(settings: dict[str, Any], folder: Path, **changes: Any) -> Path:
    run = {"environment": LETTERS, **QUICK, "steps": 1, **changes}
    Trainer(build_config([settings, nested(run)]), folder=folder).run()
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A run that has learned, of completions of 7 tokens, beside its model `tiny`."""
    place = tmp_path_factory.mktemp("eval")
    changes = {"steps": 25, "eval.tasks": 8, "sampling.max_new_tokens": 7}
    return trained(tiny_settings(place), place / "run", **changes)


@pytest.mark.slow
def test_a_run_is_measured_beside_the_model_that_it_began_with(run_folder, tmp_path):
    """The tasks and draws are the same at every call, and those of the run's own evaluation."""
    attempts = tmp_path / "attempts.jsonl"
    common = ["--env", LETTERS, *words("--tasks 8 --samples 4 --json")]
    model = ["--model", run_folder.parent / "tiny", *words("--dtype float32 --max-new-tokens 7")]
    before, again = (results(*model, *common) for _ in range(2))
    after = results("--run", run_folder, "--attempts", attempts, *common[2:])
    assert before == again
    rewards = [found[0]["statistics"]["reward"]["value"] for found in (before, after)]
    assert rewards[1] > rewards[0] + 0.3
    lines = list(read_lines(attempts))
    assert len(lines) == 32
    logged = {
        line["key"]["index"]: line["messages"]
        for line in RunFolder(run_folder).rollout_lines()
        if line["key"]["split"] == "eval"
    }  # the last evaluation's
    assert logged == {
        line["key"]["index"]: line["messages"] for line in lines if line["attempt"] == 0
    }
    refused = grpo("eval", "--run", run_folder, "--attempts", attempts, status=2)
    assert "exists already" in refused.output


def test_several_levels_stand_side_by_side_for_people(tiny_folder):
    few = f"--env arithmetic --model {tiny_folder} --tasks 3 --samples 2 --level 0 --level 0.4"
    shown = grpo("eval", *words(few)).stdout
    statistics = ("pass rate", "pass@2", "max@2", "majority@2", "part exact", "±")
    for text in ("level 0", "level 0.4", *statistics):
        assert text in shown


def test_greedy_attempts_are_all_the_same(tiny_folder):
    (found,) = results("--env", LETTERS, "--model", tiny_folder, "--temperature", "0", *FEW)
    assert found["statistics"]["max@2"] == found["statistics"]["reward"]


@pytest.mark.slow
def test_a_run_is_asked_as_its_own_evaluations_were(tiny_folder, tmp_path):
    """Greedy, if they were; another environment has a budget of its own."""
    model = {"model": {"name": str(tiny_folder), "dtype": "float32"}}
    asked = {"eval.temperature": 0.0, "sampling.max_new_tokens": 7}
    run = ["--run", trained(model, tmp_path / "run", **asked)]
    (found,) = results(*run, *FEW)
    assert found["statistics"]["max@2"] == found["statistics"]["reward"]
    assert found["tokens"] <= 6 * 7
    # The run's own environment, with the run's settings.
    assert results(*run, "--env", LETTERS, *FEW) == [found]
    (other,) = results(*run, "--env", "arithmetic", *FEW)
    assert other["environment"] == "arithmetic"
    assert other["tokens"] > 6 * 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--run PLACE", "holds no run"),
        ("--run PLACE --model PLACE/tiny", "exclude each other"),
        (f"--env {LETTERS} --set eval.tasks=2", "give --tasks 2 instead"),
        ("--model PLACE/tiny", "no environment is named"),
        ("--env arithmetc", "arithmetic"),
        (f"--env {LETTERS} --model PLACE/tiny --attempts PLACE/none/x.jsonl", "does not exist"),
    ],
)
def test_wrong_input_is_one_line(tiny_folder, arguments, message):
    said = grpo("eval", *words(arguments.replace("PLACE", str(tiny_folder.parent))), status=2)
    assert message in said.output
    assert len(said.output.strip().splitlines()) == 1


def test_a_run_is_measured_with_its_settings_however_its_environment_is_named(
    settings, tmp_path, monkeypatch
):
    run = trained(
        settings, tmp_path / "run", **{"env.fail_below": -0.5, "sampling.max_new_tokens": 5}
    )
    monkeypatch.chdir(Path(__file__).parent)
    (found,) = results("--run", run, *FEW)
    assert results("--run", run, "--env", "letters.py:Letters", *FEW) == [found]
    assert found["tokens"] <= 6 * 5


@pytest.mark.slow
def test_the_members_of_a_mixture_are_measured_at_their_own_levels(settings, tmp_path):
    mixture = {LETTERS: {}, "arithmetic": {"level": 0.4}}
    run = trained(settings, tmp_path / "run", environment=None, mixture=mixture)
    for more, levels in (([], [0.0, 0.4]), (["--level", "0.2"], [0.2, 0.2])):
        assert [found["level"] for found in results("--run", run, *FEW, *more)] == levels
