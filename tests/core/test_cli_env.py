"""`grpo envs`, `grpo env show` and `grpo env score`, and how `grpo` reports mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..commandline import words
from .distributions import (
    OFFERS_ONE,
    TOY_ENVIRONMENT,
    grpo,
    grpo_apart,
    install,
    install_plugin,
    install_toy,
)


@pytest.fixture
def toy(site: Path) -> Path:
    """A folder in which the environment `toy` is installed: it asks for the square of the index."""
    install_toy(site)
    return site


def test_version_names_the_distribution() -> None:
    assert grpo("--version").stdout.startswith("grpo-core ")


def test_envs_lists_name_distribution_version_and_summary(toy: Path) -> None:
    row = next(row for row in json.loads(grpo("envs", "--json").stdout) if row["name"] == "toy")
    assert row == {
        "name": "toy",
        "distribution": "grpo-env-toy",
        "version": "1.0",
        "summary": "Adds toy.",
        "extra": None,
        "install": None,
    }


LACKING = """
from grpo_core import Spec, hookimpl

@hookimpl
def grpo_environments():
    return [
        Spec("aaa", "lacking:Env", summary="Lacks a package.", extra="models"),
        Spec("aab", "lacking:Env", summary="Lacks a package of the core.", extra="trackers"),
        Spec("aac", "lacking:Env", summary="Lacks nothing.", extra="light"),
    ]
