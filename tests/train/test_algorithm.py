"""Loss and gradient against a naive oracle that walks over sequences and tokens, as the paper writes it; all in float64."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import pytest
import torch

from grpo_core.config import AdvantageConfig, RunConfig
from grpo_core.train.algorithm import KL_ESTIMATORS, advantages
from grpo_core.train.batch import Row, collate, micro_batches
from grpo_core.train.logprob import token_logprobs
from grpo_core.train.policy import Policy
from grpo_core.train.rewards import rewards
from grpo_core.train.update import Sums, Updater
from grpo_core.types import Reward, Rollout, Verdict

from .arrange import CPU, random_rollouts, run_config, tiny_policy

P, G = 3, 4
REWARD_PG = torch.tensor([[0.1, 0.9, 0.4, 0.4], [0.7, 0.7, 0.7, 0.7], [0.0, 0.2, 1.0, 0.3]], dtype=torch.float64)
SCORED_PG = torch.tensor([[True] * 4, [True] * 4, [True, True, False, True]])


def rows_of(config: RunConfig, rollouts_PG: list[list[Rollout]]) -> list[Row]:
    advantage_PG = advantages(REWARD_PG, SCORED_PG, config.advantage)
    return collate(rollouts_PG, advantage_PG, SCORED_PG, aggregation=config.loss.aggregation, max_length=9)[0]


def gradient(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in policy.trainable() if p.grad is not None}


def ours(policy: Policy, config: RunConfig, rollouts_PG: list[list[Rollout]], old: dict[tuple[int, ...], list[float]] | None = None):
    """Loss and gradient as the trainer computes them."""
    updater = Updater(policy, config, steps=1)
    policy.model.zero_grad()
    total = 0.0
    for micro in micro_batches(rows_of(config, rollouts_PG), max_tokens=config.trainer.micro_batch_tokens, device=CPU, dtype=torch.float64):
        width = micro.tokens_BT.shape[1]
        old_BT = None
        if old is not None:
            padded = [old[row.rollout.token_ids] + [0.0] * (width - len(row.rollout.token_ids)) for row in micro.rows]
            old_BT = torch.tensor(padded, dtype=torch.float64)
        reference_BT = policy.reference_logprobs(micro, temperature=config.sampling.temperature) if config.kl.beta else None
        loss, _ = updater.loss(micro, old_BT, reference_BT, Sums())
        loss.backward()
        total += loss.item()
    return total, gradient(policy)


def token_logprob(policy: Policy, prompt: Sequence[int], tokens: Sequence[int], t: int, temperature: float) -> torch.Tensor:
    """One forward pass over everything before token t: no cache, no padding, no batch."""
    ids = torch.tensor([[*prompt, *tokens[:t]]])
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, -1] / temperature
    return torch.log_softmax(logits, dim=-1)[tokens[t]]


def oracle(policy: Policy, config: RunConfig, rollouts_PG: list[list[Rollout]], old: dict[tuple[int, ...], list[float]] | None):
    """The definition, one token at a time."""
    policy.model.zero_grad()
    temperature = config.sampling.temperature
    kept = []
    for p, g in itertools.product(range(P), range(G)):
        if SCORED_PG[p, g]:
            scored = [REWARD_PG[p, j].item() for j in range(G) if SCORED_PG[p, j]]
            centred = REWARD_PG[p, g].item() - statistics.fmean(scored)
            spread = 1.0 if config.advantage.name == "mean_only" else statistics.pstdev(scored) + config.advantage.eps
            kept.append((rollouts_PG[p][g], 0.0 if len(set(scored)) == 1 else centred / spread))
    if config.advantage.name == "gdpo":
        whole = statistics.pstdev([advantage for _, advantage in kept]) + config.advantage.eps
        kept = [(rollout, advantage / whole) for rollout, advantage in kept]
    if (most := config.advantage.clip) is not None:
        kept = [(rollout, max(-most, min(most, advantage))) for rollout, advantage in kept]
    total_tokens = sum(sum(r.trainable) for r, _ in kept)
    loss = torch.zeros((), dtype=torch.float64)
    for rollout, advantage in kept:
        terms = []
        for t in range(len(rollout.token_ids)):
            if not rollout.trainable[t]:
                continue
            logprob = token_logprob(policy, rollout.prompt_ids, rollout.token_ids, t, temperature)
            before = logprob.detach() if old is None else torch.tensor(old[rollout.token_ids][t], dtype=torch.float64)
            ratio = torch.exp(logprob - before)
            if config.loss.name == "clip":
                bounded = torch.clamp(ratio, 1 - config.loss.clip_low, 1 + config.loss.clip_high)
                term = -torch.min(ratio * advantage, bounded * advantage)
            else:
                term = -advantage * logprob
            if config.kl.beta:
                with torch.no_grad(), policy.model.disable_adapter():
                    reference = token_logprob(policy, rollout.prompt_ids, rollout.token_ids, t, temperature)
                d = logprob - reference
                k3, now = torch.exp(-d) + d - 1, d.detach()
                kl = {"k1": d, "k2": d * d / 2, "k3": k3, "k3_st": now * (d - now) + k3.detach()}[config.kl.estimator]
                term = term + config.kl.beta * kl
            terms.append(term)
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
            }[config.loss.aggregation]
        )
    loss.backward()
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
    found = {}
    with torch.no_grad():
        for rollout in itertools.chain.from_iterable(rollouts_PG):
            values = [
                token_logprob(policy, rollout.prompt_ids, rollout.token_ids, t, 1.0).item() + 0.4 * torch.randn((), generator=noise).item()
                for t in range(len(rollout.token_ids))
            ]
            found[rollout.token_ids] = values
    return found


@pytest.mark.parametrize("estimator", ["k3", "k3_st"])
@pytest.mark.parametrize("advantage", ["grpo", "mean_only", "gdpo"])
def test_the_default_algorithm_equals_the_oracle(policy, rollouts_PG, old, advantage, estimator):
    """Both defaults and what the literature calls GRPO."""
    config = run_config(kl={"estimator": estimator}, advantage={"name": advantage})
    for moved in (None, old):
        assert_same(ours(policy, config, rollouts_PG, moved), oracle(policy, config, rollouts_PG, moved), rtol=1e-9)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "sequence_sum", "constant"])
@pytest.mark.parametrize(
    ("loss", "estimator", "beta"), [("clip", "k1", 0.1), ("clip", "k2", 0.1), ("clip", "k3", 0.0), ("reinforce", "k3", 0.1)]
)
def test_every_loss_equals_the_oracle(policy, rollouts_PG, old, aggregation, loss, estimator, beta):
    config = run_config(
        loss={"name": loss, "aggregation": aggregation, "clip_low": 0.1, "clip_high": 0.3},
        kl={"beta": beta, "estimator": estimator},
        advantage={"name": "mean_only", "clip": 0.35},
        sampling={"temperature": 0.7},
    )
    assert_same(ours(policy, config, rollouts_PG, old), oracle(policy, config, rollouts_PG, old), rtol=1e-9)


@pytest.mark.parametrize("max_tokens", [1, 25, 60, 10_000])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_micro_batch_size_does_not_change_the_gradient(policy, rollouts_PG, old, aggregation, max_tokens):
    loss = {"aggregation": aggregation}
    whole = ours(policy, run_config(loss=loss), rollouts_PG, old)
    assert_same(ours(policy, run_config(loss=loss, trainer={"micro_batch_tokens": max_tokens}), rollouts_PG, old), whole, rtol=1e-10)


def test_the_order_of_rows_does_not_change_the_gradient(policy, rollouts_PG, old):
    config = run_config(trainer={"micro_batch_tokens": 40})
    updater, losses, gradients = Updater(policy, config, steps=1), [], []
    for reverse in (False, True):
        rows = sorted(rows_of(config, rollouts_PG), key=lambda row: row.rollout.token_ids, reverse=reverse)
        policy.model.zero_grad()
        total = 0.0
        for micro in micro_batches(rows, max_tokens=40, device=CPU, dtype=torch.float64):
            loss, _ = updater.loss(micro, None, policy.reference_logprobs(micro, temperature=1.0), Sums())
            loss.backward()
            total += loss.item()
        losses.append(total)
        gradients.append(gradient(policy))
    assert_same((losses[0], gradients[0]), (losses[1], gradients[1]), rtol=1e-10)


def test_a_shared_prefix_equals_a_repeated_one_whatever_the_padding(rollouts_PG, old):
    shared, repeated = tiny_policy(shared_prefix=True), tiny_policy(shared_prefix=False)
    config = run_config()
    assert_same(ours(shared, config, rollouts_PG, old), ours(repeated, config, rollouts_PG, old), rtol=1e-10)


def test_which_divergence_each_estimator_estimates_and_descends():
    """Exact expectations over four tokens. Every value estimates KL(policy | reference) or a bound of it; the gradients differ: k2 and
    k3_st descend that KL, k3 descends KL(reference | policy), k1 nothing at all."""
    logits = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    policy, reference = torch.log_softmax(logits, 0), torch.log_softmax(torch.tensor([2.0, 0.0, -1.0, 0.5], dtype=torch.float64), 0)

    def descends(loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    reverse = (policy.exp() * (policy - reference)).sum()
    forward = (reference.exp() * (reference - policy)).sum()
    expected = {name: (policy.exp().detach() * estimate(policy, reference)).sum() for name, estimate in KL_ESTIMATORS.items()}
    for name in ("k1", "k3", "k3_st"):
        torch.testing.assert_close(expected[name], reverse)
    torch.testing.assert_close(descends(expected["k2"]), descends(reverse))
    torch.testing.assert_close(descends(expected["k3_st"]), descends(reverse))
    torch.testing.assert_close(descends(expected["k3"]), descends(forward))
    torch.testing.assert_close(descends(expected["k1"]), torch.zeros(4, dtype=torch.float64))


def test_the_fast_log_prob_has_the_gradient_of_log_softmax():
    logits = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    place, tokens = torch.tensor([0, 1, 1, 1, 3]), torch.tensor([2, 0, 6, 0, 5])  # one distribution used thrice, one not at all
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, place, tokens)[0], (logits,))
    logprob, entropy = token_logprobs(logits, place, tokens)
    plain = torch.log_softmax(logits, dim=-1)
    torch.testing.assert_close(logprob, plain[place, tokens])
    torch.testing.assert_close(entropy, -(plain.exp() * plain).sum(-1)[place])


def test_equal_rewards_give_exactly_no_advantage():
    reward = torch.full((1, 8), 0.7, dtype=torch.float32)
    assert advantages(reward, torch.ones(1, 8, dtype=torch.bool), AdvantageConfig(name="grpo")).abs().max() == 0


def test_a_large_offset_of_the_rewards_changes_nothing():
    small = torch.tensor([[0.0, 0.25, 0.5, 1.0]], dtype=torch.float32)
    scored = torch.ones(1, 4, dtype=torch.bool)
    torch.testing.assert_close(
        advantages(small + 1000, scored, AdvantageConfig(name="grpo")),
        advantages(small, scored, AdvantageConfig(name="grpo")),
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.parametrize("scored", [[False] * 4, [True, False, False, False]])
def test_a_group_with_fewer_than_two_scored_attempts_has_no_advantage(scored):
    reward = torch.tensor([[1.0, 0.0, 0.5, 0.2]])
    assert advantages(reward, torch.tensor([scored]), AdvantageConfig(name="grpo")).abs().max() == 0


def test_an_unscored_attempt_leaves_mean_and_spread():
    reward = torch.tensor([[1.0, 0.0, 123.0]])
    scored = torch.tensor([[True, True, False]])
    expected = torch.tensor([[0.5, -0.5, 0.0]], dtype=torch.float64) / (0.5 + 1e-6)
    torch.testing.assert_close(advantages(reward, scored, AdvantageConfig(name="grpo")), expected, rtol=1e-12, atol=0)


def test_ddof_1_divides_by_one_less():
    reward = torch.tensor([[1.0, 0.0]])
    found = advantages(reward, torch.ones(1, 2, dtype=torch.bool), AdvantageConfig(name="grpo", ddof=1, eps=0.0))
    torch.testing.assert_close(found, torch.tensor([[1.0, -1.0]], dtype=torch.float64) * 0.5 / math.sqrt(0.5))


def test_gdpo_normalises_each_part_by_itself_and_keeps_the_weights():
    """Worked by hand: two groups of two; in the first only the small part differs, in the second only the large one."""
    value_KPG = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 3.0]]])  # K = 2 parts, P = 2, G = 2
    weight_KP = torch.tensor([[0.2, 0.2], [0.6, 0.6]])
    scored = torch.ones(2, 2, dtype=torch.bool)
    found = advantages(torch.zeros(2, 2), scored, AdvantageConfig(name="gdpo", eps=0.0), parts=(value_KPG, weight_KP))
    raw = torch.tensor([[0.2, -0.2], [-0.6, 0.6]], dtype=torch.float64)  # z-scores of two different values are 1 and -1
    torch.testing.assert_close(found, raw / math.sqrt((0.2**2 + 0.6**2) / 2), rtol=1e-6, atol=0)


def test_gdpo_with_one_part_is_grpo_up_to_the_scale_of_the_batch():
    scored = SCORED_PG
    found = advantages(REWARD_PG, scored, AdvantageConfig(name="gdpo"))
    plain = advantages(REWARD_PG, scored, AdvantageConfig(name="grpo"))
    torch.testing.assert_close(found, plain / (plain[scored].std(correction=0) + 1e-6))
    assert found[scored].std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_gdpo_gives_nothing_to_equal_rewards_and_unscored_attempts():
    value_KPG = torch.tensor([[[0.7, 0.7, 0.7], [1.0, 0.0, 9.0]]])
    scored = torch.tensor([[True, True, True], [True, True, False]])
    found = advantages(value_KPG[0], scored, AdvantageConfig(name="gdpo"), parts=(value_KPG, torch.ones(1, 2)))
    assert found[0].abs().max() == 0
    assert found[1, 2] == 0
    assert found[1, 0] == -found[1, 1] > 0
    same = advantages(torch.full((2, 3), 0.5), scored, AdvantageConfig(name="gdpo", eps=0.0))
    assert same.abs().max() == 0
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert advantages(value_KPG[0], nothing, AdvantageConfig(name="gdpo"), parts=(value_KPG, torch.ones(1, 2))).abs().max() == 0


def test_parts_of_verdicts_with_different_parts_are_padded_with_zeros():
    both = Verdict({"a": Reward(0.5, 0.2), "b": Reward(1.0, 0.6)})
    one = Verdict({"c": Reward(2.0, 1.5)})
    found = rewards([[both, Verdict.failed("broken")], [one, one]])
    assert found.total_PG.tolist() == [[0.7, 0.0], [3.0, 3.0]]
    assert found.scored_PG.tolist() == [[True, False], [True, True]]
    assert found.part_KPG.tolist() == [[[0.5, 0.0], [2.0, 2.0]], [[1.0, 0.0], [0.0, 0.0]]]
    assert found.weight_KP.tolist() == [[0.2, 1.5], [0.6, 0.0]]
