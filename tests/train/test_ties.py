"""Rewards that are equal up to rounding are ties: no advantage, refilled, and shown as such."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_core.config.settings import AdvantageConfig
from grpo_core.protocol.ties import (
    TOLERANCE,
    all_same,
    difference,
    exceeds,
    reaches,
    same_reward,
    settled,
)
from grpo_core.protocol.types import Group, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.train.algorithm import ties as tensors
from grpo_core.train.algorithm.advantages import ADVANTAGES, advantages, pods, whiten
from grpo_core.train.algorithm.refill import Refill
from grpo_core.train.algorithm.rewards import Rewards, rewards
from grpo_core.train.run.metrics import group_metrics

from .test_stopping import evaluated, stopping
from .test_turns import judged

SUM = 0.1 + 0.2
"""0.3 with another last bit."""
K = {"maxk": 3, "passk": 3, "pkpo": 3}
NUMBERS = st.floats(-100, 100).map(lambda value: round(value, 3))


def of(name: str, *groups: Sequence[float], **more: object) -> list[list[float]]:
    """The advantages of groups of attempts of one part and one turn."""
    config = AdvantageConfig(**{"name": name, "k": K.get(name), **more})  # type: ignore[arg-type]
    advantage = advantages(Rewards.of(torch.tensor(groups, dtype=torch.float64)), config)
    result: list[list[float]] = advantage.flatten(1).tolist()
    return result


def shaken(value: float, bits: Sequence[int]) -> list[float]:
    """A reward again and again, with other last bits."""
    values = []
    for steps in bits:
        other = value
        for _ in range(abs(steps)):
            other = math.nextafter(other, math.copysign(math.inf, steps))
        values.append(other)
    return values


SHAKEN = st.builds(shaken, NUMBERS, st.lists(st.integers(-3, 3), min_size=4, max_size=8))


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("eps", [1e-6, 0.0])
class TestEveryEstimator:
    @settings(max_examples=20, deadline=None)
    @given(group=SHAKEN)
    @example(group=[SUM, 0.3, 0.3, SUM])
    @example(group=[1.0, 1 - 2**-53, 1.0, 1.0])
    @example(group=[-SUM, -0.3, -0.3, -0.3])
    def test_gives_exactly_nothing_to_any_reward_with_other_last_bits(
        self, name: str, eps: float, group: list[float]
    ) -> None:
        assert of(name, group, eps=eps) == [[0.0] * len(group)]

    def test_tells_apart_what_differs_by_more(self, name: str, eps: float) -> None:
        assert any(of(name, [0.0] * (4 if name in K else 3) + [2e-9], eps=eps)[0])


@pytest.mark.parametrize("name", sorted(set(ADVANTAGES) - {"passk"}))
def test_a_tie_of_large_rewards_is_relative_to_them(name: str) -> None:
    assert of(name, [1e6, 1e6 + 5e-4, 1e6, 1e6]) == [[0.0] * 4]
    assert any(of(name, [1e6, 1e6 + 5e-3, 1e6, 1e6])[0])


@settings(max_examples=100, deadline=None)
@given(group=st.lists(NUMBERS, min_size=2, max_size=8, unique=True))
def test_true_differences_keep_their_bits(group: list[float]) -> None:
    reward_G = torch.tensor(group, dtype=torch.float64)
    centred_G = reward_G - reward_G.sum() / len(group)
    spread = ((centred_G**2).sum() / len(group)).sqrt()
    assert of("mean_only", group) == [centred_G.tolist()]
    assert of("grpo", group, eps=0.0) == [(centred_G / spread).tolist()]
    assert settled(group) == group


@pytest.mark.parametrize("name", ["best_minus_second", "maxk", "pkpo"])
def test_what_compares_pairs_takes_a_tie_within_a_group_for_one(name: str) -> None:
    """The best of 0.3 and 0.1 + 0.2 leads by nothing, and equal attempts get equal advantages."""
    group = [SUM, 0.3, 0.0, -0.5, 0.1]
    assert of(name, group) == of(name, [0.3, 0.3, 0.0, -0.5, 0.1])
    assert of("best_minus_second", group) == [[0.0] * 5]


def test_a_tie_within_a_group_moves_no_advantage_by_more_than_rounding() -> None:
    for name in ADVANTAGES:
        found, expected = of(name, [SUM, 0.3, 1.0, 0.0]), of(name, [0.3, 0.3, 1.0, 0.0])
        assert found[0] == pytest.approx(expected[0], abs=1e-12)


def test_pkpo_gives_exactly_nothing_where_all_subsets_have_the_same_best() -> None:
    """Its means over subsets alone left 8e-16, which counted as a signal."""
    assert of("pkpo", [*[0.0] * 5, *[0.7] * 7], k=7) == [[0.0] * 12]
    assert max(of("pkpo", [*[0.0] * 6, *[0.7] * 6], k=7)[0]) > 1e-3


def groups_of(*groups: Sequence[float | Sequence[float]]) -> list[Group[None]]:
    """Groups of attempts, by their reward, or by those of parts "a" and "b" of weight 1."""
    return [
        Group(
            Task(TaskKey("letters", "train", number), "?", None),
            [Rollout.of("x")] * len(group),
            [
                Verdict({"reward": Reward(one)})
                if isinstance(one, float)
                else Verdict({name: Reward(value) for name, value in zip("ab", one, strict=True)})
                for one in group
            ],
        )
        for number, group in enumerate(groups)
    ]


@pytest.mark.parametrize("eps", [1e-6, 0.0])
def test_gdpo_takes_ties_of_each_part_and_of_parts_that_cancel(eps: float) -> None:
    config = AdvantageConfig(name="gdpo", eps=eps)
    tie = [(0.3, 1.0), (SUM, 1.0), (0.3, 1 - 2**-53)]
    opposite = [(1.0, 0.0), (0.0, 1.0), (0.3, 0.7)]
    for pairs in (tie, opposite):
        assert not advantages(rewards(groups_of(pairs)), config).any()
    live = [(1.0, 0.0), (0.0, 0.0), (SUM, 0.0)]
    both = advantages(rewards(groups_of(tie, live)), config)
    assert not both[0].any()
    assert both[1].abs().min() > 0.1


def test_returns_of_turns_tie_whatever_order_they_are_summed_in() -> None:
    group = judged((0.1, 0.2, 0.0), (0.3, 0.0, 0.0), (0.0, 0.1, 0.2))
    advantage = advantages(rewards([group]), AdvantageConfig(name="turns"))
    assert advantage[0, :, 0].tolist() == [0.0, 0.0, 0.0]
    assert advantage[0, :, 1].abs().max() > 0.1


def test_whitening_leaves_a_tie_without_a_signal() -> None:
    group = [0.1, 0.4, 0.9]
    found = of("grpo", [SUM, 0.3, 0.3], group, whiten=True)
    assert found[0] == [0.0] * 3
    assert all(found[1])


def test_whitening_still_subtracts_a_mean_that_is_not_rounding() -> None:
    advantage = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    assert (whiten(advantage, torch.ones(2, 2, dtype=torch.bool))[0] < -0.5).all()


def test_a_mean_that_is_0_but_for_rounding_divides_nothing() -> None:
    """-0.3 and 0.1 + 0.2 have the mean 3e-17; maxrl would return 1e16."""
    assert of("maxrl", [-0.3, SUM, 0.0, 0.0]) == of("maxrl", [-0.3, 0.3, 0.0, 0.0]) == [[0.0] * 4]


def test_pods_chooses_among_a_tie_by_place() -> None:
    def kept(*reward: float) -> list[bool]:
        chosen: list[bool] = pods(Rewards.of(torch.tensor([reward])), keep=2)[0].tolist()
        return chosen

    assert kept(SUM, 0.3, 0.3, 1.0) == kept(0.3, 0.3, 0.3, 1.0)


def test_groups_that_tie_are_refilled() -> None:
    refill = Refill(wanted=2, refills=3)
    groups = groups_of([SUM, 0.3, 0.3], [0.0, 1.0, 0.0])
    refill.add(advantages(rewards(groups), AdvantageConfig(name="grpo")))
    assert refill.missing == 1
    assert refill.chosen() == [0, 1]


def test_metrics_say_that_groups_tie() -> None:
    metrics = group_metrics(groups_of([SUM, 0.3], [0.3, 0.3]), {"letters": {"reward": 1.0}})
    assert (metrics["groups/mixed"], metrics["reward/std"]) == (0.0, 0.0)
    metrics = group_metrics(groups_of([SUM, 0.3], [0.3, 0.4]), {"letters": {"reward": 1.0}})
    assert metrics["groups/mixed"] == 0.5
    assert metrics["reward/std"] > 0.01


def test_a_part_that_ties_is_constant() -> None:
    groups = groups_of([(SUM, 0.0), (0.3, 0.3)])
    metrics = group_metrics(groups, {"letters": {"a": 1.0, "b": 1.0}})
    assert metrics["reward/constant_share"] == pytest.approx(2 / 3)


@settings(max_examples=300, deadline=None)
@given(
    value=NUMBERS,
    steps=st.sampled_from([-3.0, -1.001, -0.999, -0.5, 0.0, 0.5, 0.999, 1.001, 3.0]),
    scored=st.booleans(),
)
def test_tensors_tie_exactly_where_numbers_do(value: float, steps: float, scored: bool) -> None:
    other = value + steps * TOLERANCE * max(1.0, abs(value))
    reward = torch.tensor([[value, other, 1e9]], dtype=torch.float64)
    mask = torch.tensor([[True, True, scored]])
    counted = [value, other, *([1e9] if scored else [])]
    assert tensors.tied(reward, mask).item() == all_same(counted)
    assert tensors.settled(reward[0]).tolist() == settled([value, other, 1e9])


@settings(max_examples=300, deadline=None)
@given(values=st.lists(st.one_of(NUMBERS, st.sampled_from([SUM, 0.3, 1.0, 1 - 2**-53]))))
def test_settled_rewards_are_equal_or_differ_and_differ_from_their_own_by_rounding(
    values: list[float],
) -> None:
    found = settled(values)
    assert all(same_reward(value, other) for value, other in zip(values, found, strict=True))
    assert settled(found) == found
    for i, value in enumerate(values):
        for j, other in enumerate(values):
            if value < other:
                assert found[i] <= found[j]
    assert (len(set(found)) <= 1) == all_same(values)


def test_comparisons_of_two_rewards_agree() -> None:
    assert (exceeds(SUM, 0.3), exceeds(0.4, 0.3), exceeds(0.3, 0.4)) == (False, True, False)
    assert (difference(0.3, SUM), difference(0.3, 0.4)) == (0.0, 0.4 - 0.3)
    assert reaches(sum([0.1] * 10))
    assert all_same([])


def test_a_run_stops_at_a_reward_that_is_reached_but_for_rounding() -> None:
    rule = stopping(stop={"reward": 1.0}, eval={"every": 1})
    assert "stop.reward=1" in (rule.look(evaluated(3, sum([0.1] * 10))) or "")


def test_an_evaluation_that_is_better_by_rounding_is_no_better() -> None:
    rule = stopping(stop={"patience": 1}, eval={"every": 1})
    assert rule.look(evaluated(1, 0.3)) is None
    assert "no better than 0.300 after step 1" in (rule.look(evaluated(2, SUM)) or "")
