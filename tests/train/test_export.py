"""`grpo export`: good attempts that `grpo sft` reads, and weights that need no adapter."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.policy.choose import load_policy
from grpo_core.protocol.types import Verdict
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.rollout.examples import read_examples

from .short_runs import LETTERS, grpo, tiny_settings
from .test_eval import trained


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("export")
    changes = {"environment": LETTERS, "steps": 12, "eval.tasks": 4}
    return trained(tiny_settings(place), place / "run", **changes)


@pytest.fixture
def run_folder(finished_run, tmp_path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def exported(*arguments: object, status: int = 0) -> str:
    return grpo("export", *arguments, status=status).output


def ended(folder: Path) -> list[tuple[int, str, float]]:
    """Task, words and reward of every attempt in training that came to its end."""
    return [
        (
            line["key"]["index"],
            line["messages"][0]["content"],
            Verdict.from_json(line["verdict"]).total,
        )
        for line in RunFolder(folder).rollout_lines()
        if line["finish"] == "stop" and line["key"]["split"] == "train"
    ]


@pytest.mark.slow
def test_good_attempts_are_written_once_with_their_prompts_and_can_be_learned_from(
    run_folder, settings, tmp_path
):
    good = tmp_path / "good.jsonl"
    said = exported(run_folder, "--rollouts", good, "--min-reward", "0.3")
    rows = list(read_lines(good))
    wanted = {(index, text) for index, text, reward in ended(run_folder) if reward >= 0.3}
    assert {(row["key"]["index"], row["completion"]) for row in rows} == wanted
    assert len(rows) == len(wanted) > 3
    assert all(row["prompt"].startswith("letters ") and row["reward"] >= 0.3 for row in rows)
    assert f"{len(rows)} examples" in said
    assert len(read_examples(good)) == len(rows)
    warm = {"method": "sft", "environment": None, "steps": 1, "sft.data": str(good)}
    trained(settings, tmp_path / "warm", **warm)
    assert (tmp_path / "warm" / "final").is_dir()


@pytest.mark.slow
def test_the_best_of_each_task_the_held_out_ones_or_those_that_passed_can_be_chosen(
    run_folder, tmp_path
):
    def rows(*options: str) -> list[dict]:
        file = tmp_path / f"{len(options)}.jsonl"
        exported(run_folder, "--rollouts", file, *options)
        return list(read_lines(file))

    best: dict[int, float] = {}
    for index, _, reward in ended(run_folder):
        best[index] = max(reward, best.get(index, 0.0))
    chosen = rows("--min-reward", "0", "--best=1")
    assert {row["key"]["index"]: row["reward"] for row in chosen} == best
    held_out = rows("--min-reward", "0", "--split", "eval")
    assert {row["key"]["split"] for row in held_out} <= {"eval"}
    assert all(row["reward"] > 0.5 for row in rows())


def test_attempts_that_are_no_text_are_left_out_and_counted(run_folder, tmp_path):
    log = run_folder / "rollouts.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    stopped = [line for line in lines if line.get("finish") == "stop"]
    chosen = next(line for line in stopped if line["key"]["split"] == "train")
    chosen["messages"][-1]["content"] = "\ud83d"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = exported(run_folder, "--rollouts", tmp_path / "good.jsonl", "--min-reward", "0")
    assert "1 rollouts hold half of a surrogate pair" in said
    assert read_examples(tmp_path / "good.jsonl")
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_chat_is_written_as_messages(settings, tmp_path):
    run = {"environment": "arithmetic", "prompts_per_step": 2, "sampling.max_new_tokens": 4}
    trained(settings, tmp_path / "run", **run)
    log = tmp_path / "run" / "rollouts.jsonl"
    line = next(RunFolder(tmp_path / "run").rollout_lines())
    log.write_text(json.dumps({**line, "finish": "stop"}) + "\n")
    exported(tmp_path / "run", "--rollouts", tmp_path / "all.jsonl", "--min-reward", "0")
    row = next(read_lines(tmp_path / "all.jsonl"))
    assert [message["role"] for message in row["prompt"]][-1] == "user"
    assert row["completion"][0]["role"] == "assistant"


@pytest.mark.slow
def test_merged_weights_answer_as_the_run_does(run_folder, tmp_path):
    exported(run_folder, "--weights", tmp_path / "model")
    model, tokenizer = (
        kind.from_pretrained(tmp_path / "model") for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    named = {"model.name": str(run_folder), "model.dtype": "float32", "kl.beta": 0}
    config = build_config([nested({"environment": LETTERS, **named})])
    policy = load_policy(config, need_reference=False)
    ids = torch.tensor([tokenizer("letters 7:")["input_ids"]])
    with torch.no_grad():
        merged = model(ids).logits
        torch.testing.assert_close(merged, policy.model(ids).logits, rtol=1e-4, atol=1e-4)
        with policy.model.disable_adapter():
            assert (merged - policy.model(ids).logits).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_merged_weights_are_stored_in_the_type_that_is_asked_for(run_folder, tmp_path, dtype):
    """Also in one in which a CPU would not train."""
    said = exported(run_folder, "--weights", tmp_path / "model", "--dtype", dtype)
    assert ("rounding to bfloat16 changed its weights by " in said) == (dtype == "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert model.dtype == getattr(torch, dtype)


def test_wrong_input_is_one_line_and_writes_nothing(run_folder, tmp_path):
    (tmp_path / "there.jsonl").write_text("")
    new = ("--rollouts", tmp_path / "new")
    for arguments, message in (
        ([run_folder], "say what to export"),
        ([tmp_path, *new], "holds no run"),
        ([run_folder, "--rollouts", tmp_path / "there.jsonl"], "exists already"),
        ([run_folder, *new, "--min-reward", "7"], "no rollout in"),
        ([run_folder, "--weights", tmp_path / "m.gguf"], "for a GGUF file give --gguf"),
        (
            [run_folder, "--gguf", tmp_path / "m.gguf", "--dtype", "bfloat16"],
            "--gguf takes --dtype",
        ),
        ([run_folder, "--rollouts", tmp_path / "none" / "x.jsonl"], "does not exist"),
    ):
        assert message in exported(*arguments, status=2)
    assert not (tmp_path / "new").exists()
    config = json.loads((run_folder / "config.json").read_text())
    (name,) = config["provenance"]["environments"]
    del config["digest"]
    config["provenance"]["environments"][name] = "another"
    (run_folder / "config.json").write_text(json.dumps(config))
    every = (run_folder, *new, "--min-reward", "0")
    assert "has changed since the run began" in exported(*every, status=2)
    exported(*every, "--allow", name)
    (run_folder / "final").rename(run_folder / "gone")
    assert "is not finished" in exported(run_folder, "--weights", tmp_path / "model", status=2)
