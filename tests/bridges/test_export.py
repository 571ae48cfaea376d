"""`grpo env export`: a script that compiles and opens the environment with the same settings, or one clear message."""

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_trl import opened

FILE = Path(__file__).parent / "spelling.py"


def export(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["env", "export", *arguments])
    assert result.exit_code == status, result.output
    return result.output if status else result.stdout


def constants(script: str) -> dict[str, object]:
    """Return the constants at the top of a script, which has to compile."""
    compile(script, "train.py", "exec")
    return {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in ast.parse(script).body
        if isinstance(node, ast.Assign)
    }


def test_the_script_opens_the_environment_with_the_settings_of_the_command() -> None:
    script = export(
        *("arithmetic", "--to", "trl", "--set", "env.shots=2", "--set", "weights.exact=2"),
        *("--level", "0.4", "--seed", "7"),
    )
    settings = {"env": {"shots": 2}, "weights": {"exact": 2}, "seed": 7, "level": 0.4}
    assert constants(script) == {"ENVIRONMENT": "arithmetic", "SETTINGS": settings}
    assert "max_completion_length=16," in script
    assert "rollout_func" not in script
    assert "'grpo-core'" in script
    with opened("arithmetic", settings) as env:
        assert (env.level, env.config.seed, env.weights["exact"]) == (0.4, 7, 2)


def test_a_dialogue_of_a_file_gets_a_rollout_function_and_room_for_all_turns() -> None:
    script = export(f"{FILE}:Talking", "--to", "trl")
    assert constants(script)["ENVIRONMENT"] == f"{FILE}:Talking"
    assert "rollout_func=rollout_func(env)," in script
    assert "max_completion_length=248," in script  # 40 tokens, then twice 64 for a reply and 40


def test_a_text_with_quotes_and_backslashes_stays_what_it_is() -> None:
    value = 'a"""\'\\b'
    script = export(f"{FILE}:Spelling", "--to", "trl", "--set", f"env.log={value}")
    assert constants(script)["SETTINGS"] == {"env": {"log": value}}


def test_the_script_is_written_to_a_file_that_is_new(tmp_path: Path) -> None:
    out = tmp_path / "train.py"
    assert export("arithmetic", "--to", "trl", "--out", str(out)) == ""
    assert out.read_text() == export("arithmetic", "--to", "trl")
    assert "exists already" in export("arithmetic", "--to", "trl", "--out", str(out), status=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arithmetik", "--to", "trl"], "did you mean 'arithmetic'"),
        (["arithmetic", "--to", "verl"], "'verl' is not known. Known: trl"),
        (["arithmetic"], "--to"),
        (["arithmetic", "--to", "trl", "--set", "env.shot=1"], "did you mean 'env.shots'"),
        (["arithmetic", "--to", "trl", "--set", "kl.beta=1"], "--set changes settings of env,"),
        (
            ["arithmetic", "--to", "trl", "--out", "none/train.py"],
            "the folder none of --out train.py does not exist",
        ),
    ],
)
def test_wrong_input_gets_one_clear_message(arguments: list[str], message: str) -> None:
    assert message in export(*arguments, status=2)
