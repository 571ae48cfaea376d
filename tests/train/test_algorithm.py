"""Loss and gradient against a naive oracle that walks over sequences and tokens, as the paper writes it; all in float64."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import KLConfig, LossConfig
from grpo_core.protocol.types import Rollout
from grpo_core.train.algorithm.advantages import ADVANTAGES, advantages
from grpo_core.train.algorithm.losses import (
    AGGREGATIONS,
    FULL,
    KL_ESTIMATORS,
    LEVELS,
    SURROGATES,
    adapted,
    clipped,
    sequence,
    truncated,
    truncated_importance,
)
from grpo_core.train.algorithm.rewards import Rewards
from grpo_core.train.compute.batch import Row
from grpo_core.train.compute.values import token_values
from grpo_core.train.policy.causal import Policy
from grpo_core.train.update.updater import Sums, Updater

from .arrange import CPU, collate, micro_batches, random_rollouts, run_config, tiny_policy

P, G = 3, 4
REWARD_PG = torch.tensor(
    [[0.1, 0.9, 0.4, 0.4], [0.7, 0.7, 0.7, 0.7], [0.0, 0.2, 1.0, 0.3]], dtype=torch.float64
)
SCORED_PG = torch.tensor([[True] * 4, [True] * 4, [True, True, False, True]])


def rows_of(config: RunConfig, rollouts_PG: list[list[Rollout]]) -> list[Row]:
    advantage_PG = advantages(Rewards.of(REWARD_PG, SCORED_PG), config.advantage)
    loss = config.loss
    return collate(
        rollouts_PG,
        advantage_PG,
        SCORED_PG,
        aggregation=loss.aggregation,
        max_length=9,
        mask_truncated=loss.mask_truncated,
    )[0]


def gradient(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in policy.trainable() if p.grad is not None}


def ours(
    policy: Policy,
    config: RunConfig,
    rollouts_PG: list[list[Rollout]],
    old: dict[tuple[int, ...], list[float]] | None = None,
    *,
    pair: float = 0.0,
):
    """Loss and gradient as the trainer computes them. pair: what makes trees small (see `micro_batches`)."""
    updater = Updater(policy, config, steps=1)
    policy.model.zero_grad()
    total = 0.0
    rows = rows_of(config, rollouts_PG)
    most = config.trainer.micro_batch_tokens or policy.tuning.micro_batch_tokens
    for micro in micro_batches(rows, max_tokens=most, device=CPU, dtype=torch.float64, pair=pair):
        width = micro.tokens_BT.shape[1]
        old_BT = None
        if old is not None:
            padded = [
                old[row.segment.token_ids] + [0.0] * (width - len(row.segment.token_ids))
                for row in micro.rows
            ]
            old_BT = torch.tensor(padded, dtype=torch.float64)
        reference = policy.reference_states(micro) if config.needs_reference else None
        loss, _ = updater.loss(micro, old_BT, reference, Sums())
        loss.backward()
        total += loss.item()
    return total, gradient(policy)


Chosen = dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def spoken(policy: Policy, rollouts_PG: list[list[Rollout]], temperature: float) -> Chosen:
    """Log-prob and entropy of each token (T,) of each completion, and log-probs (T, V): one sequence at a time, without cache, padding or batch."""
    found = {}
    for rollout in itertools.chain.from_iterable(rollouts_PG):
        ids = torch.tensor([[*rollout.prompt_ids, *rollout.token_ids]])
        logits = (
            policy.model(input_ids=ids, use_cache=False).logits[0, len(rollout.prompt_ids) - 1 : -1]
            / temperature
        )
        log_TV = torch.log_softmax(logits, dim=-1)
        chosen = (
            torch.stack([log_TV[t, token] for t, token in enumerate(rollout.token_ids)])
            if rollout.token_ids
            else log_TV.sum(dim=-1)
        )
        found[rollout.token_ids] = (chosen, -(log_TV.exp() * log_TV).sum(dim=-1), log_TV)
    return found


def oracle(
    policy: Policy,
    config: RunConfig,
    rollouts_PG: list[list[Rollout]],
    old: dict[tuple[int, ...], list[float]] | None,
    *,
    present: Chosen | None = None,
    reference: Chosen | None = None,
):
    """The definition, one token at a time. present, reference: what `spoken` gave, where it is known."""
    policy.model.zero_grad()
    temperature, loss_of = config.sampling.temperature, config.loss
    present = present or spoken(policy, rollouts_PG, temperature)
    if reference is None:
        with torch.no_grad(), policy.model.disable_adapter():
            reference = spoken(policy, rollouts_PG, temperature)
    kept = []
    for p, g in itertools.product(range(P), range(G)):
        if SCORED_PG[p, g]:
            scored = [REWARD_PG[p, j].item() for j in range(G) if SCORED_PG[p, j]]
            centred = REWARD_PG[p, g].item() - statistics.fmean(scored)
            spread = (
                1.0
                if config.advantage.name == "mean_only"
                else statistics.pstdev(scored) + config.advantage.eps
            )
            kept.append((rollouts_PG[p][g], 0.0 if len(set(scored)) == 1 else centred / spread))
    if config.advantage.name == "gdpo":
        whole = statistics.pstdev([advantage for _, advantage in kept]) + config.advantage.eps
        kept = [(rollout, advantage / whole) for rollout, advantage in kept]
    if (most := config.advantage.clip) is not None:
        kept = [(rollout, max(-most, min(most, advantage))) for rollout, advantage in kept]
    if loss_of.mask_truncated:
        kept = [(rollout, advantage) for rollout, advantage in kept if rollout.finish != "length"]
    total_tokens = sum(sum(r.trainable) for r, _ in kept)
    loss = torch.zeros((), dtype=torch.float64)
    for rollout, advantage in kept:
        places = [t for t in range(len(rollout.token_ids)) if rollout.trainable[t]]
        logprobs, entropies, log_TV = present[rollout.token_ids]
        references, _, log_reference_TV = (v.detach() for v in reference[rollout.token_ids])
        before = (
            logprobs.detach()
            if old is None
            else torch.tensor(old[rollout.token_ids], dtype=torch.float64)
        )
        anchors = before if loss_of.anchor == "old" else references
        moved = sum(
            (logprobs[t] - anchors[t] for t in places), torch.zeros((), dtype=torch.float64)
        )
        terms = []
        for t in places:
            logprob = logprobs[t]
            ratio = torch.exp(
                {
                    "token": logprob - anchors[t],
                    "sequence_mean": moved / len(places),
                    "sequence": moved,
                }[loss_of.level]
            )
            bounded = torch.clamp(ratio, 1 - loss_of.clip_low, 1 + loss_of.clip_high)
            if loss_of.name == "clip":
                term = -torch.min(ratio * advantage, bounded * advantage)
                if loss_of.dual_clip is not None and advantage < 0:
                    term = torch.min(
                        torch.max(-ratio * advantage, -bounded * advantage),
                        torch.tensor(-loss_of.dual_clip * advantage).double(),
                    )
            elif loss_of.name == "cispo":
                term = -bounded.detach() * advantage * logprob
            elif loss_of.name == "sapo":
                tau = loss_of.sapo_positive if advantage > 0 else loss_of.sapo_negative
                term = -(4 / tau) / (1 + torch.exp(-tau * (ratio - 1))) * advantage
            else:
                term = -advantage * logprob
            if loss_of.tis_cap is not None:
                weight = math.exp(before[t].item() - rollout.logprobs[t])
                term = term * max(loss_of.tis_floor, min(loss_of.tis_cap, weight))
            term = term - loss_of.entropy * entropies[t]
            d = logprob - references[t]
            k3, now = torch.exp(-d) + d - 1, d.detach()
            kl = {
                "k1": d,
                "k2": d * d / 2,
                "k3": k3,
                "k3_reverse": torch.exp(d) - d - 1,
                "k3_st": now * (d - now) + k3.detach(),
                "full": (log_TV[t].exp() * (log_TV[t] - log_reference_TV[t])).sum(),
            }
            moved_by = now + references[t] - before[t]
            if config.kl.estimator not in ("k2", "k3_st"):  # these are weighted from outside
                moved_by = logprob - before[t]
            importance = torch.exp(moved_by) if config.kl.importance else 1.0
            terms.append(term + config.kl.beta * importance * kl[config.kl.estimator])
        if not terms:
            continue
        summed = torch.stack(terms).sum()
        loss = (
            loss
            + {
                "sequence_mean": summed / len(terms) / len(kept),
                "token_mean": summed / total_tokens,
                "sequence_sum": summed / len(kept),
                "constant": summed / (len(kept) * 9),
            }[loss_of.aggregation]
        )
    loss.backward(retain_graph=True)
    return loss.item(), gradient(policy)


def assert_same(found, expected, *, rtol: float) -> None:
    assert found[0] == pytest.approx(expected[0], rel=rtol, abs=1e-14)
    assert found[1].keys() == expected[1].keys()
    norm = math.sqrt(sum(float((g**2).sum()) for g in expected[1].values()))
    assert norm > 1e-6
    for name, expected_gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], expected_gradient, rtol=rtol, atol=rtol * norm)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


@pytest.fixture(scope="module")
def rollouts_PG() -> list[list[Rollout]]:
    return random_rollouts(P, G)


@pytest.fixture(scope="module")
def old(policy: Policy, rollouts_PG: list[list[Rollout]]) -> dict[tuple[int, ...], list[float]]:
    """Log-probs of a policy that has since moved: some ratios lie outside the clip on either side."""
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        found = spoken(policy, rollouts_PG, 1.0)
    return {
        ids: (chosen + 0.4 * torch.randn(chosen.shape, generator=noise)).tolist()
        for ids, (chosen, *_) in found.items()
    }


@pytest.fixture(scope="module")
def known(policy: Policy, rollouts_PG: list[list[Rollout]]) -> dict[str, Chosen]:
    """What the oracle needs of the model, which no loss changes."""
    with torch.no_grad(), policy.model.disable_adapter():
        reference = spoken(policy, rollouts_PG, 1.0)
    return {"present": spoken(policy, rollouts_PG, 1.0), "reference": reference}


@pytest.mark.parametrize("estimator", ["k3", "k3_st"])
@pytest.mark.parametrize("advantage", ["grpo", "mean_only", "gdpo"])
def test_the_default_algorithm_equals_the_oracle(policy, rollouts_PG, old, advantage, estimator):
    """Both defaults and what the literature calls GRPO."""
    config = run_config(kl={"estimator": estimator}, advantage={"name": advantage})
    for moved in (None, old):
        assert_same(
            ours(policy, config, rollouts_PG, moved),
            oracle(policy, config, rollouts_PG, moved),
            rtol=1e-9,
        )


def test_the_temperature_is_that_of_every_log_prob(policy, rollouts_PG, old):
    config = run_config(sampling={"temperature": 0.7})
    assert_same(
        ours(policy, config, rollouts_PG, old), oracle(policy, config, rollouts_PG, old), rtol=1e-9
    )


LEVEL_NAMES = ["token", "sequence_mean", "sequence"]
TIGHT = {"clip_low": 0.1, "clip_high": 0.3}
SHIFTED = {"name": "mean_only", "clip": 0.35}


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "sequence_sum", "constant"])
@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_every_loss_equals_the_oracle(
    policy, rollouts_PG, old, known, surrogate, level, aggregation
):
    loss = {"name": surrogate, "level": level, "aggregation": aggregation, **TIGHT}
    config = run_config(loss=loss, kl={"beta": 0.0}, advantage=SHIFTED)
    assert_same(
        ours(policy, config, rollouts_PG, old),
        oracle(policy, config, rollouts_PG, old, **known),
        rtol=1e-9,
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("estimator", "importance"), [*itertools.product(KL_ESTIMATORS, (False, True)), (FULL, False)]
)
@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_every_kl_beside_every_level_equals_the_oracle(
    policy, rollouts_PG, old, known, level, estimator, importance
):
    loss = {"level": level, "aggregation": "token_mean", **TIGHT}
    config = run_config(
        loss=loss,
        kl={"beta": 0.1, "estimator": estimator, "importance": importance},
        advantage=SHIFTED,
    )
    assert_same(
        ours(policy, config, rollouts_PG, old),
        oracle(policy, config, rollouts_PG, old, **known),
        rtol=1e-9,
    )


def test_the_default_kl_of_several_steps_a_batch_is_weighted_by_importance(
    policy, rollouts_PG, old
):
    """And only then: with one step it is not."""
    for trainer, importance in (({"mu": 2}, True), ({"minibatches": 2}, True), ({}, False)):
        unset, explicit, other = (
            ours(policy, run_config(trainer=trainer, kl=kl), rollouts_PG, old)
            for kl in ({}, {"importance": importance}, {"importance": not importance})
        )
        assert_same(unset, explicit, rtol=1e-12)
        assert unset[0] != pytest.approx(other[0], rel=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_a_ratio_to_the_reference_equals_the_oracle(
    policy, rollouts_PG, old, known, surrogate, level, beta
):
    loss = {"name": surrogate, "level": level, "anchor": "reference", **TIGHT}
    config = run_config(loss=loss, kl={"beta": beta, "estimator": "k2"}, advantage=SHIFTED)
    assert_same(
        ours(policy, config, rollouts_PG, old),
        oracle(policy, config, rollouts_PG, old, **known),
        rtol=1e-9,
    )


MORE = {
    "dual clip": {"dual_clip": 1.05},
    "truncated importance sampling": {"tis_cap": 1.1, "tis_floor": 0.9},
    "entropy": {"entropy": 0.05},
    "masked truncation": {"mask_truncated": True},
    "all": {"dual_clip": 1.05, "tis_cap": 1.1, "entropy": 0.05, "mask_truncated": True},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("level", ["token", "sequence_mean"])
@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
def test_what_can_be_added_equals_the_oracle(
    policy, rollouts_PG, old, known, more, level, aggregation
):
    config = run_config(
        loss={"level": level, "aggregation": aggregation, **TIGHT, **more}, advantage=SHIFTED
    )
    found = ours(policy, config, rollouts_PG, old)
    assert_same(found, oracle(policy, config, rollouts_PG, old, **known), rtol=1e-9)
    without = ours(
        policy,
        run_config(loss={"level": level, "aggregation": aggregation, **TIGHT}, advantage=SHIFTED),
        rollouts_PG,
        old,
    )
    assert found[0] != pytest.approx(without[0], rel=1e-4)


def test_a_dead_group_that_is_left_out_changes_nothing_and_stays_in_the_denominators(
    policy, rollouts_PG, old
):
    """The second group has equal rewards."""
    config = run_config(kl={"beta": 0.0})
    advantage_PG = advantages(Rewards.of(REWARD_PG, SCORED_PG), config.advantage)
    found = []
    for skip in (False, True):
        (rows,) = collate(
            rollouts_PG,
            advantage_PG,
            SCORED_PG,
            aggregation="token_mean",
            max_length=9,
            skip_dead=skip,
        )
        assert len(rows) == 11 - 4 * skip
        updater = Updater(policy, config, steps=1)
        policy.model.zero_grad()
        total = 0.0
        for micro in micro_batches(rows, max_tokens=10_000, device=CPU, dtype=torch.float64):
            loss, _ = updater.loss(micro, None, None, Sums())
            loss.backward()
            total += loss.item()
        found.append((total, gradient(policy)))
    assert_same(found[1], found[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"kl": {"beta": 0.0}}, True),
        (
            {
                "kl": {"beta": 0.1, "placement": "reward", "estimator": "k1"},
                "advantage": {"name": "rloo"},
            },
            True,
        ),
        ({"kl": {"beta": 0.1}}, False),
        ({"kl": {"beta": 0.0}, "loss": {"entropy": 0.01}}, False),
        ({"kl": {"beta": 0.0}, "loss": {"name": "plugin:other"}}, False),
    ],
)
def test_dead_groups_are_left_out_only_where_the_advantage_alone_makes_the_loss(
    policy, settings, left_out
):
    updater = Updater(policy, run_config(**settings), steps=1, surrogate=SURROGATES["clip"])
    assert updater.only_advantages == left_out


def test_the_clip_takes_the_gradient_away_on_the_side_that_the_advantage_pushes_to():
    ratio = torch.tensor([[0.25, 0.5, 1.0, 2.0, 2.5]], dtype=torch.float64)
    config = LossConfig(clip_low=0.5, clip_high=1.0)
    expected = {
        0.5: [False, False, False, False, True],
        0.0: [False] * 5,
        -0.5: [True, False, False, False, False],
    }
    for advantage, taken in expected.items():
        logprob = ratio.log().requires_grad_()
        advantage_B1 = torch.tensor([[advantage]], dtype=torch.float64)
        assert clipped(logprob, advantage_B1, config)[0].tolist() == taken
        (gradient,) = torch.autograd.grad(
            SURROGATES["clip"](logprob, logprob, advantage_B1, config).sum(), logprob
        )
        assert [value == 0 for value in gradient[0].tolist()] == (
            [True] * 5 if advantage == 0 else taken
        )


@pytest.mark.parametrize("name", ["clip", "cispo", "sapo"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_long_completion_that_became_far_likelier_has_a_finite_gradient(name, dtype):
    """1,000 tokens with 0.1 nats each: their ratio as a whole is more than float32 holds."""
    for advantage in (1.0, 0.0, -1.0):
        logprob = torch.full((1, 1000), -1.0, dtype=dtype, requires_grad=True)
        log_ratio = sequence(logprob, torch.full_like(logprob, -1.1), torch.ones_like(logprob))
        loss = SURROGATES[name](
            log_ratio, logprob, torch.tensor([[advantage]], dtype=dtype), LossConfig()
        )
        (gradient,) = torch.autograd.grad(loss.sum(), logprob)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()
        pushed = {"clip": advantage < 0, "cispo": advantage != 0, "sapo": False}
        assert bool((gradient != 0).any()) == pushed[name]


def test_the_ratio_of_a_clip_is_exact_up_to_20_nats_and_pushes_back_with_as_much_beyond():
    for nats in (-100.0, -0.3, 0.0, 19.9, 20.0, 20.1, 100.0):
        logprob = torch.tensor([[nats]], dtype=torch.float64, requires_grad=True)
        loss = SURROGATES["clip"](
            logprob, logprob, torch.tensor([[-2.0]], dtype=torch.float64), LossConfig(clip_low=1.0)
        )
        (gradient,) = torch.autograd.grad(loss.sum(), logprob)
        assert (
            loss.item()
            == gradient.item()
            == pytest.approx(2 * math.exp(min(nats, 20.0)), rel=1e-14)
        )


def test_every_function_has_a_name_that_the_config_takes_and_every_name_a_function():
    schema = RunConfig.model_json_schema()["$defs"]

    def names(section: str, setting: str) -> set[str]:
        options = schema[section]["properties"][setting]
        return set((options.get("anyOf") or [options])[0]["enum"])

    assert names("AdvantageConfig", "name") == set(ADVANTAGES)
    assert names("LossConfig", "name") == set(SURROGATES)
    assert names("LossConfig", "level") == set(LEVELS)
    assert names("LossConfig", "aggregation") == set(AGGREGATIONS)
    assert names("KLConfig", "estimator") == {*KL_ESTIMATORS, FULL}


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_a_single_token_weighs_1_and_none_divides_by_0(aggregation):
    assert AGGREGATIONS[aggregation]([1], 9) == AGGREGATIONS[aggregation]([0], 9) == [1.0]


def test_an_adaptive_beta_moves_by_at_most_a_fifth_in_a_horizon():
    config = KLConfig(beta=0.1, target=0.02, horizon=640)
    assert adapted(0.1, 0.021, 64, config) == pytest.approx(0.1 * (1 + 0.05 * 0.1))
    assert adapted(0.1, 5.0, 64, config) == pytest.approx(0.1 * (1 + 0.2 * 0.1))
    assert adapted(0.1, 0.0, 64, config) == pytest.approx(0.1 * (1 - 0.2 * 0.1))
    assert adapted(0.1, 5.0, 64, KLConfig(beta=0.1)) == 0.1


@pytest.mark.parametrize("attempts", [64, 128, 1000])
def test_an_adaptive_beta_keeps_its_sign_with_a_short_horizon(attempts):
    """It changes by at most a fifth in a step, also where a step has many horizons."""
    config = KLConfig(beta=0.1, target=0.02, horizon=10)
    assert adapted(0.1, 0.0, attempts, config) == pytest.approx(0.08)
    assert adapted(0.1, 5.0, attempts, config) == pytest.approx(0.12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("max_tokens", [1, 25, 60, 10_000])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_micro_batch_size_does_not_change_the_gradient(
    policy, rollouts_PG, old, aggregation, max_tokens
):
    loss = {"aggregation": aggregation}
    whole = ours(policy, run_config(loss=loss), rollouts_PG, old)
    assert_same(
        ours(
            policy,
            run_config(loss=loss, trainer={"micro_batch_tokens": max_tokens}),
            rollouts_PG,
            old,
        ),
        whole,
        rtol=1e-10,
    )


@pytest.mark.parametrize("pair", [1e-3, 0.02, 0.1, 10.0])
def test_how_rows_are_put_into_trees_does_not_change_the_gradient(policy, rollouts_PG, old, pair):
    """From one tree for all to one for each row, several of them in a pass."""
    config = run_config()
    assert_same(
        ours(policy, config, rollouts_PG, old, pair=pair),
        ours(policy, config, rollouts_PG, old),
        rtol=1e-10,
    )


def test_the_order_of_rows_does_not_change_the_gradient(policy, rollouts_PG, old):
    config = run_config(trainer={"micro_batch_tokens": 40})
    updater, losses, gradients = Updater(policy, config, steps=1), [], []
    for reverse in (False, True):
        rows = sorted(
            rows_of(config, rollouts_PG), key=lambda row: row.segment.token_ids, reverse=reverse
        )
        policy.model.zero_grad()
        total = 0.0
        for micro in micro_batches(rows, max_tokens=40, device=CPU, dtype=torch.float64):
            loss, _ = updater.loss(micro, None, policy.reference_states(micro), Sums())
            loss.backward()
            total += loss.item()
        losses.append(total)
        gradients.append(gradient(policy))
    assert_same((losses[0], gradients[0]), (losses[1], gradients[1]), rtol=1e-10)


def test_a_shared_prefix_equals_a_repeated_one_whatever_the_padding(rollouts_PG, old):
    shared, repeated = tiny_policy(shared_prefix=True), tiny_policy(shared_prefix=False)
    config = run_config()
    assert_same(
        ours(shared, config, rollouts_PG, old), ours(repeated, config, rollouts_PG, old), rtol=1e-10
    )


def test_which_divergence_each_estimator_estimates_and_descends():
    """Exact expectations over four tokens. Every value estimates KL(policy | reference) or a bound of it; the gradients differ: k2 and
    k3_st descend that KL, k3 descends KL(reference | policy), k1 nothing at all."""
    logits = torch.randn(
        4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    policy, reference = (
        torch.log_softmax(logits, 0),
        torch.log_softmax(torch.tensor([2.0, 0.0, -1.0, 0.5], dtype=torch.float64), 0),
    )

    def descends(loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    reverse = (policy.exp() * (policy - reference)).sum()
    forward = (reference.exp() * (reference - policy)).sum()
    expected = {
        name: (policy.exp().detach() * estimate(policy, reference)).sum()
        for name, estimate in KL_ESTIMATORS.items()
    }
    for name in ("k1", "k3", "k3_st"):
        torch.testing.assert_close(expected[name], reverse)
    torch.testing.assert_close(descends(expected["k2"]), descends(reverse))
    torch.testing.assert_close(descends(expected["k3_st"]), descends(reverse))
    torch.testing.assert_close(descends(expected["k3"]), descends(forward))
    torch.testing.assert_close(descends(expected["k1"]), torch.zeros(4, dtype=torch.float64))


def test_the_fast_log_prob_has_the_gradient_of_log_softmax():
    logits = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    place, tokens = (
        torch.tensor([0, 1, 1, 1, 3]),
        torch.tensor([2, 0, 6, 0, 5]),
    )  # one distribution used thrice, one not at all
    assert torch.autograd.gradcheck(lambda x: token_values(x, place, tokens)[0], (logits,))
    logprob, entropy, *_ = token_values(logits, place, tokens)
    plain = torch.log_softmax(logits, dim=-1)
    torch.testing.assert_close(logprob, plain[place, tokens])
    torch.testing.assert_close(entropy, -(plain.exp() * plain).sum(-1)[place])


def test_what_counts_as_truncated_is_what_the_cap_or_the_floor_has_changed():
    config = run_config(loss={"tis_cap": 1.5, "tis_floor": 0.8}).loss
    old_BT = torch.log(torch.tensor([[0.2, 0.2, 0.2, 0.2, 0.2]], dtype=torch.float64))
    weight_BT = torch.tensor([[0.5, 0.9, 1.0, 1.4, 3.0]], dtype=torch.float64)
    generated_BT = old_BT - weight_BT.log()
    assert truncated(old_BT, generated_BT, config).tolist() == [[True, False, False, False, True]]
    torch.testing.assert_close(
        truncated_importance(old_BT, generated_BT, config), weight_BT.clamp(0.8, 1.5)
    )
