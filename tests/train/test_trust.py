"""Run folders of others: nothing that their config.json names runs without the user's word."""

import json
import shutil
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from typer.testing import CliRunner

from grpo_core import ConfigError, Harmless, NeedsConsent, Trainer, build_config
from grpo_core.cli.app import app
from grpo_core.plugins.consent import risks
from grpo_core.runs.trust import risky_settings, trusted_folder

from .letters import Letters
from .runs import finished_arithmetic

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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of an environment that is installed."""
    return finished_arithmetic(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def without_weights(folder: Path) -> None:
    """Make a run one that did not end."""
    for name in ("final", "checkpoints"):
        shutil.rmtree(folder / name, ignore_errors=True)


def rewrite(folder: Path, **changes: Any) -> None:
    """Change config.json as somebody would who wants it to be taken for that of a run."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config |= changes
    config.pop("digest", None)
    path.write_text(json.dumps(config))


def invoke(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.slow
def test_no_command_runs_a_file_that_a_folder_names_until_the_user_trusts_it(
    folder, evil, tmp_path
):
    name, mark = f"{evil}:Letters", tmp_path / "mark"
    rewrite(folder, environment=name, env={})

    def evaluate(*more: str) -> tuple[int, str]:
        return invoke("eval", "--run", folder, "--tasks", "1", "--samples", "1", *more)

    status, output = evaluate()
    assert (status, "add --trust" in output, name in output) == (2, True, True), output
    status, output = evaluate("--env", "arithmetic")
    assert status == 0, output  # the folder's own environment is not used
    assert not mark.exists()
    status, output = evaluate("--env", name)
    assert status == 0, output  # the command itself names the file
    assert mark.exists()
    assert evaluate()[0] == 2  # naming it once is no trust in the folder
    for more in (("--trust",), ()):  # what was trusted once is remembered
        status, output = evaluate(*more)
        assert status == 0, output


def own_run(settings: dict[str, Any], evil: Path, folder: Path) -> Path:
    """A run of the user's own with that file."""
    more = {"environment": f"{evil}:Letters", "steps": 1, "group_size": 2, "eval": {"tasks": 2}}
    Trainer(build_config([settings, more]), folder=folder).run()
    return folder


def test_a_run_of_this_user_on_this_machine_needs_no_trust_and_that_of_another_does(
    settings, evil, tmp_path, monkeypatch
):
    own = own_run(settings, evil, tmp_path / "own")
    command = ["eval", "--run", own, "--tasks", "1", "--samples", "1"]
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
    assert (own_run(settings, evil, tmp_path / "own") / "final").is_dir()
    assert "will ask for --trust" in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        {
            "environment": "besiege/car",
            "env": {"formula": "code", "turns": 2},
            "model": {"name": "/models/a.py/b", "system_prompt": "Be brief."},
            "sampling": {"stop": ["."]},
            "weights": {"format": 0.5},
        },
        {
            "provenance": {"environments": {"/x/y.py:Env": "1234"}},
            "environment": None,
            "judges": None,
            "mixture": 3,
        },
    ],
    ids=["names, numbers and texts", "notes of a run, and what is no config"],
)
def test_what_runs_no_code_and_sends_no_data_is_not_asked_about(config):
    assert not risky_settings(config)


@pytest.mark.slow
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_own_runs_and_installed_recipes_are_never_asked_about(
    settings, tmp_path, monkeypatch, trains
):
    rows = "".join(f'{{"question": "{n} + 1", "answer": "{n + 1}"}}\n' for n in range(40))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "reward.py").write_text("def score(text, row): return 0.5\n")
    monkeypatch.chdir(tmp_path)
    more = {
        "environment": "dataset",
        "env": {"path": "rows.jsonl", "reward": "reward.py:score", "prompt": "{question} ="},
        "steps": 1,
        "eval": {"tasks": 2},
        "sampling": {"max_new_tokens": 3},
        "judges": {"spare": {"name": "llm", "settings": {"model": "m", "key": "NO_KEY_OF_MINE"}}},
        "verify": {"worker_environment": ["LANG"]},
    }
    Trainer(build_config([settings, more]), folder=tmp_path / "own").run()
    shutil.copytree("own", "unfinished")
    shutil.rmtree("unfinished/final")
    own_model = ["--model", settings["model"]["name"], "--set", "model.dtype=float32"]
    own_model += ["--steps", "1", "--max-new-tokens", "2", "--set", "eval.tasks=0"]
    own_model += ["--set", "prompts_per_step=2", "--set", "group_size=2"]
    reading = (
        ["eval", "--run", "own", "--tasks", "1", "--samples", "1"],
        ["generate", "--run", "own", "1 + 1"],
        ["rescore", "own"],
        ["export", "own", "--rollouts", "good.jsonl", "--split", "all", "--min-reward", "0"],
        ["run", "--resume", "unfinished", "--set", "trainer.logits_mb=32"],
    )
    training = (
        ["run", "--recipe", "own/config.json", "--out", "again"],
        ["run", "--env", "arithmetic", "--recipe", "dapo", *own_model, "--out", "installed"],
    )
    for command in training if trains else reading:
        status, output = invoke(*command)
        assert status == 0, (command, output)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where the rows are not, which nothing here reads
    status, output = invoke("rescore", tmp_path / "own", "--set", "weights.reward=0.5")
    assert status == 0, output


