"""Statistics of several samples per task, against brute force and against what they estimate."""

import itertools
import random
from statistics import fmean, stdev

import pytest

from grpo_core.figures.gains import paired_gain
from grpo_core.figures.statistics import best_at, majority_at, over_tasks, pass_at


def test_pass_at_k_is_the_mean_over_all_subsets() -> None:
    rng = random.Random(0)
    for _ in range(100):
        passed = [rng.random() < 0.3 for _ in range(rng.randint(1, 9))]
        for k in range(1, len(passed) + 1):
            expected = fmean(any(subset) for subset in itertools.combinations(passed, k))
            assert pass_at(k, passed) == pytest.approx(expected, abs=1e-12)


def test_best_at_k_is_the_mean_over_all_subsets_also_with_ties() -> None:
    rng = random.Random(0)
    for _ in range(100):
        rewards = [rng.choice([rng.random(), 0.5, 1.0]) for _ in range(rng.randint(1, 9))]
        for k in range(1, len(rewards) + 1):
            expected = fmean(max(subset) for subset in itertools.combinations(rewards, k))
            assert best_at(k, rewards) == pytest.approx(expected, abs=1e-12)


def test_the_majority_of_k_is_the_mean_over_all_subsets() -> None:
    """Beside a plain count of votes; what is right is decided by the answer, and no answer is no vote."""
    rng = random.Random(0)

    def worth(subset: tuple[tuple[str | None, bool], ...]) -> float:
        answers = [answer for answer, _ in subset if answer is not None]
        most = max((answers.count(answer) for answer in answers), default=0)
        winners = sorted({answer for answer in answers if answers.count(answer) == most})
        return fmean(winner == "7" for winner in winners) if winners else 0.0

    for _ in range(60):
        answers = [rng.choice(["7", "7", "8", "9", None]) for _ in range(rng.randint(1, 8))]
        samples = [(answer, answer == "7") for answer in answers]
        for k in range(1, len(samples) + 1):
            expected = fmean(map(worth, itertools.combinations(samples, k)))
            assert majority_at(k, samples) == pytest.approx(expected, abs=1e-12)


def test_the_majority_over_many_subsets_is_drawn_the_same_each_time_and_near() -> None:
    samples: list[tuple[str | None, bool]] = (
        [("7", True)] * 9 + [("8", False)] * 9 + [(None, False)] * 2
    )
    drawn = majority_at(5, samples, subsets=400)
    assert drawn == majority_at(5, samples, subsets=400)
    assert drawn == pytest.approx(majority_at(5, samples, subsets=10**6), abs=0.05)


@pytest.mark.parametrize("k", [0, 4])
def test_a_k_that_is_no_number_of_samples_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k}, but a task has 3 samples"):
        pass_at(k, [True, False, False])


def test_the_error_is_that_of_a_mean_over_tasks_and_not_over_samples() -> None:
    """Eight samples of a task are always equal: 40 tasks say what 40 samples say, not what 320 say."""
    rng = random.Random(1)
    tasks = [[rng.random() < 0.4] * 8 for _ in range(40)]
    values = [fmean(task) for task in tasks]
    found = over_tasks(values)
    assert found.value == pytest.approx(fmean(values))
    assert found.tasks == 40
    assert found.error == pytest.approx(stdev(values) / 40**0.5, rel=0.1)
    assert found.low == pytest.approx(found.value - 1.96 * found.error, abs=0.03)
    assert found.high == pytest.approx(found.value + 1.96 * found.error, abs=0.03)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    rng = random.Random(2)
    held = 0
    for number in range(100):
        tasks = [
            [rng.random() < p for _ in range(4)] for p in (rng.betavariate(2, 3) for _ in range(60))
        ]
        found = over_tasks([pass_at(1, passed) for passed in tasks], draws=400, seed=number)
        held += found.low <= 0.4 <= found.high
    assert 88 <= held <= 100


def test_a_paired_gain_uses_only_tasks_scored_in_both_and_gives_an_interval() -> None:
    before = {"a": 0.0, "b": 0.0, "c": 1.0, "only before": 1.0}
    gain = paired_gain(before, {"a": 1.0, "b": 0.0, "c": 1.0, "only after": 0.0})
    assert gain is not None
    assert (gain.before, gain.after, gain.tasks) == (pytest.approx(1 / 3), pytest.approx(2 / 3), 3)
    margin = 4.302652729911275 / 3  # Student's t with two degrees of freedom
    assert (gain.low, gain.high) == pytest.approx((1 / 3 - margin, 1 / 3 + margin))
    assert paired_gain({"a": 1.0}, {"a": 1.0}) is None


def test_no_tasks_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        over_tasks([])
