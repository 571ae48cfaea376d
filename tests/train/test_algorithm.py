"""Loss and gradient against a naive oracle that walks over sequences and tokens, as the paper writes it; all in float64."""

import itertools
import math
import statistics
from typing import Any

import pytest
import torch

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import KLConfig, LossConfig
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.compute.values import token_values
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.types import Rollout
from grpo_core.train.algorithm import losses
from grpo_core.train.algorithm.advantages import ADVANTAGES, advantages
from grpo_core.train.algorithm.losses import AGGREGATIONS, FULL, KL_ESTIMATORS, LEVELS, SURROGATES
from grpo_core.train.algorithm.rewards import Rewards
from grpo_core.train.update.sums import Sums
from grpo_core.train.update.updater import Updater

from .arrange import CPU, collate, micro_batches, random_rollouts, run_config, tiny_policy

P, G = 3, 4
REWARD_PG = torch.tensor(
    [[0.1, 0.9, 0.4, 0.4], [0.7, 0.7, 0.7, 0.7], [0.0, 0.2, 1.0, 0.3]], dtype=torch.float64
)
SCORED_PG = torch.tensor([[True] * 4, [True] * 4, [True, True, False, True]])


def rows_of(config: RunConfig, rollouts_PG: list[list[Rollout]], **more: bool) -> list[Row]:
    advantage_PG = advantages(Rewards.of(REWARD_PG, SCORED_PG), config.advantage)
    form, mask = config.loss.aggregation, config.loss.mask_truncated
    (rows,) = collate(
        *(rollouts_PG, advantage_PG, SCORED_PG),
        **{"aggregation": form, "max_length": 9, "mask_truncated": mask, **more},
    )
    return rows


def gradient(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in policy.trainable() if p.grad is not None}


def ours(
    policy: Policy,
    config: RunConfig,
    rollouts_PG: list[list[Rollout]],
    old: dict[tuple[int, ...], list[float]] | None = None,
    *,
    rows: list[Row] | None = None,
    most: int | None = None,
    pair: float = 0.0,
):
    """Return loss and gradient as the trainer computes them.

    rows: others than those of the rollouts; most: tokens of a pass; pair: what makes trees small (see `micro_batches`).
    """
    updater = Updater(policy, config, steps=1)
    policy.model.zero_grad()
    total = 0.0
    rows = rows or rows_of(config, rollouts_PG)
    most = most or policy.tuning.micro_batch_tokens
    for micro in micro_batches(rows, max_tokens=most, device=CPU, dtype=torch.float64, pair=pair):
        old_BT = None
        if old is not None:
            before = [
                torch.tensor(old[row.segment.token_ids], dtype=torch.float64) for row in micro.rows
            ]
            old_BT = torch.zeros(micro.tokens_BT.shape, dtype=torch.float64)
            for old_T, values in zip(old_BT, before, strict=True):
                old_T[: len(values)] = values
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
        logits_TV = policy.model(input_ids=ids, use_cache=False).logits[0]
        start = len(rollout.prompt_ids) - 1
        log_TV = torch.log_softmax(logits_TV[start:-1] / temperature, dim=-1)
        chosen = log_TV[range(len(rollout.token_ids)), rollout.token_ids]
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
            spread = statistics.pstdev(scored) + config.advantage.eps
            spread = 1.0 if config.advantage.name == "mean_only" else spread
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
        before = logprobs.detach()
        if old is not None:
            before = torch.tensor(old[rollout.token_ids], dtype=torch.float64)
        anchors = before if loss_of.anchor == "old" else references
        moved = (logprobs - anchors)[places].sum()
        terms = []
        for t in places:
            logprob = logprobs[t]
            log_ratio = {
                "token": logprob - anchors[t],
                "sequence_mean": moved / len(places),
                "sequence": moved,
            }
            ratio = torch.exp(log_ratio[loss_of.level])
            bounded = torch.clamp(ratio, 1 - loss_of.clip_low, 1 + loss_of.clip_high)
            if loss_of.name == "clip":
                term = -torch.min(ratio * advantage, bounded * advantage)
                if loss_of.dual_clip is not None and advantage < 0:
                    most = torch.tensor(-loss_of.dual_clip * advantage).double()
                    term = torch.min(term, most)
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
        share = {
            "sequence_mean": summed / len(terms) / len(kept),
            "token_mean": summed / total_tokens,
            "sequence_sum": summed / len(kept),
            "constant": summed / (len(kept) * 9),
        }
        loss = loss + share[loss_of.aggregation]
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


