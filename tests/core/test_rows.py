"""A file of rows in place of an environment's name: which environment takes it, and what is refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core import ConfigError, build_config
from grpo_core.cli.app import app
from grpo_core.plugins.rows import names_rows


def grpo(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.output


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "mine.py").write_text("def right(text, row): return row['answer'] in text")
    return tmp_path / "rows.jsonl"


def test_the_rewards_decide_which_environment_takes_the_rows(rows: Path) -> None:
    for reward, name in (
        ("number", "dataset"),
        ("mine.py:right", "dataset"),
        ("code", "dataset/code"),
        ("judge", "dataset/judge"),
    ):
        config = build_config([{"environment": "rows.jsonl", "env": {"reward": reward}}])
        assert config.environment == name
        assert config.env["path"] == str(rows)  # so that the run can be resumed from elsewhere
    assert build_config([{"environment": "rows.jsonl"}]).env == {"path": str(rows)}
    given = build_config([{"environment": "rows.jsonl", "env": {"reward": "mine.py:right"}}]).env[
        "reward"
    ]
    assert given == [str(rows.parent / "mine.py:right")]
    assert names_rows(f"{rows.parent}")
    assert not any(map(names_rows, ("arithmetic", "dataset/code", "file.py:Env", "rows")))


def test_commands_that_take_a_name_take_the_file(rows: Path) -> None:
    status, said = grpo(
        "env", "score", "rows.jsonl", "--set", "env.reward=mine.py:right", "--answer", "mine.py"
    )
    assert (status, "not passed" in said) == (0, True)
    status, said = grpo("env", "show", "rows.jsonl", "--reference")
    assert (status, "[reference]" in said) == (0, True)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run --data rows.jsonl --reward nummer", "the reward 'nummer' is not known; did you mean 'number'? Rewards by name: exact,"),
        ("run --data rows.jsonl --env arithmetic", "--data rows.jsonl makes the tasks, and --env arithmetic does, too"),
        ("run --data rows.txt", "--data rows.txt is no file of rows; name one that ends with .jsonl"),
        ("run --data gone.csv", "gone.csv cannot be read: No such file"),
        ("run --env rows.jsonl --env arithmetic", "rows.jsonl holds rows, and they cannot be part of a mixture yet"),
        ("run --reward number", "no environment is named; use --env NAME (`grpo envs` lists them), or --data FILE"),
        ("run --data rows.jsonl --reward mine.py:right --reward mine.py:right", "each under a name of its own"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_one_line(rows: Path, command: str, message: str) -> None:
    status, said = grpo(*command.split())
    assert status == 2
    assert message in " ".join(said.split())
    with pytest.raises(ConfigError):
        build_config([{"environment": "rows.jsonl", "env": {"reward": "nummer"}}])