def test_consent_to_a_file_in_one_folder_is_none_to_its_namesake_in_another(
    folder, tmp_path, monkeypatch
):
    env = {"path": "rows.jsonl", "eval_path": "rows.jsonl", "reward": "reward.py:score"}
    rewrite(folder, environment="dataset", env=env, weights={})
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
        mark = f"open({str(tmp_path / name / 'mark')!r}, 'a').close()\n"
        (tmp_path / name / "reward.py").write_text(f"{mark}def score(text, row): return 0.5\n")
    monkeypatch.chdir(tmp_path / "mine")
    assert invoke("rescore", folder, "--trust")[0] == 0
    assert invoke("rescore", folder)[0] == 0
    monkeypatch.chdir(tmp_path / "theirs")
    assert invoke("rescore", folder)[0] == 2
    assert not (tmp_path / "theirs" / "mark").exists()


def test_settings_of_the_command_line_are_the_users_and_those_beside_them_are_not(
    folder, evil, tmp_path
):
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    env = {"path": "/etc/passwd", "eval_path": "/etc/passwd", "reward": f"{evil}:score"}
    rewrite(folder, environment="dataset", env=env, weights={})
    own = f'env={{"path": "{tmp_path}/rows.jsonl", "eval_path": "{tmp_path}/rows.jsonl"}}'
    status, output = invoke("rescore", folder, "--set", own)
    assert (status, "/etc" in output, "env.reward" in output) == (2, False, True), output
    assert not (tmp_path / "mark").exists()
    assert invoke("rescore", folder, "--set", own, "--set", "env.reward=exact")[0] == 0


@pytest.mark.slow
def test_a_recipe_that_was_trusted_is_used_again_and_can_be_shown_before(evil, settings, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'environment = "{evil}:Letters"\nsteps = 1\n[eval]\ntasks = 1\n')
    assert invoke("config", "show", "--recipe", recipe)[0] == 0
    command = ["run", "--recipe", recipe, "--model", settings["model"]["name"]]
    assert invoke(*command, "--out", tmp_path / "0")[0] == 2
    assert not (tmp_path / "mark").exists()
    for number in (1, 2):
        trust = ["--trust"] if number == 1 else []
        recipe.write_text(recipe.read_text().replace("tasks = 1", "tasks = 2"))  # a harmless change
        status, output = invoke(*command, *trust, "--out", tmp_path / str(number))
        assert status == 0, output
    recipe.write_text(recipe.read_text() + '[verify]\nworker_environment = ["HF_TOKEN"]\n')
    assert invoke(*command, "--out", tmp_path / "3")[0] == 2


def test_an_environment_of_the_callers_own_is_no_consent_to_the_one_that_the_folder_names(
    folder, evil, tmp_path
):
    rewrite(folder, environment=f"{evil}:Letters", env={})
    without_weights(folder)
    with pytest.raises(ConfigError, match="add --trust"):
        Trainer.resumed(folder)
    changes, allow = {"trainer.logits_mb": 32}, ["arithmetic", f"{evil}:Letters"]
    Trainer.resumed(folder, Letters(), changes=changes, allow=allow).run()
    assert (folder / "final").is_dir()
    assert invoke("eval", "--run", folder, "--tasks", "1", "--samples", "1")[0] == 2
    assert not (tmp_path / "mark").exists()


def test_a_setting_that_its_author_marks_is_asked_about_although_it_is_a_switch():
    @dataclass(frozen=True)
    class Config:
        shell: Annotated[bool, NeedsConsent] = False
        unit: Annotated[str, Harmless] = "m"
        fields: dict[Annotated[str, Harmless], Any] = field(default_factory=dict)
        host: IPv4Address | None = None
        size: int | None = None
        how: Literal["a", "b"] | int = "a"
        names: tuple[str, ...] = ()
        free: Any = None

    def asked(**settings: Any) -> list[str]:
        return [risk.name for risk in risks(Config, settings)]

    assert asked(shell=True) == ["shell"]
    assert asked(shell=False, unit="km", size=3, how="b", names=[], free=None, host=None) == []
    assert asked(fields={"a": 1, "b": "text", "c": {"d": 2}}) == ["fields.b", "fields.c.d"]
    assert asked(host=2130706433) == ["host"]
    assert asked(names=["x"], free={"deep": [1, "text"]}) == ["names.0", "free.deep.1"]
    assert asked(unknown="text") == ["unknown"]


def test_trust_holds_for_what_the_command_used_and_not_for_the_rest_of_the_folder(folder, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    rows = {"path": str(tmp_path / "rows.jsonl"), "eval_path": str(tmp_path / "rows.jsonl")}
    sampler = {"name": "vllm", "settings": {"args": ["--trust-remote-code"]}}
    rewrite(folder, environment="dataset", env=rows, weights={}, sampler=sampler)
    assert invoke("rescore", folder)[0] == 2
    assert invoke("rescore", folder, "--trust")[0] == 0
    assert invoke("rescore", folder)[0] == 0
    shutil.rmtree(folder / "final")
    status, output = invoke("run", "--resume", folder)
    assert (status, "sampler.settings.args.0 = --trust-remote-code" in output) == (2, True), output


def test_a_harmless_setting_of_one_environment_is_asked_about_where_another_reads_it(
    folder, evil, tmp_path
):
    rewrite(folder, environment="fillin", env={"form": "causal"}, weights={})
    status, output = invoke("rescore", folder, "--set", "environment=dataset")
    assert (status, "env.form = causal" in output) == (2, True), output
