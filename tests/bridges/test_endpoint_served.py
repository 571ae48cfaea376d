"""`grpo eval --endpoint` and `grpo serve`: a model behind our own server says what it says on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.runs.lines import read_lines

from ..train.tiny import save_tiny
from .evaluated import GUESS, HERE, evaluate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.heavy]
LETTERS = f"{HERE.parent / 'train' / 'letters.py'}:Letters"


@pytest.mark.parametrize("env", [LETTERS, GUESS], ids=["letters", "dialogue"])
def test_greedy_answers_through_the_server_are_those_of_this_machine(
    env: str, tmp_path: Path
) -> None:
    model = str(save_tiny(tmp_path / "tiny"))
    common = ["--temperature", "0", "--max-new-tokens", "8", "--tasks", "4", "--samples", "2"]
    here = tmp_path / "here.jsonl"
    words = ["--env", env, "--model", model, "--dtype", "float32", "--attempts", str(here)]
    done = CliRunner().invoke(app, ["eval", *words, *common, "--json"])
    assert done.exit_code == 0, done.output
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", "serve", model]
    with subprocess.Popen(
        [*command, "--port", "0", "--dtype", "float32"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline() for _ in range(4)]
            url = lines[1].strip().partition("=")[2]
            name = lines[3].partition("model: ")[2].strip()
            found = evaluate(env, url, tmp_path / "out", *common, "--model-name", name)
        finally:
            server.terminate()
    assert found["complete"]
    said = [
        {(line["key"]["index"], line["attempt"]): line["messages"] for line in read_lines(path)}
        for path in (here, tmp_path / "out" / "attempts.jsonl")
    ]
    assert said[0] == said[1]
    assert len(said[0]) == 8
