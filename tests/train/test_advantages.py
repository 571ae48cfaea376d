"""Advantage estimators against definitions in plain Python: loops over attempts and over all subsets."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import comb

import pytest
import torch

from grpo_core.config.overrides import build_config
from grpo_core.config.settings import AdvantageConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Group, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.train.algorithm.advantages import ADVANTAGES, advantages, pods
from grpo_core.train.algorithm.rewards import Rewards, overlong, rewards

EPS = 1e-6


def group(*verdicts: Verdict) -> Group[None]:
    """A group of one-turn attempts."""
    task = Task(TaskKey("letters", "train", 0), "?", None)
    return Group(task, [Rollout.of("x")] * len(verdicts), verdicts)


def computed(
    reward_PG: torch.Tensor, scored_PG: torch.Tensor | None = None, **settings: object
) -> torch.Tensor:
    return advantages(Rewards.of(reward_PG, scored_PG), AdvantageConfig(**settings))


def of(
    name: str, reward: Sequence[float], *, scored: Sequence[bool] | None = None, **more: object
) -> list[float]:
    """Advantages of one group."""
    scored_PG = torch.tensor([scored or [True] * len(reward)])
    reward_PG = torch.tensor([reward], dtype=torch.float64)
    return computed(reward_PG, scored_PG, name=name, **more)[0].tolist()


# The definitions


def grpo(reward: Sequence[float], k: int) -> list[float]:
    return [(r - statistics.fmean(reward)) / (statistics.pstdev(reward) + EPS) for r in reward]


def mean_only(reward: Sequence[float], k: int) -> list[float]:
    return [r - statistics.fmean(reward) for r in reward]


def rloo(reward: Sequence[float], k: int) -> list[float]:
    others = [[*reward[:i], *reward[i + 1 :]] for i in range(len(reward))]
    return [r - statistics.fmean(rest) for r, rest in zip(reward, others, strict=True)]


def maxrl(reward: Sequence[float], k: int) -> list[float]:
    mean = statistics.fmean(reward)
    return [(r - mean) / mean if mean else 0.0 for r in reward]


def best_minus_second(reward: Sequence[float], k: int) -> list[float]:
    best, second = sorted(reward, reverse=True)[:2]
    spread = statistics.stdev(reward) + EPS
    return [(best - second) / spread if r == best else 0.0 for r in reward]


def maxk(reward: Sequence[float], k: int) -> list[float]:
    subsets = list(itertools.combinations(range(len(reward)), k))
    best = {subset: max(reward[i] for i in subset) for subset in subsets}
    mean, spread = statistics.fmean(best.values()), statistics.pstdev(best.values())
    own = [statistics.fmean([best[s] for s in subsets if i in s]) for i in range(len(reward))]
    return [(value - mean) / (spread + EPS) for value in own]


def passk(reward: Sequence[float], k: int) -> list[float]:
    """The analytic form, from the counts."""
    N, c = len(reward), sum(r > 0 for r in reward)
    R = 1 - comb(N - c, k) / comb(N, k)
    s = math.sqrt(R * (1 - R)) + EPS
    wrong = 1 - R - comb(N - c - 1, k - 1) / comb(N - 1, k - 1) if c < N else 0.0
    return [(1 - R) / s if r > 0 else wrong / s for r in reward]


def pkpo(reward: Sequence[float], k: int) -> list[float]:
    N = len(reward)
    added = [0.0] * N
    for subset in itertools.combinations(range(N), k):
        for i in subset:
            added[i] += max(reward[j] for j in subset) - max(reward[j] for j in subset if j != i)
    return [N * value / comb(N, k) for value in added]


DEFINITIONS: dict[str, Callable[[Sequence[float], int], list[float]]] = {
    function.__name__: function
    for function in (grpo, mean_only, rloo, maxrl, best_minus_second, maxk, passk, pkpo)
}
WITH_K = ("maxk", "passk", "pkpo")


def groups(count: int) -> list[list[float]]:
    """Of 2 to 9 attempts: continuous, with ties, of 0 and 1, and with a large offset."""
    rng = random.Random(0)
    values: Sequence[Callable[[], float]] = (
        rng.random,
        lambda: rng.choice([0.0, 0.25, 1.0]),
        lambda: float(rng.random() < 0.3),
        lambda: 1000 + rng.random(),
    )
    found = [[values[n % 4]() for _ in range(rng.randint(2, 9))] for n in range(count)]
    return [reward for reward in found if len(set(reward)) > 1]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_estimator_equals_its_definition(name):
    for reward in groups(80):
        if name == "passk":
            reward = [float(r > 0.5) for r in reward]
            if len(set(reward)) == 1:
                continue
        for k in range(2 if name == "pkpo" else 1, len(reward)) if name in WITH_K else [None]:
            expected = DEFINITIONS[name](reward, k or 1)
            assert of(name, reward, k=k) == pytest.approx(expected, rel=1e-9, abs=1e-9), (reward, k)


def test_every_estimator_of_totals_has_a_definition_here():
    """gdpo is computed by hand below; test_turns.py has the definition of turns."""
    assert set(ADVANTAGES) == {*DEFINITIONS, "gdpo", "turns"}


@pytest.mark.parametrize(
    ("c", "right", "wrong"),
    [(1, 1.0, -0.143), (2, 0.522, -0.174), (3, 0.277, -0.166), (4, 0.120, -0.120), (5, 0.0, 0.0)],
)
def test_pass_at_4_of_8_has_the_published_values(c, right, wrong):
    found = of("passk", [1.0] * c + [0.0] * (8 - c), k=4)
    assert found == pytest.approx([right] * c + [wrong] * (8 - c), abs=5e-4)


def test_pass_at_k_counts_what_the_environment_calls_passed_and_not_the_reward():
    attempts = ((0.9, False), (0.2, True), (0.4, False))
    verdicts = [Verdict({"r": Reward(value)}, passed=passed) for value, passed in attempts]
    found = advantages(rewards([group(*verdicts)]), AdvantageConfig(name="passk", k=2))[0].tolist()
    assert found == pytest.approx(of("passk", [0.0, 1.0, 0.0], k=2))


# What holds for all of them


@pytest.mark.parametrize("name", [*DEFINITIONS, "gdpo"])
class TestEvery:
    def k(self, name: str) -> int | None:
        return 2 if name in WITH_K else None

    def test_equal_rewards_give_exactly_no_advantage(self, name):
        """Ten times 0.1 do not have the mean 0.1, and in float32 eight times 0.7 do not have the mean 0.7."""
        for size, value in itertools.product(range(2, 12), (0.1, 0.7, 1 / 3)):
            for dtype in (torch.float32, torch.float64):
                reward = torch.full((1, size + 1), value, dtype=dtype)
                reward[0, 1] = 5.0
                scored = torch.tensor([[True, False] + [True] * (size - 1)])
                found = computed(reward, scored, name=name, k=self.k(name))
                assert found.dtype == torch.float64
                assert found.abs().max() == 0

    def test_an_offset_of_the_rewards_changes_nothing(self, name):
        """But for maxrl, which divides by the mean."""
        small = torch.tensor([[0.0, 0.25, 0.5, 1.0]], dtype=torch.float32)
        found, expected = (
            computed(reward, name=name, k=self.k(name)) for reward in (small + 1000, small)
        )
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9) == (name != "maxrl")

    @pytest.mark.parametrize("scored", [[False] * 4, [True, False, False, False]])
    def test_a_group_with_fewer_than_two_scored_attempts_has_none(self, name, scored):
        assert of(name, [1.0, 0.0, 0.5, 0.2], k=self.k(name), scored=scored) == [0.0] * 4

    def test_an_unscored_attempt_touches_nothing(self, name):
        """The group without it gets the same; it gets 0, and what it holds does not matter."""
        reward = [0.9, 0.0, 0.3, 1.0, 0.0]
        expected = of(name, reward, k=self.k(name))
        scored = [True, True, False, True, True, True]
        for junk in (123.0, -5.0, 0.9):
            with_junk = [*reward[:2], junk, *reward[2:]]
            found = of(name, with_junk, k=self.k(name), scored=scored)
            assert found[2] == 0.0
            assert found[:2] + found[3:] == pytest.approx(expected, rel=1e-12)

    def test_groups_know_nothing_of_one_another(self, name):
        """But for gdpo, which divides by the spread of the batch."""
        both = torch.tensor([[0.1, 0.9, 0.4, 0.0], [5.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]])
        alone = [computed(row.unsqueeze(0), name=name, k=self.k(name)) for row in both]
        together = computed(both, name=name, k=self.k(name))
        assert torch.allclose(together, torch.cat(alone)) == (name != "gdpo")

    def test_the_order_of_attempts_does_not_matter(self, name):
        reward, order = [0.1, 0.9, 0.4, 0.4, 0.0], [3, 0, 4, 2, 1]
        found = of(name, reward, k=self.k(name))
        expected = pytest.approx([found[i] for i in order], rel=1e-12)
        assert of(name, [reward[i] for i in order], k=self.k(name)) == expected


@pytest.mark.parametrize("name", ["maxk", "passk"])
def test_a_group_with_k_or_fewer_scored_attempts_has_one_subset_and_no_advantage(name):
    reward = [1.0, 0.0, 0.0, 0.0, 0.0]
    assert of(name, reward, k=4) != [0.0] * 5
    assert of(name, reward, k=4, scored=[True, True, True, True, False]) == [0.0] * 5
    assert of(name, reward, k=4, scored=[True, True, True, False, False]) == [0.0] * 5


@pytest.mark.parametrize("name", ["maxk", "passk"])
@pytest.mark.parametrize("eps", [0.0, EPS])
def test_a_group_whose_subsets_all_have_the_same_best_has_exactly_no_advantage(name, eps):
    """Without an eps, 0 was divided by 0."""
    for reward in ([1.0, 0.0, 1.0], [0.7, 0.1, 0.7, 0.7, 0.2], [1.0] * 6 + [0.0]):
        k = sum(r < max(reward) for r in reward) + 1
        if name == "passk":
            reward = [float(r == max(reward)) for r in reward]
        assert of(name, reward, k=k, eps=eps) == [0.0] * len(reward)


def test_ddof_and_eps_are_the_configured_ones():
    half = 0.5 / math.sqrt(0.5)
    assert of("grpo", [1.0, 0.0], ddof=1, eps=0.0) == pytest.approx([half, -half])
    assert of("grpo", [1.0, 0.0], eps=0.5) == pytest.approx([0.5, -0.5])


def test_advantages_are_whitened_over_the_batch_and_then_clipped():
    reward_PG = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.2, 9.0]], dtype=torch.float64)
    scored_PG = torch.tensor([[True] * 3, [True, True, False]])
    first, second = 1 / (math.sqrt(1 / 3) + EPS), 0.3 / (math.sqrt(0.045) + EPS)
    plain = [first, 0.0, 0.0, second, 0.0]  # not around 0
    mean, spread = statistics.fmean(plain), statistics.stdev(plain)
    expected = [(a - mean) / (spread + 1e-8) for a in plain]
    found, clipped = (
        computed(reward_PG, scored_PG, name="best_minus_second", whiten=True, clip=clip)
        for clip in (None, 0.6)
    )
    assert found[scored_PG].tolist() == pytest.approx(expected, rel=1e-12)
    assert found[1, 2] == 0
    bounded = [max(-0.6, min(0.6, a)) for a in expected]
    assert clipped[scored_PG].tolist() == pytest.approx(bounded, rel=1e-12)
    two = computed(reward_PG[1:], scored_PG[1:], name="mean_only", whiten=True)
    assert two[0].tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5), 0.0], rel=1e-6)
    nothing = computed(reward_PG, torch.zeros_like(scored_PG), name="mean_only", whiten=True)
    assert nothing.abs().max() == 0


def test_pods_keeps_the_attempts_with_the_largest_variance():
    for reward in groups(40):
        for keep in range(2, len(reward) + 1):
            kept = pods(Rewards.of(torch.tensor([reward])), keep=keep)[0].tolist()
            assert sum(kept) == keep
            best = max(map(statistics.pvariance, itertools.combinations(reward, keep)))
            found = statistics.pvariance(list(itertools.compress(reward, kept)))
            assert found == pytest.approx(best, rel=1e-5, abs=1e-9)


def test_pods_leaves_unscored_attempts_and_small_groups_as_they_are():
    scored = torch.tensor([[True, False, True, True], [True, False, False, True]])
    reward = torch.tensor([[0.0, 9.0, 1.0, 0.4], [0.0, 9.0, 9.0, 1.0]])
    kept = pods(Rewards.of(reward, scored), keep=2)
    assert kept.tolist() == [[True, False, True, False], [True, False, False, True]]


def test_the_overlong_punishment_falls_from_0_to_minus_1_over_the_buffer():
    lengths = torch.tensor([[1, 8, 9, 10, 11, 12, 13]])
    found = overlong(lengths, longest=torch.tensor([[12]]), buffer=4)
    assert found[0].tolist() == [0.0, 0.0, -0.25, -0.5, -0.75, -1.0, -1.0]


def test_one_more_part_is_in_the_totals_and_in_the_parts():
    both = Rewards.of(torch.tensor([[1.0, 0.0]])).plus(torch.tensor([[0.0, -1.0]]), 0.5)
    assert both.total_PG.tolist() == [[1.0, -0.5]]
    assert both.part_KPG.tolist() == [[[1.0, 0.0]], [[0.0, -1.0]]]
    assert both.weight_KP.tolist() == [[1.0], [0.5]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "passk"}, "advantage.name=passk needs advantage.k from 1 to 7; found None"),
        ({"name": "maxk", "k": 8}, "needs advantage.k from 1 to 7; found 8"),
        ({"name": "pkpo", "k": 1}, "needs advantage.k from 2 to 7; found 1"),
        ({"name": "maxk", "k": 4, "keep": 4}, "needs advantage.k from 1 to 3; found 4"),
        ({"name": "grpo", "k": 2}, "the estimator 'grpo' has no k"),
        ({"keep": 9}, "advantage.keep is 9, but a group has only 8 completions"),
        ({"name": "grop"}, "it has to be grpo, mean_only, .* or plugin:NAME; found 'grop'"),
    ],
)
def test_an_estimator_that_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_config([{"environment": "letters", "advantage": settings}])


# gdpo


def by_parts(
    value_KPG: torch.Tensor, weight_KP: torch.Tensor, scored_PG: torch.Tensor, **more: object
) -> torch.Tensor:
    """Advantages by gdpo."""
    total_PG = (value_KPG.double() * weight_KP.double().unsqueeze(-1)).sum(dim=0)
    plain = Rewards.of(total_PG, scored_PG)
    parts = replace(plain, part_KPG=value_KPG.double(), weight_KP=weight_KP.double())
    return advantages(parts, AdvantageConfig(name="gdpo", **more))


def test_gdpo_normalises_each_part_by_itself_and_keeps_the_weights():
    """Worked by hand: in the first group only the small part differs, in the second only the large one."""
    value_KPG = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 3.0]]])
    weight_KP = torch.tensor([[0.2, 0.2], [0.6, 0.6]])
    found = by_parts(value_KPG, weight_KP, torch.ones(2, 2, dtype=torch.bool), eps=0.0)
    # z-scores of two different values are 1 and -1
    raw = torch.tensor([[0.2, -0.2], [-0.6, 0.6]], dtype=torch.float64)
    expected = raw / math.sqrt((0.2**2 + 0.6**2) / 2)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scored", [0, 1, 2])
@pytest.mark.filterwarnings("error")
def test_gdpo_takes_no_deviation_of_too_few_advantages(scored):
    """torch warns of one."""
    scored_PG = torch.arange(3).unsqueeze(0) < scored
    for ddof in (0, 1):
        assert computed(torch.ones(1, 3), scored_PG, name="gdpo", ddof=ddof).abs().max() == 0


def batch_of(live: int, dead: int, *, ddof: int = 0) -> torch.Tensor:
    """Advantages by gdpo of groups of 2 in which one is right, and of groups in which all are."""
    reward_PG = torch.tensor([[1.0, 0.0]] * live + [[1.0, 1.0]] * dead)
    return computed(reward_PG, name="gdpo", eps=0.0, ddof=ddof)


@pytest.mark.parametrize(
    ("live", "dead", "size"),
    [(8, 0, 1.0), (4, 4, math.sqrt(2)), (2, 6, 2.0), (1, 7, 2.0), (1, 63, 2.0)],
)
def test_dead_groups_make_the_advantages_of_gdpo_at_most_twice_as_large(live, dead, size):
    """Down to a quarter of live groups it is the paper's."""
    found = batch_of(live, dead)
    assert found[:live].abs().flatten().tolist() == pytest.approx([size] * 2 * live)
    assert found[live:].abs().sum() == 0
    assert size <= math.sqrt((live + dead) / live) + 1e-12


