"""The recipes of whole experiments: what they set, the number of weights they train, and two steps of each with a tiny model."""

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
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.load import ModelSource
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

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
    file = f"{name if name in BESIEGE else 'recipe'}.toml"
    text = Path(str(PACKAGES[name].__file__)).with_name(file).read_text()
    return text.partition("\nenvironment")[0], tomllib.loads(text)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_recipe_states_what_it_repeats_and_where_it_differs(name):
    comment, settings = given(name)
    assert all(line.startswith("# ") for line in comment.splitlines())
    assert "Deviations: " in comment
    config = flat(read_config([], [name], {}, []))
    for section, values in settings.items():
        for key, value in values.items() if isinstance(values, dict) else [("", values)]:
            whole = section in ("env", "weights")
            found = config[section][key] if whole else config[f"{section}.{key}".rstrip(".")]
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
    lora = read_config([], ["fizzbuzz"], {}, []).lora
    with torch.device("meta"):
        model = add_adapter(Qwen2ForCausalLM(config), lora, ModelSource("shape", "shape"))
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    assert sum(size for size, trained in sizes if trained) == 8_798_208
    assert sum(size for size, _ in sizes) == 502_830_976


def steps_of(folder: Path, model: Path, *more: str) -> list[dict]:
    """Train with a recipe, and return the lines of the steps."""
    command = ["run", "--model", str(model), "--dtype", "float32", "--set", "eval.tasks=2", *more]
    done = CliRunner().invoke(app, [*command, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    lines = [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line]
    assert all(line["verify/error_rate"] == 0 for line in lines)
    return lines


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
    ids=" with ".join,
)
def test_two_steps_of_it_train_a_tiny_model(recipe, tiny_folder, tmp_path):
    if "fizzbuzz" in recipe and shutil.which("bwrap") is None:
        missing("needs bubblewrap")
    own = {"fizzbuzz": "sandbox.name=bubblewrap", "gsm8k-xml": "env.source=templates"}
    more = [word for name in recipe for word in ("--recipe", name)]
    more += ["--set", own[recipe[0]]] if recipe[0] in own else []
    more += words("--set group_size=4 --set env.prompt=short") if recipe[0] in BESIEGE else []
    more += words("--steps 2 --max-new-tokens 8")
    steps = steps_of(tmp_path / "run", tiny_folder, *more)
    assert [line["step"] for line in steps] == [1, 2]


@pytest.mark.slow
def test_three_steps_of_machines_in_two_turns_train_a_tiny_model_and_the_simulator_answers_in_between(
    tiny_folder, tmp_path
):
    more = words("--recipe besiege-small --steps 3 --set env.turns=2 --set group_size=4")
    more += words("--max-new-tokens 40 --set")
    more.append('sampling.stop=["e", "a", "C"]')  # turns that end, as those of a real model do
    steps = steps_of(tmp_path / "run", tiny_folder, *more)
    assert [line["step"] for line in steps] == [1, 2, 3]
    lines = RunFolder(tmp_path / "run").rollout_lines()
    attempts = [line["messages"] for line in lines if line["key"]["split"] == "train"]
    assert len(attempts) == 3 * 8 * 4
    edited = [messages for messages in attempts if len(messages) > 1]
    assert len(edited) > len(attempts) / 2
    for messages in edited:
        assert [message["role"] for message in messages] == ["assistant", "user", "assistant"]
        assert "JSON" in messages[1]["content"]


@pytest.mark.slow
def test_two_steps_of_fill_in_train_a_tiny_masked_model_paid_by_a_tiny_scorer(tmp_path):
    generator, judge, run = (tmp_path / name for name in ("generator", "judge", "run"))
    save_masked(generator)
    shape = masked_model(dtype=torch.float32).config
    BertForSequenceClassification(shape).save_pretrained(judge)
    masked_tokenizer().save_pretrained(judge)
    more = words("--recipe fill-in --steps 2 --set env.unit=character")
    more += words("--set prompts_per_step=4 --set group_size=4")
    more += words(f"--set judges.default.name=scorer --set judges.default.settings.model={judge}")
    steps = steps_of(run, generator, *more)
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["sampling/kept_mass"] >= 0.95 for line in steps)
    measured = CliRunner().invoke(app, words(f"eval --run {run} --tasks 3 --samples 2"))
    assert measured.exit_code == 0, measured.output
    assert "judge" in measured.stdout