@pytest.fixture
def assert_equals_oracle(policy, rollouts_PG, old, known):
    """Compare loss and gradient for some settings, after the policy has moved or before."""

    def check(*, moved: bool = True, **settings: Any):
        config, before = run_config(**settings), old if moved else None
        expected = oracle(policy, config, rollouts_PG, before, **known)
        found = ours(policy, config, rollouts_PG, before)
        assert_same(found, expected, rtol=1e-9)
        return found

    return check


@pytest.mark.parametrize("estimator", ["k3", "k3_st"])
@pytest.mark.parametrize("advantage", ["grpo", "mean_only", "gdpo"])
@pytest.mark.parametrize("moved", [False, True])
def test_the_default_algorithm_equals_the_oracle(assert_equals_oracle, moved, advantage, estimator):
    """Both defaults and what the literature calls GRPO."""
    assert_equals_oracle(moved=moved, kl={"estimator": estimator}, advantage={"name": advantage})


def test_the_temperature_is_that_of_every_log_prob(policy, rollouts_PG, old):
    config = run_config(sampling={"temperature": 0.7})
    expected = oracle(policy, config, rollouts_PG, old)
    assert_same(ours(policy, config, rollouts_PG, old), expected, rtol=1e-9)


LEVEL_NAMES = ["token", "sequence_mean", "sequence"]
TIGHT = {"clip_low": 0.1, "clip_high": 0.3}
SHIFTED = {"name": "mean_only", "clip": 0.35}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "sequence_sum", "constant"])
@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_every_loss_equals_the_oracle(assert_equals_oracle, surrogate, level, aggregation):
    loss = {"name": surrogate, "level": level, "aggregation": aggregation, **TIGHT}
    assert_equals_oracle(loss=loss, kl={"beta": 0.0}, advantage=SHIFTED)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("estimator", "importance"), [*itertools.product(KL_ESTIMATORS, (False, True)), (FULL, False)]
)
@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_every_kl_beside_every_level_equals_the_oracle(
    assert_equals_oracle, level, estimator, importance
):
    loss = {"level": level, "aggregation": "token_mean", **TIGHT}
    kl = {"beta": 0.1, "estimator": estimator, "importance": importance}
    assert_equals_oracle(loss=loss, kl=kl, advantage=SHIFTED)


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


@pytest.mark.sampled(10)
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_a_ratio_to_the_reference_equals_the_oracle(assert_equals_oracle, surrogate, level, beta):
    loss = {"name": surrogate, "level": level, "anchor": "reference", **TIGHT}
    assert_equals_oracle(loss=loss, kl={"beta": beta, "estimator": "k2"}, advantage=SHIFTED)


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
def test_what_can_be_added_equals_the_oracle(assert_equals_oracle, more, level, aggregation):
    loss = {"level": level, "aggregation": aggregation, **TIGHT}
    found = assert_equals_oracle(loss={**loss, **more}, advantage=SHIFTED)
    without = assert_equals_oracle(loss=loss, advantage=SHIFTED)
    assert found[0] != pytest.approx(without[0], rel=1e-4)


def test_a_dead_group_that_is_left_out_changes_nothing_and_stays_in_the_denominators(
    policy, rollouts_PG
):
    """The second group has equal rewards."""
    config = run_config(kl={"beta": 0.0}, loss={"aggregation": "token_mean"})
    rows = rows_of(config, rollouts_PG, skip_dead=True)
    whole = ours(policy, config, rollouts_PG)
    assert (len(rows), len(rows_of(config, rollouts_PG))) == (7, 11)
    assert_same(ours(policy, config, rollouts_PG, rows=rows), whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"kl": {"beta": 0.0}}, True),
        ({"kl": {"placement": "reward", "estimator": "k1"}, "advantage": {"name": "rloo"}}, True),
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
        assert losses.clipped(logprob, advantage_B1, config)[0].tolist() == taken
        loss = SURROGATES["clip"](logprob, logprob, advantage_B1, config).sum()
        (gradient,) = torch.autograd.grad(loss, logprob)
        without = [True] * 5 if advantage == 0 else taken
        assert [value == 0 for value in gradient[0].tolist()] == without


