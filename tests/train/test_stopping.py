"""Runs that end before their last step, for a reason that they name; and the weights that were best."""

from __future__ import annotations

import json
import math
import shutil
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.run.stopping import Best, Stopping
from grpo_core.train.trainer import Trainer

from .killing import killed
from .letters import Letters


class Growing(Letters):
    """Pays more with each answer that it judges."""

    by, paid = 1e-4, 0.0

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.paid += self.by
        return Verdict({"share": Reward(self.paid)}, passed=False)


class Listener(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "steps": 60, "eval": {"tasks": 16}, "checkpoint": {"every": 0}}


def stopping(**config: Any) -> Stopping:
    return Stopping(build_config([{"environment": "letters", **config}]))


def evaluated(step: int, reward: float) -> dict[str, float]:
    return {"step": step, "eval/reward/mean": reward}


def test_a_run_ends_when_its_reward_is_reached_and_is_finished(settings, tmp_path):
    observer = Listener()
    trainer = Trainer(
        build_config([{**settings, "stop": {"reward": 0.5}}]),
        Letters(),
        folder=tmp_path / "run",
        observer=observer,
    )
    gains = trainer.run()
    assert 10 <= trainer.done < 60
    rewards = [
        line["reward/mean"]
        for line in read_lines(tmp_path / "run" / "metrics.jsonl")
        if "reward/mean" in line
    ]
    assert sum(rewards[-10:]) / 10 >= 0.5 > sum(rewards[-11:-1]) / 10
    assert trainer.folder.finished
    assert gains["reward"].mean > 0
    assert any("stop.reward=0.5" in text for text in observer.said)
    assert "stop.reward=0.5" in (tmp_path / "run" / "log.txt").read_text()


def test_the_weights_of_the_best_evaluation_are_kept_and_loadable(settings, tmp_path, tiny_folder):
    config = build_config([{**settings, "steps": 12, "eval": {"tasks": 16, "every": 3}}])
    Trainer(config, Letters(), folder=tmp_path / "run").run()
    scores = {
        line["step"]: line["eval/reward/mean"]
        for line in read_lines(tmp_path / "run" / "metrics.jsonl")
        if "eval/reward/mean" in line
    }
    best = json.loads((tmp_path / "run" / "checkpoints" / "best" / "best.json").read_text())
    assert best == {
        "step": max(scores, key=lambda step: scores[step]),
        "reward": max(scores.values()),
    }
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_folder)
    assert peft.PeftModel.from_pretrained(base, tmp_path / "run" / "checkpoints" / "best")


def test_the_best_weights_of_steps_that_were_cut_are_not_taken_for_those_of_the_run(
    settings, tmp_path
):
    """Killed after an evaluation behind the last checkpoint, which was the best so far."""

    more = {"steps": 8, "eval": {"tasks": 32, "every": 2}, "checkpoint": {"every": 4}}
    with killed(tmp_path / "run", step=7) as observer:
        Trainer(
            build_config([settings, more]), Letters(), folder=tmp_path / "run", observer=observer
        ).run()
    file = tmp_path / "run" / "checkpoints" / "best" / "best.json"
    cut = json.loads(file.read_text())
    assert cut["step"] == 6
    observer = Listener()
    trainer = Trainer.resumed(
        tmp_path / "run", Letters(), changes={"optimizer.lr": 0.0}, observer=observer
    )
    best = json.loads(file.read_text())
    assert best["step"] == 4
    saved = load_file(file.parent / "adapter_model.safetensors")
    trained = {
        name.replace(".default", ""): value for name, value in trainer.actor.policy.trainable()
    }
    assert saved.keys() == trained.keys()
    assert all(torch.equal(saved[name], trained[name]) for name in saved)
    trainer.run()
    assert json.loads(file.read_text()) == best
    assert any(
        f"highest after step 4 ({best['reward']:.3f}); those weights are in {file.parent}" in text
        for text in observer.said
    )