"""


def test_envs_lists_those_whose_extra_is_missing_last_with_the_command_that_installs_it(
    toy: Path,
) -> None:
    install_plugin(toy, "aaa", LACKING)
    (metadata,) = toy.glob("grpo_env_aaa-*/METADATA")
    metadata.write_text(
        metadata.read_text()
        + "Provides-Extra: models\nProvides-Extra: light\n"
        + "Requires-Dist: a-package-nobody-has>=2 ; extra == 'models'\n"
        + 'Requires-Dist: only_elsewhere ; sys_platform == "none" and extra == "light"\n'
        + "Requires-Dist: PyDantic (>=1) ; extra == 'light'\n"
    )
    done = grpo("envs", "--json")
    listed = {row["name"]: row["install"] for row in json.loads(done.stdout)}
    assert list(listed)[-2:] == ["aaa", "aab"]
    assert listed["aaa"] == "pip install 'grpo-env-aaa[models]'"
    assert listed["aab"] == "pip install 'grpo-core[trackers]'"
    assert listed["aac"] is None
    (line,) = [line for line in grpo("envs").stdout.splitlines() if line.startswith("aaa ")]
    assert "(needs pip install 'grpo-env-aaa[models]') Lacks a package." in line


def test_envs_shortens_the_environments_of_a_plugin_that_offers_many() -> None:
    lines = grpo("envs").stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("reasoning-gym/")]
    assert line.startswith("reasoning-gym/... ")
    assert "105 environments, as reasoning-gym/ab; `grpo envs --all` lists them" in line
    every = grpo("envs", "--all").stdout.splitlines()
    assert sum(line.startswith("reasoning-gym/") for line in every) == 105
    assert len([line for line in lines if line.startswith("besiege/")]) == 3


def test_envs_works_beside_a_broken_plugin_and_mentions_it(toy: Path) -> None:
    install_plugin(toy, "bad", "raise ValueError")
    result = grpo("envs")
    assert result.exit_code == 0
    assert "toy" in result.stdout
    assert "1 of the installed plugins cannot be used; `grpo plugins` says why." in result.stderr


def test_envs_json_stays_json_beside_a_plugin_that_prints(toy: Path) -> None:
    install_plugin(
        toy, "chatty", "print('noise')\n" + OFFERS_ONE.format(name="chatty", target="x:Y")
    )
    assert {"toy", "chatty"} <= {row["name"] for row in json.loads(grpo("envs", "--json").stdout)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "words",
    [
        ["env", "show", "toy"],
        ["env", "score", "toy", "--answer", "-"],
        ["env", "check", "toy", "--only", "task.made", "--tasks", "2"],
    ],
    ids=" ".join,
)
def test_a_name_that_two_packages_have_is_told_at_every_use(toy: Path, words: list[str]) -> None:
    install(toy, "grpo-env-zzz", entry_points={"toy": "plugin_zzz"}, version="2.0")
    for _ in range(2):
        done = grpo_apart(*words, cwd=toy)
        (line,) = [line for line in done.stderr.splitlines() if "grpo-env-zzz" in line]
        assert line == (
            "'toy' is that of grpo-env-toy 1.0; the plugin of grpo-env-zzz 2.0 has the same name "
            "and is not used; uninstall one of them: pip uninstall grpo-env-zzz"
        )


def test_show_prints_the_turns_of_the_prompt(toy: Path) -> None:
    result = grpo("env", "show", "toy", "--index", "3")
    assert result.exit_code == 0
    assert result.stdout.split("\n")[:4] == [
        "[system]",
        "Answer with a number.",
        "[user]",
        "What is 3 * 3?",
    ]


def test_show_prints_the_reference_only_when_asked(toy: Path) -> None:
    assert "9" not in grpo("env", "show", "toy", "--index", "3").stdout
    assert grpo("env", "show", "toy", "--index", "3", "--reference").stdout.endswith(
        "[reference]\n9\n"
    )


def test_show_as_json_holds_the_key_that_replays_the_task(toy: Path) -> None:
    result = grpo(
        *words("env show toy --split eval --index 3 --seed 5 --level 0.5 --reference --json"),
    )
    data = json.loads(result.stdout)
    assert data["key"] == {"env": "toy", "split": "eval", "index": 3, "seed": 5, "level": 0.5}
    assert data["prompt"][1] == {"role": "user", "content": "What is 3 * 3?"}
    assert data["reference"] == "9"


def test_score_as_json_holds_total_parts_and_answer(toy: Path) -> None:
    result = grpo("env", "score", "toy", "--index", "3", "--answer", "-", "--json", stdin="9")
    verdict = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (verdict["total"], verdict["passed"], verdict["answer"], verdict["error"]) == (
        1.5,
        True,
        "9",
        None,
    )
    assert verdict["rewards"]["bonus"] == {"value": 0.5, "weight": 1.0, "note": "for style"}


def test_score_exits_with_0_also_for_a_wrong_answer(toy: Path) -> None:
    result = grpo("env", "score", "toy", "--index", "3", "--answer", "-", stdin="8")
    assert result.exit_code == 0
    assert "not passed" in result.stdout


def test_score_reads_the_answer_from_a_file(toy: Path) -> None:
    (toy / "answer.txt").write_text("9\n")
    assert json.loads(
        grpo("env", "score", "toy", "--index", "3", "--answer", "answer.txt", "--json").stdout
    )["passed"]


def test_score_exits_with_1_when_the_answer_could_not_be_judged(toy: Path) -> None:
    result = grpo("env", "score", "toy", "--answer", "-", "--json", stdin="crash")
    verdict = json.loads(result.stdout)
    assert result.exit_code == 1
    assert verdict["total"] is None
    assert "the verifier has a bug" in verdict["error"]
    assert "could not be judged" in result.stderr


def test_a_setting_changes_the_environment_that_judges(toy: Path) -> None:
    result = grpo(
        *words("env score toy --index 3 --answer - --json --set env.bonus=0.25"),
        stdin="9",
    )
    assert json.loads(result.stdout)["total"] == 1.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env", "show", "toi"], "environment 'toi' is not known; did you mean 'toy'?"),
        (
            ["env", "show", "toy", "--set", "env.bonsu=1"],
            "env.bonsu is not a setting of 'toy'; did you mean 'env.bonus'?",
        ),
        (
            ["env", "show", "toy", "--set", "env.bonus=high"],
            "env.bonus of 'toy': input should be a valid number",
        ),
        (["env", "show", "toy", "--set", "bonus=1"], "as in --set env."),
        (
            ["env", "show", "toy", "--index", "10"],
            "--index 10 is too large: the train split of 'toy' holds 10 tasks",
        ),
        (["env", "score", "toy", "--index", "10", "--answer", "-"], "--index 10 is too large"),
        (
            ["env", "score", "toy", "--answer", "nowhere.txt"],
            "--answer 'nowhere.txt' cannot be read",
        ),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_status_2(
    toy: Path, arguments: list[str], message: str
) -> None:
    result = grpo(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_environment_that_is_broken_fails_only_when_it_is_used(toy: Path) -> None:
    (toy / "toy_environment.py").write_text("raise RuntimeError('half an upgrade')")
    assert grpo("envs").exit_code == 0
    result = grpo("env", "show", "toy")
    assert result.exit_code == 2
    assert (
        "plugin 'toy' (grpo-env-toy 1.0) cannot be used: RuntimeError: half an upgrade"
        in result.stderr
    )


def test_an_environment_that_cannot_make_its_task_is_one_line_and_exit_status_1(toy: Path) -> None:
    (toy / "toy_environment.py").write_text(TOY_ENVIRONMENT.replace("n = key.index", "n = 1 // 0"))
    result = grpo("env", "show", "toy")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: environment 'toy' failed in task()")
    assert "ZeroDivisionError" in result.stderr


def test_ctrl_c_exits_with_130_and_without_a_traceback(toy: Path) -> None:
    (toy / "toy_environment.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    )
    result = grpo_apart("env", "show", "toy")
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


WRITTEN = """
import math
from grpo_core import ConfigError, Environment, Reward, Task, Verdict

