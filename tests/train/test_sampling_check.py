"""A run compares sampler and trainer on some tokens before anything is written or trained."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError, Trainer
from grpo_core.engine.compute import rows
from grpo_core.engine.compute.masks import Masking
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.ways import DecodingWay
from grpo_core.runs.observer import Observer

from . import architectures
from .arrange import run_config
from .letters import Letters
from .runs import Heard
from .tiny import tiny_tokenizer


def trainer(folder: Path, policy: Policy, observer: Observer) -> Trainer:
    config = run_config(
        model={"dtype": "float32"},
        lora={"enabled": False},
        optimizer={"lr": 1e-6},
        kl={"beta": 0.0},
        steps=1,
        prompts_per_step=2,
        group_size=2,
        eval={"tasks": 0},
    )
    return Trainer(config, Letters(), folder=folder, policy=policy, observer=observer)


def blind_policy() -> Policy:
    """A model with windows whose sampler was told that there are none."""
    policy = Policy(architectures.tiny_model("mistral"), tiny_tokenizer())
    assert policy.sampling is DecodingWay.TREES
    trained = policy._values

    def right(*arguments: Any, **more: Any) -> Any:
        policy.masking, blind = Masking(single="sliding_attention"), policy.masking
        try:
            return trained(*arguments, **more)
        finally:
            policy.masking = blind

    policy.masking, policy._values = Masking(), right  # type: ignore[method-assign]
    return policy


def test_a_wrong_sampler_is_replaced_by_the_slow_one_and_said(tmp_path: Path) -> None:
    policy, heard = blind_policy(), Heard()
    run = trainer(tmp_path / "run", policy, heard)
    run.run()
    assert policy.sampling is DecodingWay.UNCACHED
    assert any("sampler and trainer differ" in text and "slow" in text for text in heard.warnings)
    assert run.done == 1


def test_a_sampler_that_is_wrong_in_every_way_is_refused_before_anything_is_written(
    tmp_path, monkeypatch
):
    compute = rows.forward_padded
    monkeypatch.setattr(rows, "forward_padded", lambda *a, **k: compute(*a, **k) * 0.5)
    with pytest.raises(ConfigError, match="it did not draw"):
        trainer(tmp_path / "run", blind_policy(), Heard()).run()
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_right_sampler_is_not_mentioned(tmp_path: Path) -> None:
    heard = Heard()
    policy = Policy(architectures.tiny_model("mistral"), tiny_tokenizer())
    trainer(tmp_path / "run", policy, heard).run()
    assert policy.sampling is DecodingWay.TREES
    assert not [text for text in heard.warnings if "sampler" in text]
