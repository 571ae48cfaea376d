"""A rubric turns named functions into the parts of a verdict, with their seconds, and hides no exception."""

import time

import pytest

from grpo_core import ConfigError, Reward, Rollout, Rubric, Task, TaskKey, Verdict


def says_yes(task: Task[str], rollout: Rollout) -> bool:
    return "yes" in rollout.text


def length(task: Task[str], rollout: Rollout) -> tuple[float, str]:
    return min(len(rollout.text) / 10, 1.0), f"{len(rollout.text)} characters"


TASK = Task(TaskKey("t", "train", 0), "say yes", "yes")


def test_a_verdict_has_one_weighted_part_per_function_and_their_sum_as_total() -> None:
    verdict = Rubric({"yes": says_yes, "length": length}, weights={"yes": 0.8, "length": 0.2})(
        TASK, Rollout.of("yes!!")
    )
    assert verdict.rewards == {"yes": Reward(1.0, 0.8), "length": Reward(0.5, 0.2, "5 characters")}
    assert list(verdict.rewards) == ["yes", "length"]
    assert verdict.total == pytest.approx(0.9)


def test_the_worst_answer_gets_the_same_part_names() -> None:
    rubric = Rubric({"yes": says_yes, "length": length})
    assert (
        rubric(TASK, Rollout.of("")).rewards.keys()
        == rubric(TASK, Rollout.of("yes")).rewards.keys()
    )


def test_weights_left_out_are_one() -> None:
    assert Rubric({"yes": says_yes})(TASK, Rollout.of("yes")).rewards["yes"].weight == 1.0


def test_functions_may_ask_an_already_parsed_answer() -> None:
    def is_even(answer: int) -> bool:
        return answer % 2 == 0

    rubric = Rubric({"even": is_even}, passed="even")
    assert rubric(4).passed
    assert not rubric(5).passed


def test_a_verdict_passes_by_the_named_part_alone() -> None:
    rubric = Rubric({"yes": says_yes, "length": length}, passed="yes")
    assert rubric(TASK, Rollout.of("yes")).passed
    assert not rubric(TASK, Rollout.of("something long enough")).passed
    assert not Rubric({"yes": says_yes})(TASK, Rollout.of("yes")).passed


def test_a_value_below_one_of_the_passing_part_is_no_pass() -> None:
    def nearly(answer: int) -> float:
        return answer / 10

    rubric = Rubric({"nearly": nearly}, passed="nearly")
    assert not rubric(9).passed
    assert rubric(10).passed


def test_every_part_records_its_own_seconds() -> None:
    def slow(answer: int) -> float:
        time.sleep(0.05)
        return 1.0

    def fast(answer: int) -> float:
        return 1.0

    rewards = Rubric({"slow": slow, "fast": fast}).rewards(1)
    assert rewards["slow"].seconds >= 0.05
    assert 0 <= rewards["fast"].seconds < rewards["slow"].seconds


def test_an_exception_is_passed_on_and_never_becomes_a_zero() -> None:
    def broken(answer: int) -> float:
        raise RuntimeError("daemon gone")

    with pytest.raises(RuntimeError, match="daemon gone"):
        Rubric({"broken": broken})(1)


def test_a_forgotten_return_is_an_error_that_names_the_function() -> None:
    def forgot(answer: int) -> float:
        return None  # type: ignore[return-value]

    with pytest.raises(TypeError, match=r"'forgot' returned None; return a number"):
        Rubric({"forgot": forgot})(1)


def test_a_function_may_return_what_each_turn_earned() -> None:
    def by_turn(task: Task[str], rollout: Rollout) -> Reward:
        return Reward(turns=(0.25, 0.75), note="late")

    rubric = Rubric(
        {"yes": says_yes, "game": by_turn}, weights={"yes": 1, "game": 2}, passed="game"
    )
    verdict = rubric(TASK, Rollout.of("yes"))
    assert verdict.rewards["game"] == Reward(1.0, 2.0, "late", turns=(0.25, 0.75))
    assert (verdict.total, verdict.passed) == (3.0, True)


def test_the_parts_can_be_had_for_a_verdict_of_ones_own() -> None:
    rewards = Rubric({"yes": says_yes}).rewards(TASK, Rollout.of("yes"))
    assert Verdict(rewards=rewards, passed=True, answer="yes").total == 1.0


@pytest.mark.parametrize(
    ("weights", "passed", "message"),
    [
        ({"yess": 1.0}, None, r"functions \['yes'\] and weights for \['yess'\]"),
        ({"yes": 1.0, "no": 1.0}, None, r"weights for \['no', 'yes'\]"),
        (None, "exact", r"passes by 'exact', which is none of its functions \['yes'\]"),
    ],
)
def test_names_that_do_not_fit_together_are_refused_at_once(
    weights: dict[str, float] | None, passed: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Rubric({"yes": says_yes}, weights=weights, passed=passed)


def test_a_rubric_without_functions_is_refused() -> None:
    with pytest.raises(ConfigError, match="no reward functions"):
        Rubric({})