class Odd(Environment):
    reward_range = (-math.inf, math.inf)
    trusted = True

    def task(self, key):
        return Task(key, "say \\ud800", None)

    def verify(self, task, rollout):
        return Verdict({"reward": Reward(1.0)}, passed=True, answer="\\ud800")

    def render(self, task, rollout, folder):
        raise ZeroDivisionError

class Undrawn(Odd):
    def render(self, task, rollout, folder):
        raise ConfigError("install the thing that draws")

class Unmade(Odd):
    def __init__(self, config=None, services=None):
        raise KeyError("no such thing")

class NoEnvironment:
    pass
"""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    (tmp_path / "odd.py").write_text(WRITTEN)
    (tmp_path / "answer.txt").write_text("x")
    return tmp_path / "odd.py"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "command", [["score", "--answer", "answer.txt"], ["show"], ["card", "--tasks", "0"]]
)
def test_what_no_terminal_can_say_is_escaped(odd: Path, command: list[str]) -> None:
    """In a process of its own: the streams of the console script decide."""
    name, *options = command
    for more in ([], ["--json"]):
        result = grpo_apart("env", name, f"{odd}:Odd", *options, *more, cwd=odd.parent)
        assert result.returncode == 0, result.stderr
        if more:
            json.loads(result.stdout, parse_constant=pytest.fail)
    assert "\\ud800" in grpo_apart("env", "show", f"{odd}:Odd", cwd=odd.parent).stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["check", "{}:NoEnvironment"], 2, "must name a subclass of grpo_core.Environment"),
        (["check", "{}:Unmade"], 2, "cannot be created: KeyError: 'no such thing'"),
        (["show", "{}:Unmade"], 2, "cannot be created: KeyError: 'no such thing'"),
        (
            ["score", "{}:Odd", "--answer", "answer.txt", "--pictures", "p"],
            1,
            "cannot draw this answer: ZeroDivisionError",
        ),
        (
            ["score", "{}:Undrawn", "--answer", "answer.txt", "--pictures", "p"],
            2,
            "error: install the thing that draws",
        ),
    ],
)
def test_what_an_environment_raises_is_one_line(
    odd: Path, arguments: list[str], status: int, message: str
) -> None:
    result = grpo_apart("env", *(text.format(odd) for text in arguments), cwd=odd.parent)
    assert result.returncode == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr
