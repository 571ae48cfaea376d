"""Settings that the model's size decides, from the model's weights to the run folder."""

from typing import Any

import pytest

from grpo_core.config.overrides import build_config, nested
from grpo_core.engine.models.adapter import base_weights
from grpo_core.engine.policy.choose import load_policy
from grpo_core.runs.folder import RunFolder
from grpo_core.train import actor as actors
from grpo_core.train.trainer import Trainer

from .letters import Answered, Letters
from .runs import Heard
from .short_runs import run_until, steps_of
from .tiny import tiny_model
from .trained import make, trained


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: value for key, value in settings.items() if key != "optimizer"},
        "steps": 2,
        "eval": {"tasks": 0},
    }


def test_a_run_records_numbers_and_says_which(settings, tmp_path):
    trainer, heard = trained(tmp_path / "run", settings)
    record = RunFolder.open(tmp_path / "run").config()
    assert (record["optimizer"]["lr"], record["kl"]["beta"]) == (3e-4, 0.12)
    assert (trainer.config.optimizer.lr, trainer.config.kl.beta) == (3e-4, 0.12)
    (line,) = [text for text in heard.said if "optimizer.lr" in text]
    assert line.startswith("optimizer.lr=0.0003 (measured here with 135 million) and kl.beta=0.12")
    assert line in (tmp_path / "run" / "log.txt").read_text()
    assert {line["beta"] for line in steps_of(tmp_path / "run")} == {0.12}


def test_a_larger_model_takes_other_numbers(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(actors, "base_weights", lambda model: 494_032_768)
    more = {"schedule": {"name": "constant", "warmup": 0}}
    trainer, heard = trained(tmp_path / "run", settings, more)
    assert [line["lr"] for line in steps_of(tmp_path / "run")] == [5e-5, 5e-5]
    assert trainer.method.updater.beta == 0.04
    assert any("for an adapter on 494 million weights" in text for text in heard.said)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_numbers(settings, tmp_path, monkeypatch):
    """Even if the table has changed since."""
    trainer = run_until(make(tmp_path / "run", settings, {"steps": 3}), 1)
    assert trainer.done == 1
    monkeypatch.setattr(actors, "base_weights", lambda model: 494_032_768)
    heard = Heard()
    resumed = Trainer.resumed(tmp_path / "run", Letters(), observer=heard)
    resumed.run()
    assert (resumed.config.optimizer.lr, resumed.config.kl.beta) == (3e-4, 0.12)
    assert resumed.done == 3
    assert not [text for text in heard.said if "optimizer.lr" in text]


def test_an_adaptive_beta_starts_at_the_default(settings, tmp_path):
    kl = {"target": 1e-9, "horizon": 24}
    trained(tmp_path / "run", settings, {"kl": kl})
    first, second = (line["beta"] for line in steps_of(tmp_path / "run"))
    assert first == 0.12
    assert second != first


def test_supervised_fine_tuning_takes_its_own_rate(settings, tmp_path):
    sft = {"method": "sft", "lora": {"enabled": False}}
    _, heard = trained(tmp_path / "run", settings, sft, env=Answered())
    record = RunFolder.open(tmp_path / "run").config()
    assert record["optimizer"]["lr"] == 2e-5
    assert any(text.startswith("optimizer.lr=2e-5") for text in heard.said)
    assert heard.warnings == []


@pytest.mark.parametrize(("rate", "warns"), [(None, False), (1e-4, False), (3e-4, True)])
def test_only_a_rate_that_somebody_set_is_called_high(settings, rate, warns):
    heard = Heard()
    full = {"lora": {"enabled": False}, "optimizer": {"lr": rate}}
    make(None, settings, full, observer=heard)
    high = [text for text in heard.warnings if "high for full fine-tuning; leave it out" in text]
    assert bool(high) == warns


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "more",
    [
        {"lora.enabled": False},
        {},
        {"lora.targets": ["q_proj"], "lora.r": 4},
        {"model.quantization": "8bit"},
        {"model.quantization": "4bit"},
        {"model.offload": True, "trainer.gradient_checkpointing": True},
    ],
    ids=str,
)
def test_the_weights_of_the_base_model_are_counted_however_they_are_stored(settings, more):
    expected = sum(weight.numel() for weight in tiny_model().parameters())
    policy = load_policy(build_config([settings, nested(more)]), need_reference=True)
    assert base_weights(policy.model) == expected


@pytest.mark.slow
def test_an_adapter_that_is_trained_further_is_not_counted(settings, tmp_path):
    trained(tmp_path / "run", settings)
    again = nested({"model.name": str(tmp_path / "run")})
    policy = load_policy(build_config([settings, again]), need_reference=True)
    assert base_weights(policy.model) == sum(w.numel() for w in tiny_model().parameters())
