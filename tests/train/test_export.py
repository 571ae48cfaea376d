"""`grpo export`: good attempts that `grpo sft` reads, and weights that need no adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.protocol.types import Verdict
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.policy.causal import Policy
from grpo_core.train.rollout.examples import read_examples
from grpo_core.train.trainer import Trainer

LETTERS = f"{Path(__file__).parent / 'letters.py'}:Letters"


@pytest.fixture
def run_folder(settings: dict[str, Any], tmp_path: Path) -> Path:
    more = {"environment": LETTERS, "steps": 12, "eval": {"tasks": 4}}
    Trainer(build_config([settings, more]), folder=tmp_path / "run").run()
    return tmp_path / "run"


def exported(*arguments: str | Path, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.output


def ended(folder: Path, split: str = "train") -> list[tuple[int, str, float]]:
    """Task, words and reward of every attempt that came to its end."""
    return [
        (
            line["key"]["index"],
            line["messages"][0]["content"],
            Verdict.from_json(line["verdict"]).total,
        )
        for line in RunFolder(folder).rollout_lines()
        if line["finish"] == "stop" and line["key"]["split"] == split
    ]


def test_good_attempts_are_written_once_with_their_prompts_and_can_be_learned_from(
    run_folder, settings, tmp_path
):
    said = exported(run_folder, "--rollouts", tmp_path / "good.jsonl", "--min-reward", "0.3")
    rows = list(read_lines(tmp_path / "good.jsonl"))
    wanted = {(index, text) for index, text, reward in ended(run_folder) if reward >= 0.3}
    assert {(row["key"]["index"], row["completion"]) for row in rows} == wanted
    assert len(rows) == len(wanted) > 3
    assert all(row["prompt"].startswith("letters ") and row["reward"] >= 0.3 for row in rows)
    assert f"{len(rows)} examples" in said
    assert len(read_examples(tmp_path / "good.jsonl")) == len(rows)
    config = build_config(
        [
            settings,
            {
                "method": "sft",
                "environment": None,
                "steps": 2,
                "sft": {"data": str(tmp_path / "good.jsonl")},
            },
        ]
    )
    Trainer(config, folder=tmp_path / "warm").run()
    assert (tmp_path / "warm" / "final").is_dir()


@pytest.mark.slow
def test_the_best_of_each_task_and_the_held_out_ones_can_be_chosen(run_folder, tmp_path):
    exported(run_folder, "--rollouts", tmp_path / "best.jsonl", "--min-reward", "0", "--best", "1")
    best: dict[int, float] = {}
    for index, _, reward in ended(run_folder):
        best[index] = max(reward, best.get(index, 0.0))
    assert {
        row["key"]["index"]: row["reward"] for row in read_lines(tmp_path / "best.jsonl")
    } == best
    exported(
        run_folder, "--rollouts", tmp_path / "eval.jsonl", "--min-reward", "0", "--split", "eval"
    )
    assert {row["key"]["split"] for row in read_lines(tmp_path / "eval.jsonl")} <= {"eval"}


@pytest.mark.slow
def test_without_a_least_reward_those_that_passed_are_taken(run_folder, tmp_path):
    exported(run_folder, "--rollouts", tmp_path / "passed.jsonl")
    assert all(row["reward"] > 0.5 for row in read_lines(tmp_path / "passed.jsonl"))


def test_attempts_that_are_no_text_are_left_out_and_counted(run_folder, tmp_path):
    lines = [json.loads(line) for line in (run_folder / "rollouts.jsonl").read_text().splitlines()]
    chosen = [
        line for line in lines if line.get("finish") == "stop" and line["key"]["split"] == "train"
    ]
    chosen[0]["messages"][-1]["content"] = "\ud83d"
    (run_folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = exported(run_folder, "--rollouts", tmp_path / "good.jsonl", "--min-reward", "0")
    assert "1 rollouts hold half of a surrogate pair" in said
    assert read_examples(tmp_path / "good.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_chat_is_written_as_messages(tiny_folder, tmp_path):
    config = build_config(
        [
            {
                "environment": "arithmetic",
                "model": {"name": str(tiny_folder)},
                "steps": 1,
                "prompts_per_step": 2,
                "eval": {"tasks": 0},
            }
        ]
    )
    Trainer(config, folder=tmp_path / "run").run()
    if not ended(tmp_path / "run"):
        line = next(RunFolder(tmp_path / "run").rollout_lines())
        (tmp_path / "run" / "rollouts.jsonl").write_text(
            json.dumps({**line, "finish": "stop"}) + "\n"
        )
    exported(tmp_path / "run", "--rollouts", tmp_path / "all.jsonl", "--min-reward", "0")
    row = next(read_lines(tmp_path / "all.jsonl"))
    assert [message["role"] for message in row["prompt"]][-1] == "user"
    assert row["completion"][0]["role"] == "assistant"


@pytest.mark.slow
def test_merged_weights_answer_as_the_run_does(run_folder, tmp_path):
    exported(run_folder, "--weights", tmp_path / "model")
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "model"),
        AutoTokenizer.from_pretrained(tmp_path / "model"),
    )
    config = build_config(
        [
            {
                "environment": LETTERS,
                "model": {"name": str(run_folder), "dtype": "float32"},
                "kl": {"beta": 0},
            }
        ]
    )
    policy = Policy.load(config, need_reference=False)
    ids = torch.tensor([tokenizer("letters 7:")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(
            model(ids).logits, policy.model(ids).logits, rtol=1e-4, atol=1e-4
        )
        with policy.model.disable_adapter():
            assert (model(ids).logits - policy.model(ids).logits).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_merged_weights_are_stored_in_the_type_that_is_asked_for(run_folder, tmp_path, dtype):
    """Also in one in which a CPU would not train."""
    exported(run_folder, "--weights", tmp_path / "model", "--dtype", dtype)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto").dtype == getattr(
        torch, dtype
    )


def test_wrong_input_is_one_line_and_writes_nothing(run_folder, tmp_path):
    (tmp_path / "there.jsonl").write_text("")
    for arguments, message in (
        ([run_folder], "say what to export"),
        ([tmp_path, "--rollouts", tmp_path / "new"], "holds no run"),
        ([run_folder, "--rollouts", tmp_path / "there.jsonl"], "exists already"),
        ([run_folder, "--rollouts", tmp_path / "new", "--min-reward", "7"], "no rollout in"),
        ([run_folder, "--rollouts", tmp_path / "none" / "x.jsonl"], "does not exist"),
    ):
        assert message in exported(*arguments, status=2)
    assert not (tmp_path / "new").exists()
    config = json.loads((run_folder / "config.json").read_text())
    (name,) = config["provenance"]["environments"]
    del config["digest"]
    config["provenance"]["environments"][name] = "another"
    (run_folder / "config.json").write_text(json.dumps(config))
    assert "has changed since the run began" in exported(
        run_folder, "--rollouts", tmp_path / "new", "--min-reward", "0", status=2
    )
    exported(run_folder, "--rollouts", tmp_path / "new", "--min-reward", "0", "--allow", name)
    (run_folder / "final").rename(run_folder / "gone")
    assert "is not finished" in exported(run_folder, "--weights", tmp_path / "model", status=2)
