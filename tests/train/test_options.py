"""Whole runs with what can be added to GRPO: refills, PODS, masks, a KL in the reward, references that move, functions of plugins."""

import hashlib
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.config.overrides import build_config, nested
from grpo_core.config.settings import AdvantageConfig
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, PluginError, UnknownNameError
from grpo_core.runs.folder import RunFolder
from grpo_core.train.algorithm.checked import checked_estimator
from grpo_core.train.algorithm.rewards import Rewards
from grpo_core.train.trainer import Trainer

from ..core.distributions import install_plugin
from .killing import killed
from .letters import Letters
from .short_runs import QUICK, Heard, make, ran, steps_of, untimed


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


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "steps": 3, **nested(QUICK)}


def rollouts_of(trainer: Trainer, step: int | None = None) -> list[dict[str, Any]]:
    """Return the log's lines of the rollouts of a step, or of all."""
    lines = trainer.folder.rollout_lines()
    return [line for line in lines if step in (None, line["step"])]


def steps(trainer: Trainer) -> list[dict[str, Any]]:
    return steps_of(trainer.folder.path)


def groups_of(lines: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [lines[i : i + 6] for i in range(0, len(lines), 6)]


K1_IN_THE_REWARD = {"placement": "reward", "estimator": "k1", "beta": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "only_mixed"),
    [
        ({"advantage.name": "maxrl"}, True),
        ({"advantage.name": "maxrl", "advantage.whiten": True}, False),
        # A KL differs between any two completions once the policy has moved, and would hide them.
        ({"advantage.name": "mean_only", "kl": K1_IN_THE_REWARD}, False),
    ],
    ids=["plain", "whitened", "with a KL in the reward"],
)
def test_dead_groups_are_replaced_by_other_prompts_within_bounds(
    settings, tmp_path, changes, only_mixed
):
    trainer = ran(settings, tmp_path / "run", {"sampling.refills": 2, **changes}, env=Sparse())
    asked = Counter((line["step"], line["key"]["index"]) for line in rollouts_of(trainer))
    # At most one of four prompts can teach: 4 asked, then 3 or 4 more, then again.
    assert set(asked.values()) == {6}
    by_step = Counter(step for step, _ in asked)
    assert all(7 <= count <= 12 for count in by_step.values())
    assert sorted(index for _, index in asked) == list(range(sum(by_step.values())))
    for line in steps(trainer):
        assert line["groups/refilled"] == by_step[line["step"]] - 4
        assert line["completion_length/mean"] > 0
    used = {line["key"]["index"] for line in rollouts_of(trainer) if line["advantage"]}
    assert used
    assert not only_mixed or all(index % 4 == 0 for index in used)
    assert steps(trainer)[-1]["kl"] != 0


def test_groups_whose_rewards_differ_by_rounding_are_dead_and_are_refilled(settings, tmp_path):
    changes = {"steps": 1, "sampling.refills": 2, "advantage.eps": 0.0}
    trainer = ran(settings, tmp_path / "run", changes, env=Rounded())
    lines = rollouts_of(trainer)
    assert len({line["verdict"]["total"] for line in lines}) == 2
    assert {line["advantage"] for line in lines} == {0.0}
    (step,) = steps(trainer)
    shown = {name: step[name] for name in ("groups/refilled", "groups/mixed", "reward/std")}
    assert shown == {"groups/refilled": 8.0, "groups/mixed": 0.0, "reward/std": 0.0}
    assert (step["advantage/std"], step["grad_norm"]) == (0.0, 0.0)


def test_a_task_that_is_dealt_again_in_a_refill_gets_other_completions(settings, tmp_path):
    """Two tasks that always pay the same are asked in each of three rounds."""

    class Few(Letters):
        def size(self, split: str) -> int:
            return 2

        def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
            return Verdict({"share": Reward(0.0)}, passed=False)

    changes = {"steps": 1, "prompts_per_step": 2, "sampling.refills": 2}
    lines = rollouts_of(ran(settings, tmp_path / "run", changes, env=Few()))
    for index in (0, 1):
        texts = [line["messages"][0]["content"] for line in lines if line["key"]["index"] == index]
        rounds = {tuple(texts[i : i + 6]) for i in (0, 6, 12)}
        assert (len(texts), len(rounds)) == (18, 3)


@pytest.mark.slow
def test_nothing_is_refilled_where_every_group_teaches(settings, tmp_path):
    with_refills, without = (
        steps(ran(settings, tmp_path / str(count), {"sampling.refills": count}, env=Varied()))
        for count in (5, 0)
    )
    assert [line["loss"] for line in with_refills] == [line["loss"] for line in without]
    assert {line["groups/refilled"] for line in with_refills} == {0.0}


@pytest.mark.slow
def test_pods_trains_on_the_kept_attempts_only(settings, tmp_path):
    trainer = ran(settings, tmp_path / "run", {"advantage.keep": 2})
    for group in groups_of(rollouts_of(trainer)):
        rewards = [line["verdict"]["total"] for line in group]
        trained = [line["verdict"]["total"] for line in group if line["advantage"]]
        assert trained in ([], [max(rewards), min(rewards)], [min(rewards), max(rewards)])
    sampled = sum(line["tokens"] for line in rollouts_of(trainer, 1))
    assert sampled > steps(trainer)[0]["tokens/trained"] > 0


def test_truncated_completions_leave_the_loss_and_stay_in_their_group(settings, tmp_path):
    changes = {"steps": 1, "loss.mask_truncated": True, "sampling.stop": ["a", "b", "c"]}
    trainer = ran(settings, tmp_path / "run", changes)
    lines = rollouts_of(trainer)
    assert {line["finish"] for line in lines} == {"stop", "length"}
    whole = sum(line["tokens"] for line in lines if line["finish"] == "stop")
    assert steps(trainer)[0]["tokens/trained"] == whole
    assert any(line["advantage"] for line in lines if line["finish"] == "length")


@pytest.mark.slow
def test_long_completions_are_punished_in_the_reward(settings, tmp_path):
    """The tiny model writes 8 tokens or ends by chance; with a heavy punishment, cut-off ones have the lowest advantages."""
    advantage = {"name": "mean_only", "overlong_buffer": 4, "overlong_weight": 100.0}
    groups = groups_of(rollouts_of(ran(settings, tmp_path / "run", {"advantage": advantage})))
    mixed = [group for group in groups if len({min(line["tokens"], 8) for line in group}) > 1]
    assert mixed
    for group in mixed:
        worst, best = (
            choose(group, key=lambda line: line["advantage"])["tokens"] for choose in (min, max)
        )
        assert worst > best
        assert all(0 <= line["verdict"]["total"] <= 1 for line in group)


def test_a_kl_in_the_reward_leaves_the_loss_and_moves_the_advantages(settings, tmp_path):
    changes = {"steps": 2, "kl": {**K1_IN_THE_REWARD, "beta": 5.0}, "optimizer.lr": 0.05}
    trainer = ran(settings, tmp_path / "run", {**changes, "advantage.name": "mean_only"})
    assert [line["kl_penalty"] for line in steps(trainer)] == [0.0] * 2
    moved = []
    for number in (1, 2):
        group = groups_of(rollouts_of(trainer, number))[0]
        mean = sum(line["verdict"]["total"] for line in group) / 6
        gaps = [abs(line["advantage"] - (line["verdict"]["total"] - mean)) for line in group]
        moved.append(max(gaps))
    # Before the first update the policy is its reference.
    assert moved[0] == pytest.approx(0, abs=1e-4)
    assert moved[1] > 1e-3


PASSK, MAXRL = "passk uses only whether", "maxrl is for rewards that are never negative"
GDPO = "gdpo normalises each part"


@pytest.mark.parametrize(
    ("name", "kl", "overlong", "refused"),
    [
        ("gdpo", K1_IN_THE_REWARD, 0, GDPO),
        ("passk", K1_IN_THE_REWARD, 0, PASSK),
        ("maxrl", K1_IN_THE_REWARD, 0, MAXRL),
        ("passk", {}, 4, PASSK),
        ("maxrl", {}, 4, MAXRL),
        ("gdpo", {}, 4, GDPO),
        ("grpo", {}, 4, None),
        ("gdpo", {"placement": "reward", "beta": 0.0}, 0, None),
        ("pkpo", K1_IN_THE_REWARD, 4, None),
    ],
)
def test_what_is_added_to_the_reward_is_refused_beside_an_estimator_that_would_not_hear_it(
    settings, name, kl, overlong, refused
):
    k = {"k": 2} if name in ("passk", "pkpo") else {}
    layers = [settings, {"advantage": {"name": name, "overlong_buffer": overlong, **k}, "kl": kl}]
    if refused is None:
        assert build_config(layers)
        return
    message = f"changes the reward, but advantage.name={refused}.* set advantage.name to grpo"
    with pytest.raises(ConfigError, match=message):
        build_config(layers)


def test_a_punishment_that_begins_before_the_first_token_is_refused(settings, tmp_path):
    assert make(settings, tmp_path / "run", {"advantage.overlong_buffer": 8})
    message = "overlong_buffer is 9, but an attempt at 'letters' has only 8 tokens; .*max_new_token"
    with pytest.raises(ConfigError, match=message):
        make(settings, tmp_path / "run", {"advantage.overlong_buffer": 9})


def assert_resumed_equals_whole(whole: Trainer, changes: dict[str, Any], settings: Any) -> Trainer:
    """Kill a run like `whole` after its fifth step, resume it, compare it; return the resumed one."""
    folder, env = whole.folder.path.with_name("parts"), type(whole.actor.sources.trained[0].env)
    with killed(folder, step=5) as observer:
        ran(settings, folder, changes, env=env(), observer=observer)
    second = make(settings, RunFolder(folder), changes, env=env())
    assert second.resume() == 4
    second.run()
    assert untimed(folder) == untimed(whole.folder.path)
    return second


LONGER = {"steps": 6, "checkpoint.every": 2, "eval.tasks": 4}


@pytest.mark.slow
def test_beta_follows_its_target_and_a_resumed_run_goes_on_with_it(settings, tmp_path):
    kl = {"beta": 0.1, "target": 1e-9, "horizon": 24}
    changes = {**LONGER, "kl": kl, "sampling.refills": 1}
    whole = ran(settings, tmp_path / "whole", changes, env=Sparse())
    betas = [line["beta"] for line in steps(whole)]
    assert betas[:2] == pytest.approx([0.1, 0.1 * 0.8])  # the first step has no KL yet
    assert betas[2] == pytest.approx(betas[1] * 1.2)
    assert_resumed_equals_whole(whole, changes, settings)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lora", [True, False])
def test_a_reference_that_is_refreshed_starts_at_the_model_and_becomes_the_policy(
    settings, tmp_path, lora
):
    """The KL is 0 in the step after each refresh, and not in the others."""
    changes = {"lora.enabled": lora, "optimizer.lr": 0.01 if lora else 1e-3}
    reference = {"kl.beta": 0.1, "kl.refresh_every": 2}
    trainer = ran(settings, tmp_path / "run", {"steps": 5, **changes, **reference})
    assert [abs(line["kl"]) < 1e-6 for line in steps(trainer)] == [True, False, True, False, True]
    policy = trainer.actor.policy
    assert policy.reference.weights().keys() == {name for name, _ in policy.trainable()}
    assert all(weight.grad_fn is None for weight in policy.reference.weights().values())


@pytest.mark.slow
def test_a_reference_may_follow_at_a_distance_and_is_saved(settings, tmp_path):
    changes = {**LONGER, "kl": {"beta": 0.1, "refresh_every": 1, "refresh_rate": 0.25}}
    whole = make(settings, tmp_path / "whole", changes)
    start = {name: p.detach().clone() for name, p in whole.actor.policy.trainable()}
    whole.run()
    weights = dict(whole.actor.policy.reference.weights())
    assert any(not torch.equal(weights[name], start[name]) for name in start)
    second = assert_resumed_equals_whole(whole, changes, settings)
    for name, weight in second.actor.policy.reference.weights().items():
        assert torch.equal(weight, weights[name])


OFFERS = """
from grpo_core import Spec, hookimpl

NAMES = ("advantage", "loss", "column", "nan", "mean_loss", "detached_loss")

@hookimpl
def grpo_algorithms():
    return [Spec(f"mine/{name}", f"mine_rules:{name}") for name in NAMES]
"""
RULES = """
def advantage(rewards, config):
    return (rewards.total_PG - 0.25) * rewards.scored_PG

def column(rewards, config):
    return rewards.total_PG[:, 0]

def nan(rewards, config):
    return rewards.total_PG / 0

def loss(log_ratio_BT, logprob_BT, advantage_B1, config):
    return -2 * advantage_B1 * logprob_BT

def mean_loss(log_ratio_BT, logprob_BT, advantage_B1, config):
    return -(advantage_B1 * logprob_BT).mean()

def detached_loss(log_ratio_BT, logprob_BT, advantage_B1, config):
    return -(advantage_B1 * logprob_BT).detach()
"""
SMALL = {"steps": 1, "prompts_per_step": 2, "group_size": 4, "kl.beta": 0.0}


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugin of estimators and losses, right ones and wrong ones."""
    install_plugin(tmp_path / "site", "mine", OFFERS)
    (tmp_path / "site" / "mine_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.mark.usefixtures("rules")
def test_a_plugin_adds_an_estimator_and_a_loss_that_are_used_only_when_named(settings, tmp_path):
    own, plain = (
        ran(
            settings,
            tmp_path / loss.rpartition("/")[-1],
            {**SMALL, "advantage.name": "plugin:mine/advantage", "loss.name": loss},
            host=PluginHost(),
        )
        for loss in ("plugin:mine/loss", "reinforce")
    )
    for line in rollouts_of(own):
        assert line["advantage"] == pytest.approx(line["verdict"]["total"] - 0.25)
    losses = [steps(trainer)[0]["policy_loss"] for trainer in (own, plain)]
    assert losses[0] == pytest.approx(2 * losses[1], rel=1e-5)


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
@pytest.mark.usefixtures("rules")
def test_a_wrong_estimator_or_loss_of_a_plugin_ends_the_run_with_one_line_that_names_it(
    settings, tmp_path, setting, name, message
):
    changes = {**SMALL, f"{setting}.name": f"plugin:mine/{name}"}
    with pytest.raises(PluginError) as refused:
        ran(settings, tmp_path / "run", changes, host=PluginHost())
    assert str(refused.value).startswith(f"{setting}.name=plugin:mine/{name} {message}")


def test_a_completion_that_is_not_scored_gets_0_whatever_an_estimator_of_a_plugin_says():
    scored_PG = torch.tensor([[True, True, False]])
    total_PG = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    rewards = Rewards.of(total_PG, scored_PG)
    estimator = checked_estimator(
        lambda rewards, config: torch.where(rewards.scored_PG, rewards.total_PG - 0.5, math.nan),
        "advantage.name=plugin:mine",
    )
    assert estimator(rewards, AdvantageConfig()).tolist() == [[-0.5, 0.5, 0.0]]


def test_an_algorithm_that_no_plugin_offers_is_refused_before_anything_is_written(
    settings, tmp_path
):
    with pytest.raises(UnknownNameError, match="nothing"):
        make(settings, tmp_path / "run", {"loss.name": "plugin:nothing"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"optimizer": {"name": "adamw8bit"}}, "optimizer.name=adamw8bit"),
        ({"kl": {"refresh_every": 3}}, "kl.refresh_every"),
        ({"model": {"dtype": "float16"}}, "model.dtype=float16"),
    ],
)
def test_what_shared_out_weights_do_not_go_with_is_refused(more, named):
    with pytest.raises(ConfigError, match=re.escape(f"trainer.shard does not work with {named}")):
        build_config([{"environment": "letters", "trainer": {"shard": True}, **more}])


def test_a_model_that_does_more_to_its_logits_than_its_head_is_computed_whole_and_says_so(
    settings, tmp_path
):
    """Its log-probs are then those of its own logits."""
    changes = nested({"lora.enabled": False, "optimizer.lr": 0.0001, "kl.beta": 0.0})
    config = build_config([settings, changes])
    plain = load_policy(config, need_reference=False)
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
