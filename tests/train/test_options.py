"""Whole runs with what can be added to GRPO: refills, PODS, masks, a KL in the reward, references that move, functions of plugins."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import AdvantageConfig, LossConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, PluginError, UnknownNameError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.algorithm.checked import checked_estimator
from grpo_core.train.algorithm.losses import clip
from grpo_core.train.algorithm.rewards import Rewards
from grpo_core.train.policy.causal import Policy
from grpo_core.train.trainer import Trainer

from ..core.distributions import install_plugin
from .killing import killed
from .letters import Letters


class Sparse(Letters):
    """Of every four tasks only one can be failed or passed; the others always pay 1."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        return verdict if task.key.index % 4 == 0 else Verdict({"share": Reward(1.0)}, passed=True)


class Rounded(Letters):
    """Every answer is worth 0.3, which half of them get as 0.1 + 0.2."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        worth = 0.3 if sum(map(ord, rollout.text)) % 2 else 0.1 + 0.2
        return Verdict({"share": Reward(worth)}, passed=False)


class Varied(Letters):
    """Different texts are worth something different."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        worth = hashlib.sha256(rollout.text.encode()).digest()[0] / 255
        return Verdict({"share": Reward(worth)}, passed=worth > 0.5)


class Heard(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "steps": 3, "eval": {"tasks": 0}, "checkpoint": {"every": 0}}


def make(
    settings: dict[str, Any], folder: Path, *, env: Letters | None = None, **more: Any
) -> Trainer:
    return Trainer(build_config([settings]), env or Letters(), folder=RunFolder(folder), **more)


def steps(trainer: Trainer) -> list[dict[str, Any]]:
    return [line for line in read_lines(trainer.folder.path / "metrics.jsonl") if "loss" in line]


def untimed(folder: Path) -> list[dict[str, Any]]:
    timed = ("time/", "verify/seconds/", "memory/", "eval/")
    return [
        {k: v for k, v in line.items() if not k.startswith(timed)}
        for line in read_lines(folder / "metrics.jsonl")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [False, True])
def test_dead_groups_are_replaced_by_other_prompts_within_bounds(
    settings: dict[str, Any], tmp_path: Path, whiten: bool
) -> None:
    advantage = {"name": "maxrl", "whiten": whiten}
    trainer = make(
        {**settings, "sampling": {"refills": 2}, "advantage": advantage},
        tmp_path / "run",
        env=Sparse(),
    )
    trainer.run()
    asked = Counter((line["step"], line["key"]["index"]) for line in trainer.folder.rollout_lines())
    # At most one of four prompts can teach: 4 asked, then 3 or 4 more, then again.
    assert set(asked.values()) == {6}
    by_step = Counter(step for step, _ in asked)
    assert all(7 <= count <= 12 for count in by_step.values())
    assert sorted(index for _, index in asked) == list(range(sum(by_step.values())))
    for line in steps(trainer):
        assert line["groups/refilled"] == by_step[line["step"]] - 4
        assert line["completion_length/mean"] > 0
    used = {
        (line["step"], line["key"]["index"])
        for line in trainer.folder.rollout_lines()
        if line["advantage"]
    }
    assert used
    assert whiten or all(index % 4 == 0 for _, index in used)


def test_groups_whose_rewards_differ_by_rounding_are_dead_and_are_refilled(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    more = {"steps": 1, "sampling": {"refills": 2}, "advantage": {"name": "grpo", "eps": 0.0}}
    trainer = make({**settings, **more}, tmp_path / "run", env=Rounded())
    trainer.run()
    lines = list(trainer.folder.rollout_lines())
    assert len({line["verdict"]["total"] for line in lines}) == 2
    assert {line["advantage"] for line in lines} == {0.0}
    (step,) = steps(trainer)
    shown = {name: step[name] for name in ("groups/refilled", "groups/mixed", "reward/std")}
    assert shown == {"groups/refilled": 8.0, "groups/mixed": 0.0, "reward/std": 0.0}
    assert (step["advantage/std"], step["grad_norm"]) == (0.0, 0.0)


@pytest.mark.slow
def test_dead_groups_are_refilled_by_their_rewards_before_a_kl(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """A KL differs between any two completions once the policy has moved, and would hide them."""
    more = {
        "sampling": {"refills": 2},
        "advantage": {"name": "mean_only"},
        "kl": {"beta": 0.1, "placement": "reward", "estimator": "k1"},
    }
    trainer = make({**settings, **more}, tmp_path / "run", env=Sparse())
    trainer.run()
    assert steps(trainer)[-1]["kl"] != 0
    # At most one of four prompts can teach: 4 asked, then 3 or 4 more, then again.
    assert all(line["groups/refilled"] >= 3 for line in steps(trainer))


def test_a_task_that_is_dealt_again_in_a_refill_gets_other_completions(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Two tasks that always pay the same are asked in each of three rounds."""

    class Few(Letters):
        def size(self, split: str) -> int:
            return 2

        def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
            return Verdict({"share": Reward(0.0)}, passed=False)

    settings = {**settings, "steps": 1, "prompts_per_step": 2, "sampling": {"refills": 2}}
    trainer = make(settings, tmp_path / "run", env=Few())
    trainer.run()
    lines = list(trainer.folder.rollout_lines())
    for index in (0, 1):
        texts = [line["messages"][0]["content"] for line in lines if line["key"]["index"] == index]
        rounds = {tuple(texts[i : i + 6]) for i in (0, 6, 12)}
        assert (len(texts), len(rounds)) == (18, 3)


@pytest.mark.slow
def test_nothing_is_refilled_where_every_group_teaches(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with_refills, without = (
        make({**settings, "sampling": {"refills": n}}, tmp_path / str(n), env=Varied())
        for n in (5, 0)
    )
    with_refills.run()
    without.run()
    assert [line["loss"] for line in steps(with_refills)] == [
        line["loss"] for line in steps(without)
    ]
    assert {line["groups/refilled"] for line in steps(with_refills)} == {0.0}


@pytest.mark.slow
def test_pods_trains_on_the_kept_attempts_only(settings: dict[str, Any], tmp_path: Path) -> None:
    trainer = make({**settings, "advantage": {"name": "grpo", "keep": 2}}, tmp_path / "run")
    trainer.run()
    lines = list(trainer.folder.rollout_lines())
    groups = [lines[i : i + 6] for i in range(0, len(lines), 6)]
    for group in groups:
        rewards = [line["verdict"]["total"] for line in group]
        trained = [line["verdict"]["total"] for line in group if line["advantage"]]
        assert trained in ([], [max(rewards), min(rewards)], [min(rewards), max(rewards)])
    kept = (
        sum(line["tokens"] for line in lines if line["step"] == 1)
        > steps(trainer)[0]["tokens/trained"]
        > 0
    )
    assert kept


def test_truncated_completions_leave_the_loss_and_stay_in_their_group(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    trainer = make(
        {**settings, "loss": {"mask_truncated": True}, "sampling": {"stop": ["a", "b", "c"]}},
        tmp_path / "run",
    )
    trainer.run()
    lines = [line for line in trainer.folder.rollout_lines() if line["step"] == 1]
    whole = sum(line["tokens"] for line in lines if line["finish"] == "stop")
    assert {line["finish"] for line in lines} == {"stop", "length"}
    assert steps(trainer)[0]["tokens/trained"] == whole
    assert any(line["advantage"] for line in lines if line["finish"] == "length")


@pytest.mark.slow
def test_long_completions_are_punished_in_the_reward(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """The tiny model writes 8 tokens or ends by chance; with a heavy punishment, cut-off ones have the lowest advantages."""
    advantage = {"name": "mean_only", "overlong_buffer": 4, "overlong_weight": 100.0}
    trainer = make({**settings, "advantage": advantage}, tmp_path / "run")
    trainer.run()
    lines = list(trainer.folder.rollout_lines())
    groups = [lines[i : i + 6] for i in range(0, len(lines), 6)]
    mixed = [group for group in groups if len({min(line["tokens"], 8) for line in group}) > 1]
    assert mixed
    for group in mixed:
        worst, best = (
            choose(group, key=lambda line: line["advantage"])["tokens"] for choose in (min, max)
        )
        assert worst > best
        assert all(0 <= line["verdict"]["total"] <= 1 for line in group)


def test_a_kl_in_the_reward_leaves_the_loss_and_moves_the_advantages(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    kl = {"beta": 5.0, "placement": "reward", "estimator": "k1"}
    trainer = make(
        {**settings, "kl": kl, "advantage": {"name": "mean_only"}, "optimizer": {"lr": 0.05}},
        tmp_path / "run",
    )
    trainer.run()
    assert [line["kl_penalty"] for line in steps(trainer)] == [0.0] * 3
    moved = []
    for number in (1, 2):
        lines = [line for line in trainer.folder.rollout_lines() if line["step"] == number]
        group = lines[:6]
        mean = sum(line["verdict"]["total"] for line in group) / 6
        moved.append(
            max(abs(line["advantage"] - (line["verdict"]["total"] - mean)) for line in group)
        )
    assert moved[0] == pytest.approx(
        0, abs=1e-4
    )  # before the first update the policy is its reference
    assert moved[1] > 1e-3


K1_IN_THE_REWARD = {"placement": "reward", "estimator": "k1"}


@pytest.mark.parametrize(
    ("name", "more", "refused"),
    [
        ("gdpo", {"kl": K1_IN_THE_REWARD}, "gdpo normalises each part"),
        ("passk", {"kl": K1_IN_THE_REWARD}, "passk uses only whether"),
        ("maxrl", {"kl": K1_IN_THE_REWARD}, "maxrl is for rewards that are never negative"),
        ("passk", {"overlong_buffer": 4}, "passk uses only whether"),
        ("maxrl", {"overlong_buffer": 4}, "maxrl is for rewards that are never negative"),
        ("gdpo", {"overlong_buffer": 4}, "gdpo normalises each part"),
        ("grpo", {"overlong_buffer": 4}, None),
        ("gdpo", {"kl": {"placement": "reward", "beta": 0.0}}, None),
        ("pkpo", {"kl": K1_IN_THE_REWARD, "overlong_buffer": 4}, None),
    ],
)
def test_what_is_added_to_the_reward_is_refused_beside_an_estimator_that_would_not_hear_it(
    settings: dict[str, Any], name: str, more: dict[str, Any], refused: str | None
) -> None:
    k = {"k": 2} if name in ("passk", "pkpo") else {}
    advantage = {"name": name, "overlong_buffer": more.get("overlong_buffer", 0), **k}
    asked = [settings, {"advantage": advantage, "kl": more.get("kl", {})}]
    if refused is None:
        assert build_config(asked)
    else:
        with pytest.raises(
            ConfigError,
            match=f"changes the reward, but advantage.name={refused}.* set advantage.name to grpo",
        ):
            build_config(asked)


def test_a_punishment_that_begins_before_the_first_token_is_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    grpo = {"name": "grpo"}
    assert make({**settings, "advantage": {**grpo, "overlong_buffer": 8}}, tmp_path / "run")
    with pytest.raises(
        ConfigError,
        match=r"overlong_buffer is 9, but an attempt at 'letters' has only 8 tokens; .*max_new_tokens",
    ):
        make({**settings, "advantage": {**grpo, "overlong_buffer": 9}}, tmp_path / "run")


@pytest.mark.slow
def test_beta_follows_its_target_and_a_resumed_run_goes_on_with_it(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    kl = {"beta": 0.1, "target": 1e-9, "horizon": 24}
    settings = {
        **settings,
        "steps": 6,
        "kl": kl,
        "checkpoint": {"every": 2},
        "sampling": {"refills": 1},
        "eval": {"tasks": 4},
    }
    whole = make(settings, tmp_path / "whole", env=Sparse())
    whole.run()
    betas = [line["beta"] for line in steps(whole)]
    assert betas[:2] == pytest.approx([0.1, 0.1 * 0.8])  # the first step has no KL yet
    assert betas[2] == pytest.approx(betas[1] * 1.2)

    with killed(tmp_path / "parts", step=5) as observer:
        make(settings, tmp_path / "parts", env=Sparse(), observer=observer).run()
    second = make(settings, tmp_path / "parts", env=Sparse())
    assert second.resume() == 4
    second.run()
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lora", [True, False])
def test_a_reference_that_is_refreshed_starts_at_the_model_and_becomes_the_policy(
    settings: dict[str, Any], tmp_path: Path, lora: bool
) -> None:
    """The KL is 0 in the step after each refresh, and not in the others."""
    settings = {
        **settings,
        "steps": 5,
        "lora": {"enabled": lora},
        "kl": {"beta": 0.1, "refresh_every": 2},
        "checkpoint": {"every": 2},
    }
    settings["optimizer"] = {"lr": 0.01 if lora else 1e-3}
    trainer = make(settings, tmp_path / "run")
    trainer.run()
    kls = [line["kl"] for line in steps(trainer)]
    assert [abs(kl) < 1e-6 for kl in kls] == [True, False, True, False, True]
    names = {name for name, _ in trainer.actor.policy.trainable()}
    assert trainer.actor.policy.reference.weights().keys() == names
    assert all(p.grad_fn is None for p in trainer.actor.policy.reference.weights().values())


@pytest.mark.slow
def test_a_reference_may_follow_at_a_distance_and_is_saved(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    kl = {"beta": 0.1, "refresh_every": 1, "refresh_rate": 0.25}
    settings = {**settings, "steps": 6, "kl": kl, "checkpoint": {"every": 2}, "eval": {"tasks": 4}}
    whole = make(settings, tmp_path / "whole")
    start = {name: p.detach().clone() for name, p in whole.actor.policy.trainable()}
    whole.run()
    first_weights = dict(whole.actor.policy.reference.weights())
    assert any(not torch.equal(first_weights[name], start[name]) for name in start)

    with killed(tmp_path / "parts", step=5) as observer:
        make(settings, tmp_path / "parts", observer=observer).run()
    second = make(settings, tmp_path / "parts")
    assert second.resume() == 4
    second.run()
    assert untimed(tmp_path / "parts") == untimed(tmp_path / "whole")
    for name, weight in second.actor.policy.reference.weights().items():
        assert torch.equal(weight, first_weights[name])


@pytest.mark.slow
def test_the_gradient_of_an_entropy_bonus_raises_the_entropy(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    entropies = []
    for bonus in (0.0, 5.0):
        trainer = make(
            {**settings, "steps": 8, "loss": {"entropy": bonus}, "kl": {"beta": 0.0}},
            tmp_path / str(bonus),
        )
        trainer.run()
        entropies.append(steps(trainer)[-1]["entropy"])
    assert entropies[1] > entropies[0]


OFFERS = """
from grpo_core import Spec, hookimpl

@hookimpl
def grpo_algorithms():
    return [Spec("mine/advantage", "mine_rules:advantage"), Spec("mine/loss", "mine_rules:loss")]
"""
RULES = """
def advantage(rewards, config):
    return (rewards.total_PG - 0.25) * rewards.scored_PG

def loss(log_ratio_BT, logprob_BT, advantage_B1, config):
    return -2 * advantage_B1 * logprob_BT
"""


def test_a_plugin_adds_an_estimator_and_a_loss_that_are_used_only_when_named(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    install_plugin(site, "mine", OFFERS)
    (site / "mine_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(site))
    named = {
        "advantage": {"name": "plugin:mine/advantage"},
        "loss": {"name": "plugin:mine/loss"},
        "kl": {"beta": 0.0},
    }
    trainer = make({**settings, "steps": 1, **named}, tmp_path / "run", host=PluginHost())
    trainer.run()
    for line in trainer.folder.rollout_lines():
        assert line["advantage"] == pytest.approx(line["verdict"]["total"] - 0.25)
    bundled = {
        "advantage": {"name": "plugin:mine/advantage"},
        "loss": {"name": "reinforce"},
        "kl": {"beta": 0.0},
    }
    plain = make({**settings, "steps": 1, **bundled}, tmp_path / "plain", host=PluginHost())
    plain.run()
    assert steps(trainer)[0]["policy_loss"] == pytest.approx(
        2 * steps(plain)[0]["policy_loss"], rel=1e-5
    )


WRONG_OFFERS = """
from grpo_core import Spec, hookimpl

NAMES = ("advantage", "column", "nan", "mean_loss", "detached_loss")

@hookimpl
def grpo_algorithms():
    return [Spec(f"wrong/{name}", f"wrong_rules:{name}") for name in NAMES]
"""
WRONG_RULES = """
def advantage(rewards, config):
    return rewards.total_PG - 0.25

def column(rewards, config):
    return rewards.total_PG[:, 0]

def nan(rewards, config):
    return rewards.total_PG / 0

def mean_loss(log_ratio_BT, logprob_BT, advantage_B1, config):
    return -(advantage_B1 * logprob_BT).mean()

def detached_loss(log_ratio_BT, logprob_BT, advantage_B1, config):
    return -(advantage_B1 * logprob_BT).detach()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("setting", "name", "message"),
    [
        ("advantage", "mean_loss", "does not name an estimator, which is called with (rewards, "),
        ("loss", "advantage", "does not name a loss, which is called with (log_ratio_BT, "),
        ("advantage", "column", "has to return advantage_PG, a tensor of shape (2, 4); found (2,)"),
        ("advantage", "nan", "returned an advantage that is not finite"),
        ("loss", "mean_loss", "has to return loss_BT, a tensor of shape ("),
        ("loss", "detached_loss", "returned a loss without a gradient"),
    ],
)
def test_a_wrong_estimator_or_loss_of_a_plugin_ends_the_run_with_one_line_that_names_it(
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    name: str,
    message: str,
) -> None:
    site = tmp_path / "site"
    install_plugin(site, "wrong", WRONG_OFFERS)
    (site / "wrong_rules.py").write_text(WRONG_RULES)
    monkeypatch.syspath_prepend(str(site))
    named = {"prompts_per_step": 2, "group_size": 4, setting: {"name": f"plugin:wrong/{name}"}}
    with pytest.raises(PluginError) as refused:
        make({**settings, "steps": 1, **named}, tmp_path / "run", host=PluginHost()).run()
    assert str(refused.value).startswith(f"{setting}.name=plugin:wrong/{name} {message}")


def test_a_completion_that_is_not_scored_gets_0_whatever_an_estimator_of_a_plugin_says() -> None:
    scored_PG = torch.tensor([[True, True, False]])
    total_PG = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    rewards = Rewards.of(total_PG, scored_PG)
    estimator = checked_estimator(
        lambda rewards, config: torch.where(rewards.scored_PG, rewards.total_PG - 0.5, math.nan),
        "advantage.name=plugin:mine",
    )
    assert estimator(rewards, AdvantageConfig()).tolist() == [[-0.5, 0.5, 0.0]]


def test_an_algorithm_that_no_plugin_offers_is_refused_before_anything_is_written(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match="nothing"):
        make({**settings, "loss": {"name": "plugin:nothing"}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_negative_advantage_is_bounded_by_the_dual_clip() -> None:
    ratio = torch.tensor([[math.log(10.0), math.log(0.5)]], dtype=torch.float64)
    config = LossConfig(dual_clip=3.0)
    found: Tensor = clip(ratio, ratio, torch.tensor([[-1.0]], dtype=torch.float64), config)
    assert found[0].tolist() == pytest.approx([3.0, 0.8])


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"optimizer": {"name": "adamw8bit"}}, "optimizer.name=adamw8bit"),
        ({"kl": {"refresh_every": 3}}, "kl.refresh_every"),
        ({"model": {"dtype": "float16"}}, "model.dtype=float16"),
    ],
)
def test_what_shared_out_weights_do_not_go_with_is_refused(
    more: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"trainer.shard does not work with {named}")):
        build_config([{"environment": "letters", "trainer": {"shard": True}, **more}])


def test_a_model_that_does_more_to_its_logits_than_its_head_is_computed_whole_and_says_so(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Its log-probs are then those of its own logits."""
    config = build_config(
        [{**settings, "lora": {"enabled": False}, "optimizer": {"lr": 0.0001}, "kl": {"beta": 0.0}}]
    )
    plain = Policy.load(config, need_reference=False)
    assert plain.logits_bytes
    forward = plain.model.forward

    def capped(*arguments: Any, **named: Any) -> Any:
        out = forward(*arguments, **named)
        out.logits = 3 * torch.tanh(out.logits / 3)
        return out

    plain.model.forward = capped
    policy, heard = Policy(plain.model, plain.tokenizer), Heard()
    assert policy.logits_bytes == 0
    Trainer(config, Letters(), folder=tmp_path / "run", policy=policy, observer=heard)
    assert any("all at once" in text for text in heard.said)
