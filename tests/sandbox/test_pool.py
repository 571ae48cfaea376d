"""The pool's threads outlive whatever goes wrong in them: who waits hears of it, and the next call is served."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest

from grpo_core import ConfigError, Outcome, Program
from grpo_sandbox.jail import Jail, JailLostError
from grpo_sandbox.pool import JailPool

PROGRAM = Program("def f(x): return x", "f", [(1,)])


def asked(pool: JailPool) -> Sequence[Sequence[Outcome]]:
    """Ten seconds are enough for what would otherwise wait for ever."""
    return asyncio.run(asyncio.wait_for(pool.run([PROGRAM]), 10))


def failing(error: Exception) -> Callable[[], Jail]:
    def start() -> Jail:
        raise error

    return start


def test_a_failure_that_nobody_foresaw_reaches_whoever_waits_and_the_next_one_too() -> None:
    pool = JailPool(failing(MemoryError("no room for a jail")), size=1)
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room for a jail"):
            asked(pool)
    asyncio.run(pool.close())


def test_a_call_that_is_cancelled_as_its_outcome_comes_costs_no_later_call_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LastMoment(Future[Outcome]):
        def set_result(self, result: Outcome) -> None:
            self.cancel()
            super().set_result(result)

    monkeypatch.setattr("grpo_sandbox.pool.Future", LastMoment)
    pool = JailPool(failing(JailLostError("no jail")), size=1, patience_seconds=0.3)
    for _ in range(2):
        outcome = asked(pool)[0][0]
        assert (outcome.status, "no jail" in outcome.error) == ("infra_error", True)
    asyncio.run(pool.close())


def test_a_pool_without_jails_in_which_nothing_would_ever_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"jails is -3; at least 1"):
        JailPool(failing(JailLostError("no jail")), size=-3)


async def test_a_caller_who_gave_up_leaves_no_work_that_others_would_wait_for() -> None:
    begun, under_way, go_on = [], threading.Event(), threading.Event()

    def start() -> Jail:
        begun.append(len(begun))
        under_way.set()
        go_on.wait(10)
        raise MemoryError("no room for a jail")

    pool = JailPool(start, size=1)
    ten = asyncio.create_task(
        pool.run([replace(PROGRAM, inputs=[(number,) for number in range(10)])] * 2)
    )
    await asyncio.to_thread(under_way.wait)
    ten.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ten
    go_on.set()
    with pytest.raises(MemoryError):
        await pool.run([PROGRAM])
    await pool.close()
    assert len(begun) == 2


def test_a_thread_that_could_not_be_started_is_not_counted_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = JailPool(failing(JailLostError("no jail")), size=1, patience_seconds=0.3)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            asked(pool)
    assert asked(pool)[0][0].status == "infra_error"
    asyncio.run(pool.close())
