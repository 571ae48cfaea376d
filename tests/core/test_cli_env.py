"""`grpo envs`, `grpo env show` and `grpo env score`, and how `grpo` reports mistakes."""

import json
from pathlib import Path

import pytest

from ..commandline import words
from .distributions import OFFERS_ONE, TOY_ENVIRONMENT, grpo, grpo_apart, install, install_plugin


def test_version_names_the_distribution() -> None:
    assert grpo("--version").stdout.startswith("grpo-core ")


def test_envs_lists_what_works_beside_broken_and_printing_plugins(toy: Path) -> None:
    install_plugin(toy, "bad", "raise ValueError")
    chatty = OFFERS_ONE.format(name="chatty", target="x:Y")
    install_plugin(toy, "chatty", f"print('noise')\n{chatty}")
    result = grpo("envs", "--json")
    assert result.exit_code == 0
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["toy"] == {
        "name": "toy",
        "distribution": "grpo-env-toy",
        "version": "1.0",
        "summary": "Adds toy.",
        "extra": None,
        "install": None,
    }
    assert "chatty" in rows
    assert "1 of the installed plugins cannot be used; `grpo plugins` says why." in result.stderr


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "command", ["show toy", "score toy --answer -", "check toy --only task.made --tasks 2"]
)
def test_a_name_that_two_packages_have_is_told_at_every_use(toy: Path, command: str) -> None:
    install(toy, "grpo-env-zzz", entry_points={"toy": "plugin_zzz"}, version="2.0")
    for _ in range(2):
        done = grpo_apart("env", *words(command), cwd=toy)
        (line,) = [line for line in done.stderr.splitlines() if "grpo-env-zzz" in line]
        assert line == (
            "'toy' is that of grpo-env-toy 1.0; the plugin of grpo-env-zzz 2.0 has the same name "
            "and is not used; uninstall one of them: pip uninstall grpo-env-zzz"
        )


def test_show_prints_the_turns_of_the_prompt_and_the_reference_only_when_asked(toy: Path) -> None:
    asked = words("env show toy --index 3")
    shown = grpo(*asked)
    assert shown.exit_code == 0
    assert shown.stdout == "[system]\nAnswer with a number.\n[user]\nWhat is 3 * 3?\n"
    assert grpo(*asked, "--reference").stdout == f"{shown.stdout}[reference]\n9\n"


def test_show_as_json_holds_the_key_that_replays_the_task(toy: Path) -> None:
    asked = words("env show toy --split eval --index 3 --seed 5 --level 0.5 --reference --json")
    data = json.loads(grpo(*asked).stdout)
    assert data["key"] == {"env": "toy", "split": "eval", "index": 3, "seed": 5, "level": 0.5}
    assert data["prompt"][1] == {"role": "user", "content": "What is 3 * 3?"}
    assert data["reference"] == "9"


def test_score_judges_an_answer_of_a_file_or_a_pipe_with_the_settings_that_are_given(
    toy: Path,
) -> None:
    score = words("env score toy --index 3 --json --set env.bonus=0.25 --answer")
    (toy / "answer.txt").write_text("9\n")
    for result in (grpo(*score, "-", stdin="9"), grpo(*score, "answer.txt")):
        assert result.exit_code == 0
        verdict = json.loads(result.stdout)
        said = [verdict[name] for name in ("total", "passed", "answer", "error")]
        assert said == [1.25, True, "9", None]
        assert verdict["rewards"]["bonus"] == {"value": 0.25, "weight": 1.0, "note": "for style"}
    wrong = grpo(*words("env score toy --index 3 --answer -"), stdin="8")
    assert (wrong.exit_code, "not passed" in wrong.stdout) == (0, True)


def test_score_exits_with_1_when_the_answer_could_not_be_judged(toy: Path) -> None:
    result = grpo("env", "score", "toy", "--answer", "-", "--json", stdin="crash")
    verdict = json.loads(result.stdout)
    assert result.exit_code == 1
    assert verdict["total"] is None
    assert "the verifier has a bug" in verdict["error"]
    assert "could not be judged" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("show toi", "environment 'toi' is not known; did you mean 'toy'?"),
        ("show toy --set env.bonsu=1", "'toy'; did you mean 'env.bonus'?"),
        ("show toy --set env.bonus=high", "env.bonus of 'toy': input should be a valid number"),
        ("show toy --set bonus=1", "as in --set env."),
        ("show toy --index 10", "--index 10 is too large: the train split of 'toy' holds 10 tasks"),
        ("score toy --index 10 --answer -", "--index 10 is too large"),
        ("card toi", "environment 'toi' is not known; did you mean 'toy'?"),
        ("card toy --set env.bonsu=1", "env.bonsu is not a setting of 'toy'"),
        ("card toy --json --markdown", "exclude each other"),
        ("score toy --answer nowhere.txt", "--answer 'nowhere.txt' cannot be read"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_status_2(
    toy: Path, arguments: str, message: str
) -> None:
    result = grpo("env", *words(arguments))
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
    said = "plugin 'toy' (grpo-env-toy 1.0) cannot be used: RuntimeError: half an upgrade"
    assert said in result.stderr


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
@pytest.mark.parametrize("command", ["show", "score --answer answer.txt", "card --tasks 0"])
def test_what_no_terminal_can_say_is_escaped(odd: Path, command: str) -> None:
    """In a process of its own: the streams of the console script decide."""
    name, *options = words(command)
    plain, as_json = (
        grpo_apart("env", name, f"{odd}:Odd", *options, *more, cwd=odd.parent)
        for more in ([], ["--json"])
    )
    assert plain.returncode == as_json.returncode == 0, plain.stderr + as_json.stderr
    assert "\\ud800" in plain.stdout
    json.loads(as_json.stdout, parse_constant=pytest.fail)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("check NoEnvironment", 2, "not a subclass of grpo_core.Environment"),
        ("check Unmade", 2, "cannot be created: KeyError: 'no such thing'"),
        ("score Odd --answer answer.txt --pictures p", 1, "draw this answer: ZeroDivisionError"),
        ("score Undrawn --answer answer.txt --pictures p", 2, "install the thing that draws"),
    ],
)
def test_what_an_environment_raises_is_one_line(
    odd: Path, arguments: str, status: int, message: str
) -> None:
    command, name, *options = words(arguments)
    result = grpo_apart("env", command, f"{odd}:{name}", *options, cwd=odd.parent)
    assert result.returncode == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr
