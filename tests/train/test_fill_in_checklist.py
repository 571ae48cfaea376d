"""What the notes "GRPO for single-step fill-in" ask to be checked by hand before a full training, as checks of one run of 10 steps.

"Loss decreases" is `test_an_optimizer_step_lowers_the_loss_of_its_own_batch` beside this file: from step to step a policy gradient's loss
need not, since every batch has advantages of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification

from grpo_core import MASK, ConfigError, UserError
from grpo_core.config.overrides import build_config, nested
from grpo_core.plugins.host import PluginHost
from grpo_core.train.trainer import Trainer

from .short_runs import steps_of
from .tiny_masked import masked_model, masked_tokenizer, save_masked


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """generator/ and judge/, with random weights."""
    folder = tmp_path_factory.mktemp("fill-in")
    save_masked(folder / "generator")
    torch.manual_seed(0)
    BertForSequenceClassification(masked_model(dtype=torch.float32).config).save_pretrained(
        folder / "judge"
    )
    masked_tokenizer().save_pretrained(folder / "judge")
    return folder


def trainer(models: Path, folder: Path, **more: Any) -> Trainer:
    settings = {
        "steps": 10,
        "prompts_per_step": 8,
        "model.name": str(models / "generator"),
        "model.dtype": "float32",
        "judges.default.name": "scorer",
        "judges.default.settings.model": str(models / "judge"),
        "env.unit": "character",
        "optimizer.lr": 1e-3,
        "eval.tasks": 4,
        **more,
    }
    recipe = PluginHost().load("recipe", "fill-in")
    return Trainer(build_config([recipe, nested(settings)]), folder=folder)


@pytest.fixture(scope="module")
def run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """After its 10 steps."""
    found = trainer(models, tmp_path_factory.mktemp("run") / "run")
    found.run()
    return found


@pytest.fixture
def lines(run: Trainer) -> list[dict[str, float]]:
    return steps_of(run.folder.path)


def test_the_generators_checkpoint_loads_whole_or_not_at_all(models, tmp_path):
    stored = load_file(models / "generator" / "model.safetensors")
    assert_holds(trainer(models, tmp_path / "run").actor.policy.model, stored)
    broken = save_masked(tmp_path / "broken")
    first, *kept = sorted(stored)
    weights = {name: stored[name] for name in kept}
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"lack 1 of its tensors, for example {first}"):
        trainer(models, tmp_path / "other", **{"model.name": str(broken)})


def assert_holds(model: Any, stored: dict[str, torch.Tensor]) -> None:
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored.items())


def test_the_judge_has_to_be_a_sequence_scorer(models, tmp_path):
    judge = {"judges.default.settings.model": str(models / "generator")}
    with pytest.raises(ConfigError, match=r"must be a sequence scorer .*BertForMaskedLM"):
        trainer(models, tmp_path / "run", **judge)


@pytest.mark.slow
def test_reference_and_judge_are_frozen_and_what_they_were_after_the_run(run, models):
    policy = run.actor.policy
    start = load_file(models / "generator" / "model.safetensors")
    judge = run.actor.sources.trained[0].env.services.judge()._frozen.model  # type: ignore[attr-defined]
    scorer = load_file(models / "judge" / "model.safetensors")
    for model, stored in ((policy.reference.models()[1], start), (judge, scorer)):
        assert not model.training
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert_holds(model, stored)
    moved = policy.model.state_dict()
    assert any(not torch.equal(moved[name], tensor) for name, tensor in start.items())


@pytest.mark.slow
def test_the_inputs_are_masked_and_the_mask_token_is_known(run):
    assert run.actor.policy.tokenizer.mask_token_id is not None
    groups = run.sample(4, attempts=1)
    assert all(MASK in group.task.prompt for group in groups)
    assert all(run.actor.policy.mask_id in group.rollouts[0].prompt_ids for group in groups)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_ten_steps_run_and_nothing_fails(lines):
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert {line["verify/error_rate"] for line in lines} == {0}
    assert {line["steps/skipped_nonfinite"] for line in lines} == {0}


@pytest.mark.slow
def test_rewards_and_fills_vary_within_the_groups(run, lines):
    assert all(line["groups/mixed"] > 0.9 and line["reward/std"] > 0 for line in lines)
    first = [line for line in run.folder.rollout_lines() if line["step"] == 1]
    assert len({json.dumps(line["messages"]) for line in first}) > len(first) / 2


@pytest.mark.slow
def test_kl_and_gradient_stay_in_bounds(lines):
    assert lines[0]["kl/sequence"] == pytest.approx(0, abs=1e-4)
    assert all(0 <= line["kl/sequence"] < 5 for line in lines[1:])
    assert all(0 < line["grad_norm"] < 1e4 for line in lines)
