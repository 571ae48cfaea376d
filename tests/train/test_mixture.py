"""Test runs with several environments: shares, groups, metrics, evaluation alone, and resume."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError, UnknownNameError
from grpo_core.runs.lines import read_lines
from grpo_core.train.rollout.tasks import train_keys
from grpo_core.train.trainer import Trainer
from grpo_core.verify.sources import Sources

from .guessing import Guessing
from .killing import killed
from .letters import Letters

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


def make(settings: dict[str, Any], folder: Path, **more: Any) -> Trainer:
    """Two environments that are given, one that is found by its name."""
    return Trainer(
        build_config([settings]),
        {"letters": Letters(), "guessing": Guessing()},
        folder=folder,
        **more,
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    timed = ("time/", "verify/seconds/", "memory/")
    return [
        {
            k: v
            for k, v in line.items()
            if not any(part in k for part in timed) and k != "eval/seconds"
        }
        for line in read_lines(folder / "metrics.jsonl")
    ]


def test_shares_hold_at_every_step_and_no_task_is_dealt_twice(settings):
    config = build_config([settings])
    sources = Sources.of(config, {"letters": Letters(), "guessing": Guessing()})
    levels = {source.name: source.level for source in sources}
    keys = [
        key
        for step in range(1, 26)
        for key in train_keys(config, sources, 4 * (step - 1), 4, levels)
    ]
    assert len(set(keys)) == len(keys) == 100
    for step in range(1, 26):
        assert Counter(key.env for key in keys[: 4 * step]) == {
            "letters": 2 * step,
            "guessing": step,
            "arithmetic": step,
        }
    assert train_keys(config, sources, 24, 4, levels) == keys[24:28]
    assert {key.level for key in keys if key.env == "arithmetic"} == {0.4}


@pytest.mark.slow
def test_a_mixture_trains_with_metrics_for_each_environment_and_resumes_exactly(settings, tmp_path):
    whole = make(settings, tmp_path / "whole")
    gains = whole.run()
    assert {"letters reward", "guessing reward", "arithmetic pass_rate"} <= gains.keys()
    found = lines(tmp_path / "whole")
    step = next(line for line in found if line["step"] == 1)
    assert {
        "letters/reward/mean",
        "guessing/reward/digits",
        "arithmetic/reward/exact",
        "reward/mean",
    } <= step.keys()
    assert {"eval/letters/pass_rate", "eval/guessing/reward/mean", "eval/reward/mean"} <= found[
        0
    ].keys()
    groups = Counter(
        (line["step"], line["key"]["env"], line["key"]["index"])
        for line in whole.folder.rollout_lines()
        if line["step"]
    )
    assert {count for (number, _, _), count in groups.items() if number < 4} == {3}

    with killed(tmp_path / "parts", step=3) as observer:
        make(settings, tmp_path / "parts", observer=observer).run()
    second = Trainer.resumed(tmp_path / "parts", {"letters": Letters(), "guessing": Guessing()})
    assert second.done == 2
    second.run()
    assert lines(tmp_path / "parts") == found
    expected = dict(whole.actor.policy.trainable())
    assert all(
        torch.equal(expected[name], tensor) for name, tensor in second.actor.policy.trainable()
    )


@pytest.mark.slow
def test_the_share_of_an_environment_that_is_a_file_can_change_when_a_run_goes_on(
    settings, tmp_path
):
    name = f"{Path(__file__).parent / 'letters.py'}:Letters"
    settings = {**settings, "mixture": {name: {"share": 2}, "arithmetic": {}}, "eval": {"tasks": 0}}
    first = Trainer(build_config([settings]), folder=tmp_path / "run")
    first.observer.step = lambda number, total, metrics: first.request_stop()  # type: ignore[method-assign]
    first.run()
    again = Trainer.resumed(tmp_path / "run", changes={f'mixture."{name}".share': 3})
    assert {known: member.share for known, member in again.config.members().items()} == {
        name: 3,
        "arithmetic": 1,
    }


def test_what_is_only_evaluated_is_never_trained_on(settings, tmp_path):
    settings = {
        **settings,
        "environment": "letters",
        "mixture": {},
        "eval": {"tasks": 5, "also": ["arithmetic"]},
    }
    trainer = Trainer(build_config([settings]), Letters(), folder=tmp_path / "run")
    gains = trainer.run()
    assert {"letters reward", "arithmetic reward"} <= gains.keys()
    asked = Counter(
        (line["key"]["env"], line["key"]["split"]) for line in trainer.folder.rollout_lines()
    )
    assert asked == {("letters", "train"): 48, ("letters", "eval"): 10, ("arithmetic", "eval"): 10}
    first = lines(tmp_path / "run")[0]
    assert {"eval/reward/mean", "eval/arithmetic/reward/mean"} <= first.keys()
    only = [
        line["verdict"]["total"]
        for line in trainer.folder.rollout_lines()
        if line["step"] == 0 and line["key"]["env"] == "letters"
    ]
    assert first["eval/reward/mean"] == pytest.approx(sum(only) / 5)


def test_the_tasks_of_all_environments_are_evaluated_in_batches_which_the_estimate_of_memory_knows(
    settings, tmp_path
):
    trainer = make({**settings, "eval": {"tasks": 20}}, tmp_path / "run")
    assert trainer.method.workload([(1,) * 10]).decoded[-1] == (60, 1)


def test_each_environment_keeps_its_own_budget(settings, tmp_path):
    trainer = make({**settings, "sampling": {}}, tmp_path / "run")
    assert {name: budget.turn for name, budget in trainer.actor.budgets.items()} == {
        "letters": 8,
        "guessing": 6,
        "arithmetic": 16,
    }


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
        make({**settings, **change}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_environment_that_is_given_but_not_named_is_an_error(settings, tmp_path):
    with pytest.raises(UnknownNameError, match="'letter' is not known; did you mean 'letters'"):
        Trainer(build_config([settings]), {"letter": Letters()}, folder=tmp_path / "run")
