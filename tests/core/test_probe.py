"""The statistics of `grpo env probe` and of evaluations, on groups that nobody sampled."""

import random
from collections.abc import Sequence
from itertools import combinations
from math import prod
from statistics import fmean

import pytest

from grpo_core import Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.figures.statistics import expected_differing, expected_mixed
from grpo_core.figures.summary import Sampled, summarize
from grpo_core.protocol.types import Group
from grpo_kit.probing.probe import probe_report, token_budget
from grpo_kit.probing.probe_report import Bin, Quantiles, Terms

TERMS = Terms(parts=("form", "exact"), budget=16)
OPEN = Terms(parts=("form", "exact"), budget=16, open_ended=True)
BROKEN = Verdict.failed("the judge was gone")


def verdict(
    right: float, form: float = 1.0, *, passed: bool | None = None, answer: str | None = "2"
) -> Verdict:
    rewards = {"form": Reward(form, weight=0.2), "exact": Reward(right, weight=0.8)}
    return Verdict(rewards, passed=right == 1 if passed is None else passed, answer=answer)


def rollout(*turns: int, finish: str = "stop") -> Rollout:
    """What the policy said in so many tokens each time, and two tokens of the environment in between."""
    trainable = tuple(own for turn in turns for own in (*([1] * turn), 0, 0))[:-2]
    count = len(trainable)
    said = (Message("assistant", "x"),)
    return Rollout(said, finish, (1,), (5,) * count, (0.0,) * count, trainable)  # type: ignore[arg-type]


def group(
    index: int, verdicts: Sequence[Verdict], rollouts: Sequence[Rollout] | None = None
) -> Group[None]:
    task = Task(TaskKey("sums", "train", index), "1 + 1?", None)
    return Group(task, rollouts or [rollout(3) for _ in verdicts], verdicts)


def level(at: float, *passed: Sequence[int]) -> Sampled:
    """Attempts by task: 1 where one passed."""
    return Sampled(at, [group(i, list(map(verdict, task))) for i, task in enumerate(passed)])


def test_every_statistic_of_a_level_by_hand() -> None:
    groups = [
        group(0, [*map(verdict, (1.0, 0.0, 0.0)), verdict(0.0, form=0.0, answer=None)]),
        group(
            1,
            [verdict(0.0)] * 4,
            [rollout(8), rollout(10), rollout(16, finish="length"), rollout(4, 7)],
        ),
    ]
    (found,) = probe_report([Sampled(0.5, groups, [0.1, 0.3, 0.2])], TERMS).levels
    assert (found.level, found.tasks, found.attempts, found.unscored) == (0.5, 2, 8, 0.0)
    assert (found.clipped, found.pass_rate, found.unparsed) == (1 / 8, 1 / 8, 1 / 8)
    assert (found.mixed_passed, found.mixed_reward) == (0.5, 0.5)
    assert found.reward == pytest.approx((0.8 + 0.2 * 7) / 8)
    # the first task: 1/4, 1 - 3/6, 1; the second: 0
    assert found.pass_at == {1: 1 / 8, 2: 1 / 4, 4: 1 / 2}
    assert found.parts == {"form": 7 / 8, "exact": 1 / 8}
    assert found.verify_seconds == Quantiles(0.2, 0.3)
    assert found.tokens == Quantiles(3, 16)  # 3 3 3 3 8 10 11 16
    assert found.histogram[0] == Bin(0.0, 0.1, 1 / 8)
    assert found.histogram[2].share == 6 / 8
    assert found.histogram[9].share == 1 / 8
    assert [each.share for each in found.part_histograms["form"]] == [1 / 8, *[0.0] * 8, 7 / 8]
    assert found.part_histograms["exact"][9] == Bin(0.9, 1.0, 1 / 8)
    assert found.max_new_tokens == 32  # more than a tenth were cut off at 16


def test_what_could_not_be_judged_is_counted_and_is_in_no_other_share() -> None:
    groups = [
        group(0, [verdict(1.0), verdict(0.0), verdict(0.0), BROKEN]),
        group(1, [verdict(1.0)] * 4),
        group(2, [BROKEN] * 4),
    ]
    lenient = Terms(parts=("exact",), budget=16, max_error_rate=0.5)
    (found,) = probe_report([Sampled(0.0, groups)], lenient).levels
    assert found.unscored == pytest.approx(5 / 12)
    assert (found.pass_rate, found.mixed_passed) == (5 / 7, 0.5)
    assert found.pass_at == pytest.approx({1: (1 / 3 + 1) / 2, 2: (2 / 3 + 1) / 2, 3: 1.0})
    assert found.trainable
    (strict,) = probe_report([Sampled(0.0, groups)], TERMS).levels
    assert not strict.trainable
    assert strict.reason == "42% of the attempts could not be judged; a run stops above 20%"


