"""`grpo config` and `grpo doctor`."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli import doctor
from grpo_core.cli.app import app
from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import known_keys
from grpo_core.plugins.host import PluginHost

from ..commandline import words
from .distributions import grpo, install_plugin


def test_show_prints_every_setting_and_what_differs_from_its_default() -> None:
    result = grpo("config", "show", "--env", "arithmetic", "--set", "kl.beta=0.5")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert [line.partition(" = ")[0] for line in lines] == list(known_keys())
    assert "kl.beta = 0.5  # default: by the model's size" in lines
    assert "sampling.top_p = 1.0" in lines


def test_recipes_merge_from_left_to_right_then_settings(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(
        'environment = "arithmetic"\n[kl]\nbeta = 0.1\n[optimizer]\nlr = 1e-3\n'
    )
    (tmp_path / "two.toml").write_text("[kl]\nbeta = 0.2\nestimator = 'k2'\n")
    recipes = ["--recipe", str(tmp_path / "one.toml"), "--recipe", str(tmp_path / "two.toml")]
    shown = shown_config(*recipes, "--set", "kl.estimator=k1")
    assert shown["environment"] == "arithmetic"
    assert (shown["kl"]["beta"], shown["kl"]["estimator"]) == (0.2, "k1")
    assert shown["optimizer"]["lr"] == 1e-3


def shown_config(*arguments: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(grpo("config", "show", *arguments, "--json").stdout)
    return config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("env.nonsense=3", "env.nonsense is not a setting of 'arithmetic'; it has env.shots"),
        ("env.shots=many", "env.shots"),
        ("weights.foo=1", "weights.foo does not name a reward part"),
        ("model.name=", "setting 'model.name': string should have at least 1 character"),
    ],
)
def test_what_a_run_refuses_is_not_shown(setting: str, message: str) -> None:
    refused = grpo("config", "show", "--env", "arithmetic", "--set", setting)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in " ".join(refused.stderr.split())


def test_a_recipe_with_code_of_somebody_else_is_shown_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')")
    (tmp_path / "recipe.yaml").write_text(f"environment: {tmp_path}/mine.py:Mine\nenv: {{a: 1}}\n")
    shown = grpo("config", "show", "--config", str(tmp_path / "recipe.yaml"))
    assert shown.exit_code == 0
    assert "mine.py:Mine" in shown.stdout
    assert "imported" not in shown.output
    assert "not checked, as this would run code of the recipe" in " ".join(shown.stderr.split())


def test_several_environments_are_shown_as_a_mixture() -> None:
    shown = shown_config("--env", "arithmetic", "--env", "parentheses")
    assert (shown["environment"], list(shown["mixture"])) == (None, ["arithmetic", "parentheses"])


def test_every_setting_is_explained() -> None:
    """The parts of a section are explained with it."""
    sections = {key.partition(".")[0] for key in known_keys()}
    said = [line for key in sections for line in grpo("config", "explain", key).stdout.splitlines()]
    explained = {line.partition("  ")[0]: meaning for line, meaning in pairwise(said)}
    assert explained.keys() >= set(known_keys())
    assert [key for key in known_keys() if len(explained[key].split()) < 3] == []


def test_settings_of_a_member_of_a_mixture_are_explained() -> None:
    share = grpo("config", "explain", "mixture.arithmetic.share").stdout
    assert share.startswith("mixture.arithmetic.share  number, >= 0, default 1.0\n")
    assert "mixture.NAME.level" in grpo("config", "explain", "mixture").stdout
    assert "judges.NAME.settings" in grpo("config", "explain", "judges").stdout


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("show --set mixture.gsm8k.shares=2", "did you mean 'mixture.gsm8k.share'?"),
        ("explain mixture.gsm8k.shares", "did you mean 'mixture.gsm8k.share'?"),
        ("explain kl.bta", "'kl.bta' is not known; did you mean 'kl.beta'?"),
        ("explain judges.default.nam", "'judges.default.nam' is not known"),
    ],
)
def test_a_setting_that_is_not_known_gets_the_nearest_one(arguments: str, hint: str) -> None:
    done = grpo("config", *words(arguments))
    assert (done.exit_code, hint in done.stderr) == (2, True), done.output


def test_a_section_is_explained_as_a_whole_and_bounds_are_named() -> None:
    output = grpo("config", "explain", "sampling").stdout
    assert "sampling.top_p  number, > 0, <= 1, default 1.0" in output
    assert "sampling.max_new_tokens  integer or unset, > 0, default null" in output


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("judges.default.name", "judges.default.name  string, without a default"),
        ("judges.audit", "judges.audit.settings  object, default {}"),
        ("judges.audit.settings.model", "judges.audit.settings  object, default {}"),
        ("sandbox.settings.jails", "sandbox.settings  object, default {}"),
        ("weights.exact", "weights  object, default {}"),
    ],
)
def test_what_is_below_a_table_is_explained(key: str, shown: str) -> None:
    done = grpo("config", "explain", key)
    assert (done.exit_code, shown in done.stdout) == (0, True), done.output


def test_the_schema_is_that_of_the_config() -> None:
    assert json.loads(grpo("config", "schema").stdout) == RunConfig.model_json_schema()


@pytest.mark.slow
def test_the_doctor_names_what_is_broken_and_exits_with_1(site: Path) -> None:
    install_plugin(site, "bad", "raise ValueError('no luck')")
    result = grpo("doctor", "--json")
    found = {line["topic"]: line for line in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert found["plugin"]["status"] == "problem"
    assert "no luck" in found["plugin"]["found"]
    topics = {"python", "torch", "cores", "device", "disk, models", "docker daemon", "bubblewrap"}
    assert topics | {"models"} <= found.keys()


def test_the_doctor_is_content_where_nothing_is_broken(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the plugins, each of which is loaded in a process of its own, one will do."""
    monkeypatch.setattr(doctor, "ROOM_MB", 0)
    others = [name for name in PluginHost().plugins if name != "arithmetic"]
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", ",".join(others))
    result = grpo("doctor")
    assert result.exit_code == 0
    assert "arithmetic" in result.stdout