@pytest.mark.parametrize("name", ["clip", "cispo", "sapo"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_long_completion_that_became_far_likelier_has_a_finite_gradient(name, dtype):
    """1,000 tokens with 0.1 nats each: their ratio as a whole is more than float32 holds."""
    for advantage in (1.0, 0.0, -1.0):
        logprob = torch.full((1, 1000), -1.0, dtype=dtype, requires_grad=True)
        log_ratio = losses.sequence(
            logprob, torch.full_like(logprob, -1.1), torch.ones_like(logprob)
        )
        advantage_B1 = torch.tensor([[advantage]], dtype=dtype)
        loss = SURROGATES[name](log_ratio, logprob, advantage_B1, LossConfig())
        (gradient,) = torch.autograd.grad(loss.sum(), logprob)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()
        pushed = {"clip": advantage < 0, "cispo": advantage != 0, "sapo": False}
        assert bool((gradient != 0).any()) == pushed[name]


def test_the_ratio_of_a_clip_is_exact_up_to_20_nats_and_pushes_back_with_as_much_beyond():
    for nats in (-100.0, -0.3, 0.0, 19.9, 20.0, 20.1, 100.0):
        logprob = torch.tensor([[nats]], dtype=torch.float64, requires_grad=True)
        advantage = torch.tensor([[-2.0]], dtype=torch.float64)
        loss = SURROGATES["clip"](logprob, logprob, advantage, LossConfig(clip_low=1.0))
        (gradient,) = torch.autograd.grad(loss.sum(), logprob)
        expected = pytest.approx(2 * math.exp(min(nats, 20.0)), rel=1e-14)
        assert loss.item() == gradient.item() == expected


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


def test_an_adaptive_beta_moves_by_at_most_a_fifth_in_a_horizon():
    config = KLConfig(beta=0.1, target=0.02, horizon=640)
    assert losses.adapted(0.1, 0.021, 64, config) == pytest.approx(0.1 * (1 + 0.05 * 0.1))
    assert losses.adapted(0.1, 5.0, 64, config) == pytest.approx(0.1 * (1 + 0.2 * 0.1))
    assert losses.adapted(0.1, 0.0, 64, config) == pytest.approx(0.1 * (1 - 0.2 * 0.1))
    assert losses.adapted(0.1, 5.0, 64, KLConfig(beta=0.1)) == 0.1
    short = KLConfig(beta=0.1, target=0.02, horizon=10)
    for attempts in (64, 128, 1000):  # a step has many horizons
        assert losses.adapted(0.1, 0.0, attempts, short) == pytest.approx(0.08)
        assert losses.adapted(0.1, 5.0, attempts, short) == pytest.approx(0.12)


@pytest.mark.parametrize(
    "how",
    [{"most": 1}, {"most": 60}, {"pair": 0.02}, {"pair": 0.1}, {"pair": 10.0}],
    ids=["a row a pass", "few rows a pass", "few trees", "many trees", "a tree for each row"],
)
def test_how_rows_are_put_into_passes_and_trees_does_not_change_the_gradient(
    policy, rollouts_PG, old, how
):
    config = run_config()
    expected = ours(policy, config, rollouts_PG, old)
    assert_same(ours(policy, config, rollouts_PG, old, **how), expected, rtol=1e-10)


def test_the_order_of_rows_does_not_change_the_gradient(policy, rollouts_PG):
    config = run_config()
    rows = sorted(rows_of(config, rollouts_PG), key=lambda row: row.segment.token_ids)
    first, last = (
        ours(policy, config, rollouts_PG, rows=some, most=40) for some in (rows, rows[::-1])
    )
    assert_same(first, last, rtol=1e-10)


def test_a_shared_prefix_equals_a_repeated_one_whatever_the_padding(rollouts_PG, old):
    shared, repeated = (
        ours(tiny_policy(shared_prefix=shared), run_config(), rollouts_PG, old)
        for shared in (True, False)
    )
    assert_same(shared, repeated, rtol=1e-10)


def test_the_fast_log_prob_has_the_gradient_of_log_softmax():
    logits = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    place = torch.tensor([0, 1, 1, 1, 3])  # one distribution used thrice, one not at all
    tokens = torch.tensor([2, 0, 6, 0, 5])
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
    assert losses.truncated(old_BT, generated_BT, config).tolist() == [
        [True, False, False, False, True]
    ]
    torch.testing.assert_close(
        losses.truncated_importance(old_BT, generated_BT, config), weight_BT.clamp(0.8, 1.5)
    )