def test_nothing_judged_is_no_statistic_and_a_reason() -> None:
    found = probe_report([Sampled(0.0, [group(0, [BROKEN] * 2)])], TERMS)
    (only,) = found.levels
    assert only.pass_rate is only.reward is only.mixed_passed is only.unparsed is None
    assert (only.pass_at, only.histogram) == ({}, ())
    assert not found.trainable
    assert "100% of the attempts could not be judged" in found.reason
    assert probe_report([Sampled(0.0, [])], TERMS).reason == "nothing was sampled"


@pytest.mark.parametrize(("tasks", "trainable"), [(24, False), (20, True)])
def test_success_that_is_too_rare_is_untrainable_whatever_partial_rewards_do(
    tasks: int, trainable: bool
) -> None:
    """One task with a success among 24 is below 5 %, one among 20 is not."""
    partial = [group(i, [verdict(i / 100), verdict(0.9)]) for i in range(1, tasks)]
    found = probe_report([Sampled(0.0, [group(0, [verdict(1.0), verdict(0.0)]), *partial])], TERMS)
    assert found.trainable == trainable
    assert found.levels[0].mixed_reward == 1.0
    rare = "at level 0 only 4.2% of the tasks have an attempt that passes"
    assert found.reason.startswith(rare) is not trainable


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        ([[[1, 0], *[[1, 1]] * 23]], "only 4.2% of the tasks have an attempt that fails"),
        ([[*[[1, 1]] * 10, *[[0, 0]] * 10]], "rewards differ within only 0.0% of the groups"),
        (
            [[*[[1, 1]] * 29, [1, 0]], [[0, 0]] * 9],
            "at no probed level; at level 0, which is nearest, only 3.3% of the tasks",
        ),
    ],
    ids=["too common", "always or never", "the nearest of several levels"],
)
def test_success_that_gives_no_advantage_is_untrainable(
    levels: list[list[list[int]]], reason: str
) -> None:
    found = probe_report([level(at, *tasks) for at, tasks in enumerate(levels)], TERMS)
    assert (found.trainable, found.level) == (False, None)
    assert reason in found.reason


def test_with_open_ends_rewards_that_differ_are_enough_and_success_is_not_asked() -> None:
    never = [
        group(i, [verdict(0.1 * i, passed=False), verdict(0.05, passed=False)])
        for i in range(1, 20)
    ]
    always = [group(i, [verdict(0.1, passed=True), verdict(0.2, passed=True)]) for i in range(20)]
    equal = [group(i, [verdict(0.1, passed=bool(i % 2))] * 2) for i in range(20)]
    for groups, trainable in ((never, True), (always, True), (equal, False)):
        assert probe_report([Sampled(0.0, groups)], OPEN).trainable == trainable
    assert not probe_report([Sampled(0.0, never)], TERMS).trainable


def test_the_level_whose_pass_rate_lies_in_the_window_is_suggested() -> None:
    tasks = {
        0.0: [1, 1, 1, 1, 0],
        0.25: [1, 1, 1, 0, 0, 0, 0, 0, 0],
        0.5: [1, 1, 0, 0, 0],
        1.0: [1, 0, 0, 0, 0, 0, 0],
    }
    levels = [level(at, task, task) for at, task in tasks.items()]
    found = probe_report(levels, TERMS)
    # both 0.33 and 0.4 lie in 0.3 .. 0.7; 0.4 is nearer to its middle
    assert (found.trainable, found.level) == (True, 0.5)
    narrow = Terms(parts=("exact",), budget=16, window=(0.79, 0.9))
    assert probe_report(levels, narrow).level == 0.0


def test_an_untrainable_level_is_never_suggested_and_one_trainable_level_is_enough() -> None:
    levels = [level(0.0, *[[1, 1]] * 5, *[[0, 0]] * 5), level(1.0, *[[1, 0, 0, 0, 0, 0]] * 3)]
    found = probe_report(levels, TERMS)
    assert [each.trainable for each in found.levels] == [False, True]
    assert (found.trainable, found.level) == (True, 1.0)
    assert found.reason.endswith("and rewards differ within 100% of the groups")


def test_mixed_groups_of_tasks_that_differ_little_share_one_probability() -> None:
    """Ten tasks with 2 of 4: nothing between them, so the correlation is 0.01, a + b = 99, and each task has Beta(51.5, 51.5):
    2 E[p (1 - p)] = 2 * 51.5^2 / (103 * 104)."""
    assert expected_mixed([(2, 4)] * 10, 2) == pytest.approx(2 * 51.5**2 / (103 * 104))


def test_mixed_groups_without_any_success_stay_rare() -> None:
    """Beta(a, 99 - a + 8) with a = 99 * 0.5 / 193."""
    a = 99 * 0.5 / 193
    assert expected_mixed([(0, 8)] * 24, 2) == pytest.approx(2 * a * (107 - a) / (107 * 108))
    assert expected_mixed([(0, 8)] * 24, 64) < 0.2


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_mixed_groups_are_foretold_for_tasks_of_every_difficulty(size: int) -> None:
    """200 tasks with p from Beta(1, 3), of which E[p^g] = g! 3! / (g + 3)! and E[(1 - p)^g] = 3 / (g + 3), seen 8 times each."""
    rng = random.Random(0)
    chances = [rng.betavariate(1, 3) for _ in range(200)]
    counts = [(sum(rng.random() < p for _ in range(8)), 8) for p in chances]
    truth = 1 - 6 / prod(range(size + 1, size + 4)) - 3 / (size + 3)
    assert expected_mixed(counts, size) == pytest.approx(truth, abs=0.05)


