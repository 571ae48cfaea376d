"""Who is to blame where a library's verifier raises: the answer, or the machine."""

import time
from pathlib import Path
from typing import Any

import judged
import pytest
import raising_envs as raising

from grpo_core import ConfigError, Environment, RunStoppedError, Verdict
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier
from grpo_core.verify.judge.cache import VerdictCache
from grpo_core.verify.judge.error_rate import check_raised
from grpo_core.verify.judge.judging import VerifyStats


def judge(
    env: Environment[Any], *answers: str, **settings: Any
) -> tuple[list[Verdict], VerifyStats]:
    """Judge answers to one task with one worker."""
    (verdicts,), stats = judged.judge(env, [answers], workers=1, **settings)
    return verdicts, stats


def reader(marker: Path | None = None, **config: Any) -> raising.Reader:
    return raising.Reader(raising.Config(marker=str(marker or ""), **config))


BLAMED = {
    "five": "ValueError",
    "own": "ValueError",
    "long number": "ValueError",
    "type": "TypeError",
    "division": "ArithmeticError",
    "recursion": "RecursionError",
    "syntax": "SyntaxError",
}
NOT_BLAMED = ("lookup", "assertion", "os and value", "memory", "exit")


def test_an_answer_at_which_the_verifier_raises_gets_the_floor_with_a_note_and_is_counted() -> None:
    verdicts, stats = judge(reader(), "4", *BLAMED, "5")
    right, *floors, wrong = verdicts
    assert (right.total, right.passed, right.raised) == (2.0, True, "")
    assert (wrong.total, wrong.passed, wrong.raised) == (0.0, False, "")
    assert [verdict.raised for verdict in floors] == list(BLAMED.values())
    assert {(verdict.total, verdict.passed, verdict.error) for verdict in floors} == {
        (-1.0, False, None)
    }
    assert "raises ValueError: invalid literal" in floors[0].rewards["right"].note
    assert "the reference passes" in floors[0].rewards["right"].note
    assert (stats.raised, stats.errors) == (len(BLAMED), 0)


def test_what_machines_raise_and_other_exceptions_stay_errors() -> None:
    verdicts, stats = judge(reader(), *NOT_BLAMED, "death", retries=1)
    assert [verdict.scored for verdict in verdicts] == [False] * len(verdicts)
    assert (stats.raised, stats.errors) == (0, len(verdicts))


@pytest.mark.slow
def test_an_answer_that_uses_up_the_cpu_time_of_a_verdict_gets_the_floor_and_one_that_waits_does_not() -> (
    None
):
    (loop, power, sleep), _ = judge(reader(), "loop", "power", "sleep", timeout_seconds=1)
    assert "does not end within 1 s of CPU time" in loop.rewards["right"].note
    assert "deadline of 1 s" in (sleep.error or "")
    for verdict in (loop, power):  # a power is one instruction of Python, which the kernel ends
        assert (verdict.raised, verdict.total) == ("CPU limit", -1.0)


@pytest.mark.slow
def test_a_failure_that_does_not_come_again_in_the_same_way_is_not_the_answers(
    tmp_path: Path,
) -> None:
    (once,), _ = judge(reader(tmp_path / "marker"), "once", retries=1)
    assert (once.scored, once.total, once.raised) == (True, 0.0, "")
    (other,), _ = judge(reader(tmp_path / "other"), "other kind")
    assert other.error is not None


def test_no_answer_is_to_blame_where_the_reference_fails_too(tmp_path: Path) -> None:
    broken = raising.Broken(raising.Config(marker=str(tmp_path / "marker")))
    (verdict,), _ = judge(broken, "five")
    assert "everything is broken" in (verdict.error or "")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reference", ["", "5", "five"])
def test_no_answer_is_to_blame_without_a_reference_that_passes(reference: str) -> None:
    (verdict,), _ = judge(reader(reference=reference), "six")
    assert verdict.error is not None


def test_elsewhere_an_exception_stays_an_error_of_the_verifier() -> None:
    for env, settings in (
        (raising.Undeclared(), {}),
        (raising.Trusted(), {}),  # in this process there is no fresh worker to ask
        (raising.Reader(), {"isolation": "inline"}),
    ):
        (verdict,), stats = judge(env, "five", **settings)
        assert verdict.error is not None
        assert stats.raised == 0


def test_a_verdict_that_depends_on_a_service_blames_no_answer() -> None:
    said = r"declares raises_at_answers, but it has averify\(\) instead of verify\(\)"
    with pytest.raises(ConfigError, match=said):
        Verifier(raising.Asynchronous(), settings=VerifyConfig(isolation="auto"))


def test_equal_answers_are_examined_once_and_the_cache_keeps_why() -> None:
    cache = VerdictCache(entries=10)
    verdicts, stats = judge(reader(), "five", "five", "five", cache=cache)
    assert [verdict.raised for verdict in verdicts] == ["ValueError"] * 3
    assert (stats.cache_hits, stats.raised) == (2, 3)
    assert Verdict.from_json(verdicts[0].to_json()) == verdicts[0]


@pytest.mark.slow
def test_many_such_answers_do_not_cost_a_worker_each() -> None:
    started = time.process_time()
    verdicts, _ = judge(reader(), *(f"number {index}" for index in range(40)))
    assert all(verdict.raised for verdict in verdicts)
    assert time.process_time() - started < 10


def test_more_than_a_fifth_of_a_step_stops_the_run_with_the_reasons() -> None:
    (raised, right), _ = judge(reader(), "five", "4")
    check_raised(3, [raised] * 20 + [right] * 80, stop_above=0.2)
    check_raised(3, [], stop_above=0.2)
    with pytest.raises(RunStoppedError) as stopped:
        check_raised(3, [raised] * 21 + [right] * 79, stop_above=0.2)
    assert "raises at 21 of the 100 rollouts of step 3" in str(stopped.value)
    assert "verify.max_raised_rate" in str(stopped.value)
    assert "21 x the floor: at this answer the verifier raises ValueError" in str(stopped.value)