def test_both_deviations_of_gdpo_have_the_configured_ddof():
    """Worked by hand for one live group of two: 1 and -1 over their own deviation, then over that of the batch, or half that of the live."""
    own = 0.5 / math.sqrt(0.5)
    for dead in (0, 1, 7):
        batch, live = (math.sqrt(2 * own**2 / (size - 1)) for size in (2 + 2 * dead, 2))
        expected = own / max(batch, live / 2)
        assert batch_of(1, dead, ddof=1)[0].tolist() == pytest.approx([expected, -expected])


def test_parts_of_verdicts_with_different_parts_are_padded_with_zeros():
    both = Verdict({"a": Reward(0.5, 0.2), "b": Reward(1.0, 0.6)})
    one = Verdict({"c": Reward(2.0, 1.5)})
    found = rewards([group(both, Verdict.failed("broken")), group(one, one)])
    assert found.total_PG.tolist() == [[0.7, 0.0], [3.0, 3.0]]
    assert found.scored_PG.tolist() == [[True, False], [True, True]]
    assert found.part_KPG.tolist() == [[[0.5, 0.0], [2.0, 2.0]], [[1.0, 0.0], [0.0, 0.0]]]
    assert found.weight_KP.tolist() == [[0.2, 1.5], [0.6, 0.0]]
