"""The recipes of whole experiments: what they set, the number of weights they train, and two steps of each with a tiny model."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification, Qwen2Config, Qwen2ForCausalLM
from typer.testing import CliRunner

import grpo_env_arithmetic
import grpo_env_besiege
import grpo_env_fillin
import grpo_env_fizzbuzz
import grpo_env_gsm8k
from grpo_core.cli.app import app
from grpo_core.cli.run_config import read_config
from grpo_core.config.overrides import flat
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.models.adapter import add_adapter
from grpo_core.train.models.load import ModelSource

from ..commandline import words
from ..sandbox.engines import missing
from .tiny_masked import masked_model, masked_tokenizer, save_masked

BESIEGE = ("besiege", "besiege-as-written", "besiege-small")
PACKAGES = dict.fromkeys(BESIEGE, grpo_env_besiege) | {
    "arithmetic": grpo_env_arithmetic,
    "fill-in": grpo_env_fillin,
    "fizzbuzz": grpo_env_fizzbuzz,
    "gsm8k-xml": grpo_env_gsm8k,
}


def given(name: str) -> tuple[str, dict]:
    """The comment that a recipe opens with, and its settings."""
    text = (
        Path(str(PACKAGES[name].__file__)).parent / f"{name if name in BESIEGE else 'recipe'}.toml"
    ).read_text()
    return text.partition("\nenvironment")[0], tomllib.loads(text)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_recipe_states_what_it_repeats_and_where_it_differs(name):
    comment, settings = given(name)
    assert all(line.startswith("# ") for line in comment.splitlines())
    assert "Deviations: " in comment
    config = flat(read_config([], [name], {}, []))
    for section, values in settings.items():
        for key, value in values.items() if isinstance(values, dict) else [("", values)]:
            found = (
                config[section][key]
                if section in ("env", "weights")
                else config[f"{section}.{key}" if key else section]
            )
            assert (list(found) if isinstance(value, list) else found) == value


def test_the_fizzbuzz_recipe_trains_so_many_weights_of_its_model():
    """On the meta device: the shape of Qwen2.5-0.5B, no weights."""
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = add_adapter(
            Qwen2ForCausalLM(config),
            read_config([], ["fizzbuzz"], {}, []).lora,
            ModelSource("shape", "shape"),
        )
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    assert sum(size for size, trained in sizes if trained) == 8_798_208
    assert sum(size for size, _ in sizes) == 502_830_976


SMALL = ["--steps", "2", "--max-new-tokens", "8", "--dtype", "float32", "--set", "eval.tasks=2"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "recipe",
    [
        ["arithmetic"],
        ["arithmetic", "gpu-10gb"],
        ["fizzbuzz"],
        ["gsm8k-xml"],
        *([name] for name in BESIEGE),
    ],
)
def test_two_steps_of_it_train_a_tiny_model(recipe, tiny_folder, tmp_path):
    if "fizzbuzz" in recipe and shutil.which("bwrap") is None:
        missing("needs bubblewrap")
    names = [word for name in recipe for word in ("--recipe", name)]
    more = {
        "fizzbuzz": ["--set", "sandbox.name=bubblewrap"],
        "gsm8k-xml": ["--set", "env.source=templates"],
    }.get(recipe[0], [])
    more += ["--set", "group_size=4", "--set", "env.prompt=short"] if recipe[0] in BESIEGE else []
    done = CliRunner().invoke(
        app,
        ["run", *names, "--model", str(tiny_folder), *SMALL, *more, "--out", str(tmp_path / "run")],
    )
    assert done.exit_code == 0, done.output
    lines = [line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["verify/error_rate"] == 0 for line in lines)


@pytest.mark.slow
def test_three_steps_of_machines_in_two_turns_train_a_tiny_model_and_the_simulator_answers_in_between(
    tiny_folder, tmp_path
):
    more = words(
        "--steps 3 --set env.turns=2 --set group_size=4 --dtype float32 --set eval.tasks=2"
    )
    more += [
        "--max-new-tokens",
        "40",
        "--set",
        'sampling.stop=["e", "a", "C"]',
    ]  # turns that end, as those of a real model do
    command = [
        *words(f"run --recipe besiege-small --model {tiny_folder}"),
        *more,
        "--out",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    lines = [line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["verify/error_rate"] == 0 for line in lines)
    attempts = [
        line
        for line in RunFolder(tmp_path / "run").rollout_lines()
        if line["key"]["split"] == "train"
    ]
    assert len(attempts) == 3 * 8 * 4
    edited = [attempt["messages"] for attempt in attempts if len(attempt["messages"]) > 1]
    assert len(edited) > len(attempts) / 2
    assert all(
        [message["role"] for message in messages] == ["assistant", "user", "assistant"]
        for messages in edited
    )
    assert all("JSON" in messages[1]["content"] for messages in edited)


def test_two_steps_of_fill_in_train_a_tiny_masked_model_paid_by_a_tiny_scorer(tmp_path):
    save_masked(tmp_path / "generator")
    BertForSequenceClassification(masked_model(dtype=torch.float32).config).save_pretrained(
        tmp_path / "judge"
    )
    masked_tokenizer().save_pretrained(tmp_path / "judge")
    judge = [
        "--set",
        "judges.default.name=scorer",
        "--set",
        f"judges.default.settings.model={tmp_path / 'judge'}",
    ]
    more = [
        *words("--steps 2 --dtype float32 --set eval.tasks=2 --set env.unit=character"),
        *judge,
    ]
    command = [
        *words(f"run --recipe fill-in --model {tmp_path / 'generator'}"),
        *more,
        "--out",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    lines = [line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(
        line["verify/error_rate"] == 0 and line["sampling/kept_mass"] >= 0.95 for line in lines
    )
    measured = CliRunner().invoke(
        app, ["eval", "--run", str(tmp_path / "run"), "--tasks", "3", "--samples", "2"]
    )
    assert measured.exit_code == 0, measured.output
    assert "judge" in measured.stdout