def test_the_environments_that_are_asked_for_take_the_place_of_a_recipes(tmp_path: Path) -> None:
    recipe = tmp_path / "mix.toml"
    recipe.write_text("[mixture.arithmetic]\nlevel = 0.5\n[mixture.gsm8k]\n")

    def members(*options: str) -> dict[str, float | None]:
        shown = shown_config("--recipe", str(recipe), *options)
        found = {name: member["level"] for name, member in shown["mixture"].items()}
        return found or {shown["environment"]: shown["level"]}

    assert members() == {"arithmetic": 0.5, "gsm8k": None}
    both = members("--env", "arithmetic", "--env", "fizzbuzz")
    assert both == {"arithmetic": 0.5, "fizzbuzz": None}
    assert members("--env", "fizzbuzz") == {"fizzbuzz": 0.0}
    assert members("--env", "arithmetic") == {"arithmetic": 0.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("config show --env arithmetic --env arithmetic", "--env arithmetic is given twice"),
        ("config show --env a.py:X --env ./a.py:X", "--env ./a.py:X is given twice"),
        ("run --env arithmetic --allow kl", "--allow is for --resume"),
        ("config show --env ~nobody-at-all/x.py:A", "is not a path"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments: str, message: str) -> None:
    result = grpo(*words(arguments))
    assert result.exit_code == 2
    assert message in result.stderr


def test_help_names_the_defaults() -> None:
    """In rich's markup, `[default: 150]` would be a tag that is not shown."""
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    assert "[default: 150]" in shown
    assert shown.count("[default: by the model's size]") == 2


def test_the_settings_of_an_environment_are_explained_by_its_name() -> None:
    done = grpo("config", "explain", "env.eval_path", "--env", "dataset")
    assert done.stdout == 'env.eval_path  string, default ""\n  File with the held-out rows.\n'
    every = grpo("config", "explain", "env", "--env", "fizzbuzz").stdout
    assert "env.partial  above_constant | seed | none, default" in every
    assert "env.cpu_seconds  number, default 2.0\n  The CPU time of one call" in every


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("env.path", "name it, as in `grpo config explain env.path --env dataset`"),
        ("env.pth --env dataset", "did you mean 'env.path'? It has env.path, env.name"),
        ("env.path --env dataste", "did you mean 'dataset'?"),
    ],
)
def test_a_setting_that_an_environment_does_not_have_is_one_line(
    arguments: str, message: str
) -> None:
    done = grpo("config", "explain", *words(arguments))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("plugins=judge, recipes", 'plugins = ["judge", "recipes"]'),
        ("sampling.stop=a, b", 'sampling.stop = ["a, b"]'),
        ('weights={"exact": 2}', 'weights = {"exact": 2.0}'),
    ],
)
def test_a_list_takes_one_word_and_a_table_takes_json(setting: str, shown: str) -> None:
    done = grpo("config", "show", "--env", "arithmetic", "--set", setting)
    assert done.exit_code == 0, done.stderr
    assert shown in done.stdout
    broken = grpo("config", "show", "--env", "arithmetic", "--set", 'weights={"a": 1')
    assert (broken.exit_code, "setting 'weights' is not JSON" in broken.stderr) == (2, True)