def test_groups_whose_rewards_differ_are_those_of_all_subsets() -> None:
    totals = [[0.1, 0.1, 0.2, 0.3, 0.3], [0.5] * 4]
    for size in (2, 3, 4):
        subsets = [[len(set(chosen)) > 1 for chosen in combinations(task, size)] for task in totals]
        assert expected_differing(totals, size) == pytest.approx(
            fmean(fmean(found) for found in subsets)
        )


def test_the_group_size_is_the_smallest_that_mixes_half_of_the_groups() -> None:
    even, rare = [1, 0] * 4, [1] + [0] * 15
    assert probe_report([level(0.0, *[even] * 8)], TERMS).group_size == 4
    assert probe_report([level(0.0, *[rare] * 20)], TERMS).group_size == 16
    assert probe_report([level(0.0, *[[1] * 16] * 9, rare)], TERMS).group_size is None
    smooth = [group(i, [verdict(j / 9, passed=False) for j in range(8)]) for i in range(3)]
    assert probe_report([Sampled(0.0, smooth)], OPEN).group_size == 4


def test_the_token_budget_leaves_room_above_what_ended_by_itself() -> None:
    assert token_budget([5, 6, 10], clipped=0.0, budget=64) == 16  # 12.5, in steps of 8
    assert token_budget([60] * 100, clipped=0.1, budget=64) == 80
    assert token_budget([60] * 100, clipped=0.11, budget=64) == 128
    assert token_budget([200], clipped=0.5, budget=64) == 256
    assert token_budget([], clipped=1.0, budget=64) == 128


def test_the_budget_of_a_dialogue_is_that_of_one_turn() -> None:
    """Two turns of at most 9 tokens, between which the environment speaks."""
    groups = [group(i, [verdict(1.0), verdict(0.0)], [rollout(9, 8), rollout(2)]) for i in range(3)]
    assert probe_report([Sampled(0.0, groups)], TERMS).max_new_tokens == 16


def test_gaps_that_are_filled_have_no_token_budget() -> None:
    filled = Rollout((Message("assistant", "x"),), "stop", (1,), (2,), (0.0,), (1,), positions=(0,))
    groups = [group(i, [verdict(1.0), verdict(0.0)], [filled, filled]) for i in range(3)]
    assert probe_report([Sampled(0.0, groups)], TERMS).max_new_tokens is None


def test_every_statistic_of_an_evaluation_is_a_mean_over_tasks() -> None:
    right, other, none = (
        verdict(worth, form=0.5, answer=answer)
        for worth, answer in ((1.0, "2"), (0.0, "3"), (0.0, None))
    )
    ended, cut = rollout(2), rollout(2, finish="length")
    groups = [group(0, [right] * 3 + [other], [ended] * 4), group(1, [none] * 4, [cut] * 4)]
    found = summarize(groups, environment="sums", level=0.5, samples=4, parts=["form", "exact"])
    values = {name: estimate.value for name, estimate in found.statistics.items()}
    expected = {
        "pass rate": 0.375,
        "reward": 0.1 + 0.8 * 0.375,
        "pass@2": 0.5,
        "pass@4": 0.5,
        "max@2": 0.1 + 0.8 * 0.5,
        "max@4": 0.1 + 0.8 * 0.5,
        "majority@2": 0.5 * 0.75,  # of six pairs three are 2, 2 and three are tied
        "majority@4": 0.5,
        "part form": 0.5,
        "part exact": 0.375,
    }
    assert values == {name: pytest.approx(value) for name, value in expected.items()}
    assert (found.tasks, found.attempts, found.unscored) == (2, 8, 0)
    assert (found.clipped, found.tokens) == (0.5, 16)
    assert found.to_json()["statistics"]["pass@2"]["tasks"] == 2


def test_what_could_not_be_judged_is_no_0_of_an_evaluation() -> None:
    groups = [group(0, [verdict(1.0), BROKEN, verdict(1.0)]), group(1, [BROKEN] * 3)]
    found = summarize(groups, environment="sums", level=0.0, samples=3, parts=["exact"])
    assert found.statistics["pass rate"].value == 1.0
    assert found.statistics["pass rate"].tasks == 1
    assert "pass@2" in found.statistics
    assert "pass@3" not in found.statistics
    assert (found.attempts, found.unscored) == (6, 4)
    gone = [group(0, [BROKEN])]
    found = summarize(gone, environment="sums", level=0.0, samples=1, parts=["exact"])
    assert found.statistics == {}
    assert summarize([], environment="sums", level=0.0, samples=1, parts=[]).tasks == 0
