"""Runs that end before their last step, for a reason that they name; and the weights that were best."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from grpo_core import ConfigError, Reward, Rollout, Task, Trainer, Verdict, build_config
from grpo_core.train.run.stopping import Best, Stopping

from .killing import killed
from .letters import Letters
from .runs import Heard, logged, small_settings
from .short_runs import run_until
from .tiny import save_tiny
from .trained import make, trained


class Growing(Letters):
    """Pays more with each answer that it judges."""

    by, paid = 1e-4, 0.0

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.paid += self.by
        return Verdict({"share": Reward(self.paid)}, passed=False)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = save_tiny(tmp_path_factory.mktemp("model") / "tiny")
    return {**small_settings(model), "eval": {"tasks": 8}, "checkpoint": {"every": 0}}


def best_of(folder: Path) -> dict[str, Any]:
    """What is known of the weights of the best evaluation."""
    return json.loads((folder / "checkpoints" / "best" / "best.json").read_text())


def stopping(**config: Any) -> Stopping:
    return Stopping(build_config([{"environment": "letters", **config}]))


def evaluated(step: int, reward: float) -> dict[str, float]:
    return {"step": step, "eval/reward/mean": reward}


@pytest.mark.slow
def test_a_run_ends_when_its_reward_is_reached_and_is_finished(settings, tmp_path):
    heard = Heard()
    more = {"steps": 60, "stop": {"reward": 0.3}}
    trainer = make(tmp_path / "run", settings, more, observer=heard)
    gains = trainer.run()
    assert 10 <= trainer.done < 60
    rewards = logged(tmp_path / "run", "reward/mean")
    assert sum(rewards[-10:]) / 10 >= 0.3
    assert len(rewards) == 10 or sum(rewards[-11:-1]) / 10 < 0.3
    assert trainer.folder.finished
    assert gains["reward"].mean > 0
    assert heard.about("stop.reward=0.3")
    assert "stop.reward=0.3" in (tmp_path / "run" / "log.txt").read_text()


def test_the_weights_of_the_best_evaluation_are_kept_and_loadable(settings, tmp_path):
    trained(tmp_path / "run", settings, {"steps": 6, "eval": {"every": 2}})
    scores = logged(tmp_path / "run", "eval/reward/mean")
    assert best_of(tmp_path / "run") == {
        "step": 2 * scores.index(max(scores)),
        "reward": max(scores),
    }
    base = transformers.AutoModelForCausalLM.from_pretrained(settings["model"]["name"])
    assert peft.PeftModel.from_pretrained(base, tmp_path / "run" / "checkpoints" / "best")


@pytest.mark.slow
def test_the_best_weights_of_steps_that_were_cut_are_not_taken_for_those_of_the_run(
    settings, tmp_path
):
    """Killed after an evaluation behind the last checkpoint, which was the best so far."""
    more = {"steps": 8, "eval": {"tasks": 32, "every": 2}, "checkpoint": {"every": 4}}
    with killed(tmp_path / "run", step=7) as observer:
        make(tmp_path / "run", settings, more, observer=observer).run()
    assert best_of(tmp_path / "run")["step"] == 6
    heard, changes = Heard(), {"optimizer.lr": 0.0}
    trainer = Trainer.resumed(tmp_path / "run", Letters(), changes=changes, observer=heard)
    best, folder = best_of(tmp_path / "run"), tmp_path / "run" / "checkpoints" / "best"
    assert best["step"] == 4
    saved = load_file(folder / "adapter_model.safetensors")
    present = {name.replace(".default", ""): v for name, v in trainer.actor.policy.trainable()}
    assert saved.keys() == present.keys()
    assert all(torch.equal(saved[name], present[name]) for name in saved)
    trainer.run()
    assert best_of(tmp_path / "run") == best
    where = f"highest after step 4 ({best['reward']:.3f}); those weights are in {folder}"
    assert heard.about(where)


@pytest.mark.slow
def test_best_weights_that_are_gone_are_not_pointed_at(settings, tmp_path):
    """The run was killed behind a better evaluation, whose weights took the place of the best ones that are known after the resume."""
    more = {
        "steps": 6,
        "eval": {"every": 2},
        "checkpoint": {"every": 3},
        "verify": {"cache": "off"},
    }
    run_until(make(tmp_path / "run", settings, more, env=Growing()), 5)
    assert best_of(tmp_path / "run")["step"] == 4
    # As if it had been killed in step 5.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000005")
    heard, worse = Heard(), Growing()
    worse.by = 0.0
    Trainer.resumed(tmp_path / "run", worse, observer=heard).run()
    (said,) = heard.about("was highest")
    assert said.startswith("the held-out reward was highest after step 2")
    assert "weights" not in said
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def step(number: int, **metrics: float) -> dict[str, float]:
    return {"step": number, "kl": 0.0, "reward/mean": 0.0, **{name.replace("__", "/"): value for name, value in metrics.items()}}  # fmt: skip


def test_steps_in_a_row_whose_completions_are_all_cut_off_end_a_run_that_asks_for_it():
    rule, silent = stopping(stop={"cut_off": 3}), stopping()
    shares = (1.0, 1.0, 0.99, 1.0, 1.0, 1.0)
    *before, reason = [rule.look(step(i, completion_length__clipped=share)) for i, share in enumerate(shares)]  # fmt: skip
    assert before == [None] * 5
    assert reason == (
        "every completion was cut off in 3 steps in a row, and stop.cut_off=3; allow longer ones "
        "(--max-new-tokens), or ask for shorter answers"
    )
    assert not any(silent.look(step(i, completion_length__clipped=1.0)) for i in range(200))


@pytest.mark.parametrize(
    ("pass_rate", "advice"),
    [(0.0, "right answers first"), (0.5, "--group-size"), (1.0, "either it is solved")],
)
def test_steps_in_a_row_without_a_signal_end_a_run_that_asks_for_it(pass_rate, advice):
    rule = stopping(stop={"no_signal": 2})
    mixed = ({"groups__mixed": share, "advantage__std": 0.0} for share in (0, 0.1, 0, 0))
    *before, reason = [rule.look(step(i, pass_rate=pass_rate, **more)) for i, more in enumerate(mixed)]  # fmt: skip
    assert before == [None] * 3
    assert "no group had different rewards in 2 steps in a row, and stop.no_signal=2" in reason
    assert advice in reason
    # What the trainer adds to rewards may differ, and teaches; a step that nobody judged says nothing.
    assert not any(rule.look(step(i, groups__mixed=0, advantage__std=0.3)) for i in range(5))
    unjudged = {"step": 9, "groups/mixed": None, "completion_length/clipped": None}
    assert not any(rule.look(unjudged) for _ in range(5))


@pytest.mark.slow
def test_a_run_without_a_signal_is_finished_and_says_why(settings, tmp_path):
    heard, even = Heard(), Growing()
    even.by = 0.0
    more = {"steps": 9, "stop": {"no_signal": 3}}
    trainer = Trainer(build_config([settings, more]), even, folder=tmp_path / "run", observer=heard)
    trainer.run()
    assert trainer.done == 3
    assert trainer.folder.finished
    assert heard.about("stop.no_signal=3")


def test_patience_counts_evaluations_that_are_no_better():
    rule = stopping(stop={"patience": 2}, eval={"every": 5})
    rewards = (0.1, 0.3, 0.3, 0.4, 0.2)
    assert not any(rule.look(evaluated(5 * place, r)) for place, r in enumerate(rewards))
    reason = "2 evaluations in a row were no better than 0.400 after step 15"
    assert rule.look(evaluated(25, 0.4)) == reason
    assert rule.best == Best(15, 0.4)


def test_the_kl_stops_a_run_only_as_a_mean_over_several_steps():
    rule = stopping(stop={"max_kl": 1.0})
    looks = enumerate([0, 0, 0, 4, 0, 0.9, 0.2, 1.0], 1)
    *before, reason = [rule.look({"step": i, "kl": kl, "reward/mean": 0.0}) for i, kl in looks]
    assert before[:6] == [None] * 6
    assert reason == "the KL to the reference was 1.22 over 5 steps, above stop.max_kl=1"


def test_with_evaluations_the_reward_that_counts_is_the_held_out_one():
    rule = stopping(stop={"reward": 0.9}, eval={"every": 5})
    assert not any(rule.look({"step": i, "kl": 0.0, "reward/mean": 1.0}) for i in range(20))
    assert rule.look(evaluated(0, 0.95)) is None  # before training there is nothing to stop
    assert rule.look(evaluated(20, 0.95)) == "the reward (held-out) is 0.950, and stop.reward=0.9"


@pytest.mark.slow
def test_a_resumed_run_remembers_what_it_saw(settings, tmp_path):
    """Stopped in a step that an evaluation follows: the resumed run evaluates it, and loses patience when the whole one does."""
    more = {"steps": 30, "eval": {"every": 3}, "stop": {"patience": 2}, "optimizer": {"lr": 0.0}}
    whole, _ = trained(tmp_path / "whole", settings, more)
    assert whole.done == 6  # without learning no evaluation is better than the first
    parts = run_until(make(tmp_path / "parts", settings, more), 3)
    assert not parts.folder.finished
    again = Trainer.resumed(tmp_path / "parts", Letters())
    assert again.done == 3
    again.run()
    assert again.done == whole.done
    assert again.folder.finished
    for name in ("whole", "parts"):
        assert len(logged(tmp_path / name, "eval/reward/mean")) == 3


def test_an_evaluation_of_which_nothing_could_be_judged_is_none():
    rule = stopping(stop={"patience": 1}, eval={"every": 5})
    rewards = (math.nan, 0.3, math.nan, 0.6)
    assert not any(rule.look(evaluated(5 * place, r)) for place, r in enumerate(rewards))
    assert rule.best == Best(15, 0.6)


def test_patience_without_evaluations_is_refused():
    with pytest.raises(ConfigError, match=r"stop\.patience counts evaluations; set eval\.every"):
        stopping(stop={"patience": 2})