def test_best_weights_that_are_gone_are_not_pointed_at(settings, tmp_path):
    """The run was killed behind a better evaluation, whose weights took the place of the best ones that are known after the resume."""
    more = {
        "steps": 6,
        "eval": {"tasks": 32, "every": 2},
        "checkpoint": {"every": 3},
        "verify": {"cache": "off"},
    }
    trainer = Trainer(build_config([settings, more]), Growing(), folder=tmp_path / "run")
    trainer.observer.step = lambda number, total, metrics: (
        trainer.request_stop() if number == 5 else None
    )
    trainer.run()
    best = tmp_path / "run" / "checkpoints" / "best"
    assert json.loads((best / "best.json").read_text())["step"] == 4
    shutil.rmtree(
        tmp_path / "run" / "checkpoints" / "step-000005"
    )  # as if it had been killed in step 5
    observer, worse = Listener(), Growing()
    worse.by = 0.0
    Trainer.resumed(tmp_path / "run", worse, observer=observer).run()
    (said,) = [text for text in observer.said if "was highest" in text]
    assert said.startswith("the held-out reward was highest after step 2")
    assert "weights" not in said
    assert not best.exists()


def test_patience_counts_evaluations_that_are_no_better():
    rule = stopping(stop={"patience": 2}, eval={"every": 5})
    assert [
        rule.look(evaluated(step, reward))
        for step, reward in ((0, 0.1), (5, 0.3), (10, 0.3), (15, 0.4), (20, 0.2))
    ] == [None] * 5
    assert (
        rule.look(evaluated(25, 0.4))
        == "2 evaluations in a row were no better than 0.400 after step 15"
    )
    assert rule.best == Best(15, 0.4)


def test_the_kl_stops_a_run_only_as_a_mean_over_several_steps():
    rule = stopping(stop={"max_kl": 1.0})
    reasons = [
        rule.look({"step": i, "kl": kl, "reward/mean": 0.0})
        for i, kl in enumerate([0, 0, 0, 4, 0, 0.9, 0.2], 1)
    ]
    assert reasons[:5] == [None] * 5
    assert reasons[5] is None
    assert (
        rule.look({"step": 8, "kl": 1.0, "reward/mean": 0.0})
        == "the KL to the reference was 1.22 over 5 steps, above stop.max_kl=1"
    )


def test_with_evaluations_the_reward_that_counts_is_the_held_out_one():
    rule = stopping(stop={"reward": 0.9}, eval={"every": 5})
    assert not any(rule.look({"step": i, "kl": 0.0, "reward/mean": 1.0}) for i in range(20))
    assert rule.look(evaluated(0, 0.95)) is None  # before training there is nothing to stop
    assert rule.look(evaluated(20, 0.95)) == "the reward (held-out) is 0.950, and stop.reward=0.9"


def test_a_resumed_run_remembers_what_it_saw(settings, tmp_path):
    """Stopped in a step that an evaluation follows: the resumed run evaluates it, and loses patience when the whole one does."""
    config = build_config(
        [
            {
                **settings,
                "steps": 30,
                "eval": {"tasks": 16, "every": 3},
                "stop": {"patience": 2},
                "optimizer": {"lr": 0.0},
            }
        ]
    )
    whole = Trainer(config, Letters(), folder=tmp_path / "whole")
    whole.run()
    assert whole.done == 6  # without learning no evaluation is better than the first

    class StopAtThree(Observer):
        trainer: Trainer

        def step(self, step: int, total: int, metrics: Any) -> None:
            if step == 3:
                self.trainer.request_stop()

    observer = StopAtThree()
    observer.trainer = Trainer(config, Letters(), folder=tmp_path / "parts", observer=observer)
    observer.trainer.run()
    again = Trainer.resumed(tmp_path / "parts", Letters())
    assert again.done == 3
    again.run()
    assert again.done == whole.done
    logs = [
        [
            line["step"]
            for line in read_lines(tmp_path / name / "metrics.jsonl")
            if "eval/reward/mean" in line
        ]
        for name in ("parts", "whole")
    ]
    assert logs[0] == logs[1] == [0, 3, 6]


def test_an_evaluation_of_which_nothing_could_be_judged_is_none():
    rule = stopping(stop={"patience": 1}, eval={"every": 5})
    assert [
        rule.look(evaluated(step, reward))
        for step, reward in ((0, math.nan), (5, 0.3), (10, math.nan), (15, 0.6))
    ] == [None] * 4
    assert rule.best == Best(15, 0.6)


def test_patience_without_evaluations_is_refused():
    with pytest.raises(ConfigError, match=r"stop\.patience counts evaluations; set eval\.every"):
        stopping(stop={"patience": 2})
