"""Test runs with several environments: shares, groups, metrics, evaluation alone, and resume."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.config.overrides import build_config
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, UnknownNameError
from grpo_core.train.rollout.tasks import train_keys
from grpo_core.train.trainer import Trainer
from grpo_core.verify.sources import Sources

from .guessing import Guessing
from .killing import killed
from .letters import Letters
from .short_runs import LETTERS, QUICK, make, ran, run_until, steps_of, untimed
from .test_options import Varied

MEMBERS = {"letters": {"share": 2}, "guessing": {}, "arithmetic": {"level": 0.4}}


@pytest.fixture
def settings(tiny_folder: Path) -> dict[str, Any]:
    return {
        "mixture": MEMBERS,
        "model": {"name": str(tiny_folder), "dtype": "float32"},
        "steps": 4,
        "prompts_per_step": 4,
        "group_size": 3,
        "sampling": {"max_new_tokens": 6},
        "optimizer": {"lr": 0.01},
        "eval": {"tasks": 5},
        "checkpoint": {"every": 2},
        "verify": {"isolation": "inline"},
    }


def given() -> dict[str, Environment[Any]]:
    """Return two of the environments; the third one is found by its name."""
    return {"letters": Letters(), "guessing": Guessing()}


def test_shares_hold_at_every_step_and_no_task_is_dealt_twice(settings):
    config = build_config([settings])
    sources = Sources.of(config, given())
    levels = {source.name: source.level for source in sources}
    dealt = [train_keys(config, sources, 4 * step, 4, levels) for step in range(25)]
    keys = [key for of_step in dealt for key in of_step]
    assert len(set(keys)) == len(keys) == 100
    for of_step in dealt:
        shares = Counter(key.env for key in of_step)
        assert shares == {"letters": 2, "guessing": 1, "arithmetic": 1}
    assert train_keys(config, sources, 24, 4, levels) == keys[24:28]
    assert {key.level for key in keys if key.env == "arithmetic"} == {0.4}


@pytest.mark.slow
def test_a_mixture_trains_with_metrics_for_each_environment_and_resumes_exactly(settings, tmp_path):
    whole = make(settings, tmp_path / "whole", env=given())
    gains = whole.run()
    assert {"letters reward", "guessing reward", "arithmetic pass_rate"} <= gains.keys()
    found = untimed(tmp_path / "whole")
    parts = {"letters/reward/mean", "guessing/reward/digits", "arithmetic/reward/exact"}
    assert {*parts, "reward/mean"} <= found[1].keys()
    evaluated = {"eval/letters/pass_rate", "eval/guessing/reward/mean", "eval/reward/mean"}
    assert evaluated <= found[0].keys()
    lines = [line for line in whole.folder.rollout_lines() if 0 < line["step"] < 4]
    groups = Counter((line["step"], line["key"]["env"], line["key"]["index"]) for line in lines)
    assert {*groups.values()} == {3}

    with killed(tmp_path / "parts", step=3) as observer:
        ran(settings, tmp_path / "parts", env=given(), observer=observer)
    second = Trainer.resumed(tmp_path / "parts", given())
    assert second.done == 2
    second.run()
    assert untimed(tmp_path / "parts") == found
    expected = dict(whole.actor.policy.trainable())
    trained = second.actor.policy.trainable()
    assert all(torch.equal(expected[name], tensor) for name, tensor in trained)


@pytest.mark.slow
def test_the_share_of_an_environment_that_is_a_file_can_change_when_a_run_goes_on(
    settings, tmp_path
):
    mixture = {LETTERS: {"share": 2}, "arithmetic": {}}
    config = build_config([{**settings, "mixture": mixture, "eval": {"tasks": 0}}])
    run_until(Trainer(config, folder=tmp_path / "run"), 1)
    again = Trainer.resumed(tmp_path / "run", changes={f'mixture."{LETTERS}".share': 3})
    shares = {name: member.share for name, member in again.config.members().items()}
    assert shares == {LETTERS: 3, "arithmetic": 1}


@pytest.mark.slow
def test_what_is_only_evaluated_is_never_trained_on_and_does_not_change_the_loss(
    settings, tmp_path
):
    """Its completions may be longer, which the constant aggregation knows nothing of."""
    one = {**settings, "environment": "letters", "mixture": {}, "sampling": {}}
    usual = {**QUICK, "steps": 2, "eval.tasks": 5, "loss.aggregation": "constant"}
    alone = ran(one, tmp_path / "alone", usual, env=Varied())
    more = {**usual, "eval.also": ["arithmetic"]}
    beside = make(one, tmp_path / "beside", more, env=Varied())
    assert {"letters reward", "arithmetic reward"} <= beside.run().keys()
    losses = [[line["loss"] for line in steps_of(run.folder.path)] for run in (alone, beside)]
    assert losses[0] == losses[1]
    assert all(losses[0])
    lines = list(beside.folder.rollout_lines())
    asked = Counter((line["key"]["env"], line["key"]["split"]) for line in lines)
    assert asked == {("letters", "train"): 24, ("letters", "eval"): 10, ("arithmetic", "eval"): 10}
    first = untimed(tmp_path / "beside")[0]
    assert "eval/arithmetic/reward/mean" in first
    only = [
        line["verdict"]["total"]
        for line in lines
        if line["step"] == 0 and line["key"]["env"] == "letters"
    ]
    assert first["eval/reward/mean"] == pytest.approx(sum(only) / 5)


def test_each_environment_keeps_its_own_budget_and_all_are_evaluated_in_batches(settings, tmp_path):
    """The estimate of memory knows these batches."""
    trainer = make({**settings, "sampling": {}}, tmp_path / "run", {"eval.tasks": 20}, env=given())
    budgets = {name: budget.turn for name, budget in trainer.actor.budgets.items()}
    assert budgets == {"letters": 8, "guessing": 6, "arithmetic": 16}
    assert trainer.method.workload([(1,) * 10]).decoded[-1] == (60, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": "letters"}, "mixture replaces environment"),
        ({"epochs": 1, "steps": None}, "epochs=1 is for one environment"),
        ({"mixture": {"letters": {"share": 0}}}, "no environment is named"),
        ({"mixture": {"letters": {"shares": 1}}}, "'mixture.letters.shares' is not known"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(settings, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        make({**settings, **change}, tmp_path / "run", env=given())
    assert not (tmp_path / "run").exists()


def test_an_environment_that_is_given_but_not_named_is_an_error(settings, tmp_path):
    with pytest.raises(UnknownNameError, match="'letter' is not known; did you mean 'letters'"):
        make(settings, tmp_path / "run", env={"letter": Letters()})
