"""A rubric turns named functions into the parts of a verdict, with their seconds, and hides no exception."""

import asyncio
import functools
import time
from decimal import Decimal
from typing import Any

import numpy
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
    unweighted = Rubric({"yes": says_yes, "length": length})(TASK, Rollout.of(""))
    assert [part.weight for part in unweighted.rewards.values()] == [1.0, 1.0]
    assert verdict.total == pytest.approx(0.9)


def test_a_verdict_passes_by_the_named_part_alone() -> None:
    rubric = Rubric({"yes": says_yes, "length": length}, passed="yes")
    assert rubric(TASK, Rollout.of("yes")).passed
    assert not rubric(TASK, Rollout.of("something long enough")).passed
    assert not Rubric({"yes": says_yes})(TASK, Rollout.of("yes")).passed


def test_every_part_records_its_own_seconds() -> None:
    def slow() -> float:
        time.sleep(0.05)
        return 1.0

    rewards = Rubric({"slow": slow, "fast": lambda: 1.0}).rewards()
    assert rewards["slow"].seconds >= 0.05
    assert 0 <= rewards["fast"].seconds < rewards["slow"].seconds


def test_an_exception_is_passed_on_and_never_becomes_a_zero() -> None:
    def broken() -> float:
        raise RuntimeError("daemon gone")

    with pytest.raises(RuntimeError, match="daemon gone"):
        Rubric({"broken": broken})()


def test_a_function_may_return_what_each_turn_earned() -> None:
    def by_turn(task: Task[str], rollout: Rollout) -> Reward:
        return Reward(turns=(0.25, 0.75), note="late")

    rubric = Rubric(
        {"yes": says_yes, "game": by_turn}, weights={"yes": 1, "game": 2}, passed="game"
    )
    verdict = rubric(TASK, Rollout.of("yes"))
    assert verdict.rewards["game"] == Reward(1.0, 2.0, "late", turns=(0.25, 0.75))
    assert (verdict.total, verdict.passed) == (3.0, True)


@pytest.mark.parametrize(
    ("functions", "names", "message"),
    [
        ({"yes": says_yes}, {"weights": {"yess": 1}}, r"\['yes'\] and weights for \['yess'\]"),
        ({"yes": says_yes}, {"weights": {"yes": 1, "no": 1}}, r"weights for \['no', 'yes'\]"),
        ({"yes": says_yes}, {"passed": "x"}, r"by 'x', which is none of its functions \['yes'\]"),
        ({}, {}, "no reward functions"),
    ],
)
def test_names_that_do_not_fit_together_are_refused_at_once(
    functions: dict[str, Any], names: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Rubric(functions, **names)


async def waits(score: Any) -> Any:
    await asyncio.sleep(0)
    return score


class Waiting:
    async def __call__(self, score: Any) -> Any:
        return score


LATER = [waits, Waiting(), functools.partial(waits), lambda score: waits(score)]


@pytest.mark.parametrize("function", LATER)
def test_async_functions_are_awaited_where_nothing_is_async_and_in_averify(function: Any) -> None:
    rubric = Rubric({"now": lambda score: score, "later": function}, passed="later")

    async def averify() -> Verdict:
        return await rubric.acall((1.0, "a note"))

    for verdict in (rubric((1.0, "a note")), asyncio.run(averify())):
        assert verdict.rewards == {name: Reward(1.0, note="a note") for name in ("now", "later")}
        assert verdict.passed


async def test_an_async_function_in_averify_has_to_be_awaited() -> None:
    with pytest.raises(TypeError, match=r"'later' is async; in averify, call `await rubric.acall"):
        Rubric({"later": waits})(1.0)


def test_what_async_functions_keep_open_belongs_to_one_loop_in_all_calls() -> None:
    loops = list[asyncio.AbstractEventLoop]()

    async def connected() -> float:
        loops.append(asyncio.get_running_loop())
        return 1.0

    rubric = Rubric({"connected": connected})
    rubric()
    rubric()
    assert loops[0] is loops[1]
    assert not loops[0].is_closed()


@pytest.mark.parametrize(
    "score",
    [
        *(numpy.bool_(True), numpy.float32(1), numpy.int64(1), numpy.array(1.0), Decimal(1)),
        *(True, sum((0.7, 0.2, 0.1)), sum([0.1] * 10), Reward(numpy.float64(1))),
    ],
)
def test_scalars_of_numpy_are_numbers_and_a_sum_that_is_rounded_passes(score: Any) -> None:
    verdict = Rubric({"part": lambda: score}, passed="part")()
    assert verdict.passed
    assert type(verdict.rewards["part"].value) is float


@pytest.mark.parametrize(
    "score",
    [
        *(None, "1", numpy.array([1.0]), numpy.ma.masked, 1j, b"1", [1.0], numpy.complex64(1)),
        *((None, ""), (1.0, None), (1.0, "", 2)),
    ],
)
def test_anything_else_is_no_reward(score: Any) -> None:
    with pytest.raises(TypeError, match=r"the reward function 'part' returned .*; return a number"):
        Rubric({"part": lambda: score})()


@pytest.mark.parametrize("score", [1 - 1e-8, 0.999999, numpy.float32(0.9999999)])
def test_a_value_that_is_not_1_does_not_pass(score: Any) -> None:
    assert not Rubric({"part": lambda: score}, passed="part")().passed


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_async_function_that_exits_keeps_no_later_one_waiting(
    error: type[BaseException],
) -> None:
    async def exits() -> float:
        raise error

    with pytest.raises(error):
        Rubric({"exits": exits})()
    assert Rubric({"works": waits})(1.0).total == 1.0
