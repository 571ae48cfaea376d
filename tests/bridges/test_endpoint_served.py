"""`grpo eval --endpoint` and `grpo serve`: a model behind our own server says what it says on this machine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.runs.lines import read_lines

from ..train.tiny import save_tiny
from .evaluated import GUESS, HERE

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.heavy]
LETTERS = f"{HERE.parent / 'train' / 'letters.py'}:Letters"


def evaluate(env: str, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["eval", "--env", env, *words, "--json"])
    assert done.exit_code == 0, done.output
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


@pytest.mark.parametrize("env", [LETTERS, GUESS], ids=["letters", "dialogue"])
def test_greedy_answers_through_the_server_are_those_of_this_machine(
    env: str, tmp_path: Path
) -> None:
    model = str(save_tiny(tmp_path / "tiny"))
    common = ["--temperature", "0", "--max-new-tokens", "8", "--tasks", "4", "--samples", "2"]
    here, out = tmp_path / "here.jsonl", tmp_path / "out"
    words = ["--model", model, "--dtype", "float32", "--attempts", str(here)]
    evaluate(env, *words, *common)
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", "serve", model]
    with subprocess.Popen(
        [*command, "--port", "0", "--dtype", "float32"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline() for _ in range(4)]
            url = lines[1].strip().partition("=")[2]
            name = lines[3].partition("model: ")[2].strip()
            words = ["--endpoint", url, "--model-name", name, "--out", str(out)]
            found = evaluate(env, *words, *common)
        finally:
            server.terminate()
    assert found["complete"]
    said = [
        {(line["key"]["index"], line["attempt"]): line["messages"] for line in read_lines(path)}
        for path in (here, out / "attempts.jsonl")
    ]
    assert said[0] == said[1]
    assert len(said[0]) == 8
