"""`grpo env probe --shortcuts`: which shortcuts it finds, what it says of sound environments, and how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from grpo_core.cli.app import app

ENVS = Path(__file__).with_name("shortcut_envs.py")


def probed(name: str, *arguments: str) -> Result:
    """The command on a class of shortcut_envs.py."""
    words = ["env", "probe", f"{ENVS}:{name}", "--shortcuts", *arguments]
    return CliRunner().invoke(app, words, env={"COLUMNS": "200"})


QUICK = ("--tasks", "30")


def level_of(name: str, *arguments: str) -> dict[str, Any]:
    """What it says of the only level, as JSON."""
    done = probed(name, "--json", *QUICK, *arguments)
    assert done.exit_code in (0, 1), done.output
    (level,) = json.loads(done.stdout)["levels"]
    paid = [tried for tried in level["strategies"] + level["mistakes"] if tried["shortcut"]]
    return level | {"paid": {tried["name"]: tried for tried in paid}, "status": done.exit_code}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "strategy", "least"),
    [
        ("Constant", "always '1'", 0.5),
        ("Majority", "the most frequent reference", 0.5),
        ("ByWording", "the most frequent reference by the wording of the prompt", 1.0),
        ("Choices", "the label of the longest choice", 1.0),
        ("Echo", "the whole prompt, echoed", 1.0),
        ("Empty", "the form of an answer without an answer", 1.0),
        ("Superset", "all numbers up to 100", 1.0),
        ("Programs", "a table of the examples, else str(x)", 1.0),
        ("Candidates", "the items of the prompt's list, one in each turn", 1.0),
    ],
)
def test_a_planted_shortcut_is_found_and_named(name: str, strategy: str, least: float) -> None:
    level = level_of(name)
    assert level["status"] == 1
    shown = level["paid"][strategy]
    assert shown["pass_rate"] >= least
    assert shown["interval"][0] > level["even_chance"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["Sum", "Even", "SoundPrograms", "NoReferences"])
def test_none_is_reported_of_a_sound_environment(name: str) -> None:
    level = level_of(name)
    assert (level["status"], level["paid"], level["errors"]) == (0, {}, 0)
    assert level["composed"] > 50


def test_pay_without_passing_is_a_shortcut_where_it_is_half_of_what_is_right() -> None:
    level = level_of("Length")
    assert level["status"] == 1
    assert {tried["passes"] for tried in level["paid"].values()} == {0}
    assert min(tried["reward"] for tried in level["paid"].values()) > 0.5


@pytest.mark.slow
def test_a_mistake_in_references_that_passes_is_shown_and_is_no_failure_of_the_command() -> None:
    level = level_of("Bounds")
    assert level["status"] == 0
    assert list(level["paid"]) == ["upper bounds are exclusive"]
    declared = level_of("Mutants")
    assert declared["status"] == 1
    assert [(t["name"], t["declared"]) for t in declared["paid"].values()] == [("a sign", True)]
    shown = probed("Bounds", *QUICK).stdout
    assert "look at it: 'upper bounds are exclusive' passes 30 of 30 tasks" in shown
    assert "unless it is right on every input" in shown
    assert "no shortcut found" not in shown


def test_people_see_strategies_interval_floor_references_and_what_to_do() -> None:
    shown = probed("Majority", *QUICK).stdout
    assert "strategies on 10 train tasks of level 0, the best" in shown
    assert "'<answer>amber</answer>'" in shown
    assert "the floor is 0; references earn 1.000 and pass 100%" in shown
    assert "an even guess among the answers seen in 30 other tasks passes 25.0%" in shown
    assert "shortcut: 'the most frequent reference' passes" in shown
    assert "balance the answers" in shown


def test_it_claims_no_more_than_it_tried() -> None:
    shown = probed("Sum", *QUICK).stdout.splitlines()
    (line,) = [line for line in shown if "no shortcut found" in line]
    assert "tried on 10 tasks, the best of them on 30" in line
    assert line.endswith("there may be others")


def test_the_same_seed_gives_the_same_table_and_another_one_other_tasks() -> None:
    first, again, other = (
        level_of("Majority", "--seed", seed)["strategies"] for seed in ("1", "1", "2")
    )
    assert first == again
    assert first != other


def test_errors_of_the_verifier_are_counted_apart_and_are_no_zeros() -> None:
    level = level_of("Failing")
    assert level["errors"] == 10
    assert "the verifier has a bug" in level["error"]
    shown = probed("Failing", *QUICK).stdout
    assert f"10 of {level['attempts']} attempts could not be judged" in shown


def test_without_any_verdict_the_status_is_3_and_nothing_is_claimed() -> None:
    done = probed("AllFailing", *QUICK)
    assert done.exit_code == 3
    assert "no attempt could be judged" in done.stdout
    assert "no shortcut found" not in done.stdout


def test_a_short_list_is_divided_and_an_empty_split_is_refused() -> None:
    level = level_of("Rows")
    assert (level["tasks"], level["learned"]) == (3, 3)
    done = probed("Rows", "--split", "eval")
    assert done.exit_code == 2
    assert "of 'shortcut_envs.py:Rows' has no tasks" in str(done.exception) + done.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--shortcuts", "--model", "tiny"], "--shortcuts asks no model, so --model"),
        (["--shortcuts", "--samples", "4"], "--samples would not be used"),
        (["--shortcuts", "--level", "0.5"], "has no levels; remove --level"),
        (["--shortcuts", "--set", "kl.beta=0"], "--set changes settings of env"),
        (["--split", "eval"], "--split is used by --shortcuts alone"),
    ],
)
def test_options_that_would_not_be_used_are_refused(arguments: list[str], reason: str) -> None:
    done = CliRunner().invoke(app, ["env", "probe", f"{ENVS}:Sum", *arguments])
    assert done.exit_code != 0
    assert reason in str(done.exception) + done.output


def test_ctrl_c_prints_what_was_judged_until_then() -> None:
    done = probed("Interrupted", "--json")
    assert done.exit_code == 130
    (level,) = json.loads(done.stdout)["levels"]
    assert level["stopped"]
    assert 100 <= level["attempts"] < 200
    assert max(tried["tasks"] for tried in level["strategies"]) < 10
    assert "stopped before everything was judged" in done.stderr
