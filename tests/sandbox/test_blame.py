"""The rule that decides between a program and the infrastructure, on jails that do as a script says."""

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from grpo_core import Limits, Outcome, Program, current_call
from grpo_core.calls.deadline import within
from grpo_sandbox.clock import KeptSeconds
from grpo_sandbox.jail import JailLostError
from grpo_sandbox.pool import PROBE_SOURCE, JailPool

KILLED = {"status": "signal", "exit": signal.SIGKILL}
WAITED = {"status": "timeout_wall", "exit": signal.SIGKILL, "wall_seconds": 1.0}
WORKED = {"status": "timeout_cpu", "exit": signal.SIGKILL}
OK = {"status": "claimed", "exit": 0}
Answer = Callable[[str, int], dict[str, Any]]
"""What a call of a source on an input gives: the fields of a reply that matter, or an exception."""


class Script:
    """A pool whose jails answer by `answer`, and what was asked of them, in order."""

    def __init__(self, answer: Answer, *, size: int = 1, patience_seconds: float = 5.0) -> None:
        self.answer = answer
        self.calls: list[tuple[str, int]] = []
        self.walls: list[float] = []
        self.jails = 0
        self.pool = JailPool(self._start, size=size, patience_seconds=patience_seconds)

    def run(self, *programs: Program) -> list[Sequence[Outcome]]:
        async def whole() -> list[Sequence[Outcome]]:
            try:
                return list(await asyncio.wait_for(self.pool.run(programs), 30))
            finally:
                await self.pool.close()

        return asyncio.run(whole())

    def _start(self) -> Any:
        self.jails += 1
        return ScriptedJail(self)


class ScriptedJail:
    jobs = 0
    visible = ()
    is_alive = True

    def __init__(self, script: Script) -> None:
        self._script = script
        self.interrupted = threading.Event()
        self.closed = False

    def call(self, source: str, entry: str, arguments: list[Any], limits: Any) -> dict[str, Any]:
        assert not self.closed, "a closed jail was asked"
        self.jobs += 1
        self._script.calls.append((source, arguments[0]))
        self._script.walls.append(limits["wall_seconds"])
        self._script.current = self
        answer = {"result": '{"ok": 2}', **self._script.answer(source, arguments[0])}
        rest = {"stdout": "", "stderr": "", "cpu_seconds": 0.0, "wall_seconds": 0.0, "clean": True}
        rest["kept"] = None
        return {**rest, **answer}

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        self.closed = True


def fails(times: int, answer: dict[str, Any] | Exception) -> Answer:
    """So many calls of the program end with `answer`; all others, and the probes, are fine."""
    left = [times]

    def answered(source: str, x: int) -> dict[str, Any]:
        if source == PROBE_SOURCE or left[0] == 0:
            return OK
        left[0] -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    return answered


PROGRAM = Program("p", "f", [(1,)], Limits(wall_seconds=1))
FAILURES = [KILLED, WAITED, JailLostError("gone")]


@pytest.mark.parametrize("failure", FAILURES, ids=["killed", "waited", "lost"])
def test_five_failures_each_followed_by_a_passing_probe_are_the_programs_own_end(
    failure: Any,
) -> None:
    script = Script(fails(100, failure))
    ((outcome,),) = script.run(PROGRAM)
    assert outcome.status == ("timeout_wall" if failure is WAITED else "signal")
    assert outcome.suspected
    assert [source for source, _ in script.calls] == ["p", PROBE_SOURCE] * 5


@pytest.mark.parametrize(
    ("waited", "unclear", "tries", "stretch"),
    [(0.05, 0.04, 1, 1), (0.5, 0.0, 5, 3), (0.99, 0.0, 5, 20), (0.0, 1.0, 5, 3)],
    ids=["waits by itself", "half of the time", "hardly gets a core", "is stopped"],
)
def test_a_timeout_is_the_programs_at_once_unless_it_was_kept_from_running(
    waited: float, unclear: float, tries: int, stretch: float
) -> None:
    script = Script(fails(100, {**WAITED, "kept": KeptSeconds(waited, unclear)}))
    ((outcome,),) = script.run(PROGRAM)
    assert (outcome.status, outcome.wall_seconds) == ("timeout_wall", 1.0)
    assert "timeout: it took longer than its 1 s" in outcome.error
    assert outcome.suspected == (tries > 1)
    walls = [
        wall for (source, _), wall in zip(script.calls, script.walls, strict=True) if source == "p"
    ]
    assert walls == [1.0, *[pytest.approx(stretch)] * (tries - 1)]


def test_a_program_that_has_had_its_time_when_it_ran_again_is_late() -> None:
    replies = iter([(1.0, 0.5), (3.0, 1.4)])

    def answer(source: str, x: int) -> dict[str, Any]:
        if source == PROBE_SOURCE:
            return OK
        wall, waited = next(replies)
        return {**WAITED, "wall_seconds": wall, "kept": KeptSeconds(waited, 0.0)}

    ((outcome,),) = Script(answer).run(PROGRAM)
    assert (outcome.status, outcome.wall_seconds, outcome.suspected) == ("timeout_wall", 3.0, False)


@pytest.mark.parametrize("failure", FAILURES, ids=["killed", "waited", "lost"])
@pytest.mark.parametrize("times", [1, 4])
def test_one_success_clears_a_program(failure: Any, times: int) -> None:
    script = Script(fails(times, failure))
    ((outcome,),) = script.run(PROGRAM)
    assert (outcome.status, outcome.value, outcome.suspected) == ("ok", 2, False)
    assert [source for source, _ in script.calls] == ["p", PROBE_SOURCE] * times + ["p"]


def test_a_lost_jail_does_not_excuse_a_program_that_ends_itself_by_a_signal() -> None:
    """One lost supervisor and one SIGKILL of itself were an error, which left the program out of the loss."""
    failures = iter([JailLostError("gone")])

    def answer(source: str, number: int) -> dict[str, Any]:
        if source == PROBE_SOURCE:
            return OK
        for failure in failures:
            raise failure
        return KILLED

    ((outcome,),) = Script(answer).run(PROGRAM)
    assert (outcome.status, outcome.error is None) == ("signal", False)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        ({"status": "signal", "exit": signal.SIGSEGV}, "signal"),
        ({"status": "signal", "exit": signal.SIGABRT}, "signal"),
        ({**WAITED, "cpu_seconds": 1.5}, "timeout_wall"),
        (JailLostError("gone", out_of_memory=True), "oom"),
    ],
    ids=["a crash", "an abort", "a wait with much work", "the end of its own memory"],
)
def test_what_comes_of_the_program_is_its_own_at_once(failure: Any, status: str) -> None:
    script = Script(fails(100, failure))
    ((outcome,),) = script.run(PROGRAM)
    assert (outcome.status, outcome.suspected, len(script.calls)) == (status, False, 1)


def away(source: str, x: int) -> dict[str, Any]:
    raise JailLostError("the machine is away")


def test_an_error_needs_a_probe_that_keeps_failing() -> None:
    script = Script(away, patience_seconds=0.5)
    ((outcome,),) = script.run(PROGRAM)
    assert outcome.status == "infra_error"
    assert "the machine is away" in outcome.error
    assert [source for source, _ in script.calls].count("p") == 1


def test_an_outage_is_waited_for_and_costs_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    away_until = time.monotonic() + 1.5

    def answer(source: str, x: int) -> dict[str, Any]:
        return away(source, x) if time.monotonic() < away_until else OK

    script = Script(answer)
    ((outcome,),) = script.run(PROGRAM)
    assert (outcome.status, outcome.suspected) == ("ok", False)
    assert [source for source, _ in script.calls].count("p") == 2
    gone, back = [record.getMessage() for record in caplog.records]
    assert gone.startswith("the sandbox is unavailab")
    assert back.startswith("the sandbox is available")


def test_no_probe_runs_while_a_suspect_runs() -> None:
    """Three programs that die again and again, four jails: the probes never overlap with any of their further tries."""
    running, tries = Counter[str](), Counter[str]()
    overlaps: list[str] = []
    lock = threading.Lock()

    def answer(source: str, x: int) -> dict[str, Any]:
        if source == PROBE_SOURCE:
            for _ in range(10):
                with lock:
                    overlaps.extend(name for name in running if running[name] and tries[name] > 1)
                time.sleep(0.005)
            return OK
        with lock:
            running[source] += 1
            tries[source] += 1
        time.sleep(0.03 if source != "q" else 0.1)
        with lock:
            running[source] -= 1
        return KILLED

    script = Script(answer, size=4)
    rows = script.run(*[Program(name, "f", [(1,)]) for name in ("p", "q", "r")])
    assert overlaps == []
    assert [row[0].status for row in rows] == ["signal"] * 3
    assert tries == {"p": 5, "q": 5, "r": 5}


def test_other_calls_of_a_suspect_are_ended_and_not_held_against_it() -> None:
    """The second input waits until it is interrupted; then it has its outcome like any other."""
    script: Script
    first_died = threading.Event()

    def answer(source: str, x: int) -> dict[str, Any]:
        if source == PROBE_SOURCE:
            return OK
        seen = script.calls.count(("p", x))
        if x == 1 and seen == 1:
            begun.wait(5)
            raise JailLostError("the first input's jail is gone")
        if x == 2 and seen == 1:
            jail = script.current
            begun.set()
            assert jail.interrupted.wait(5)
            first_died.set()
            raise JailLostError("interrupted")
        return OK

    begun = threading.Event()
    script = Script(answer, size=2)
    (row,) = script.run(Program("p", "f", [(1,), (2,)]))
    assert [outcome.status for outcome in row] == ["ok", "ok"]
    assert first_died.is_set()


def test_jails_that_do_not_start_while_the_probes_do_are_no_programs_fault() -> None:
    script = Script(lambda source, x: OK)
    probe, make = script.pool._gate._probe, script.pool._make

    def fail() -> Any:
        raise JailLostError("no room for another jail")

    def probed() -> str:
        script.pool._make = make
        try:
            return probe()
        finally:
            script.pool._make = fail
            script.pool._spare.clear()

    script.pool._make, script.pool._gate._probe = fail, probed
    ((outcome,),) = script.run(PROGRAM)
    assert (outcome.status, outcome.error) == (
        "infra_error",
        "10 jails could not be started: no room for another jail",
    )


@pytest.mark.parametrize(
    ("failure", "statuses", "reason"),
    [
        (WAITED, ["ok"], "not run: the program had ended badly on an earlier input"),
        (WORKED, ["ok", "timeout_cpu"] * 2, "not run: it had run out of time on 2 inputs"),
    ],
    ids=["waits", "uses up its processor time twice"],
)
@pytest.mark.parametrize("jails", [1, 3])
def test_a_program_that_fails_on_some_inputs_is_given_up_whatever_the_number_of_jails(
    failure: dict[str, Any], statuses: list[str], reason: str, jails: int
) -> None:
    def answer(source: str, x: int) -> dict[str, Any]:
        if source != "p" or x not in (1, 3):
            return OK
        time.sleep(0.05)  # later inputs have been run by then, in other jails
        return failure

    (row,) = Script(answer, size=jails).run(Program("p", "f", [(i,) for i in range(20)]))
    rest = len(row) - len(statuses)
    assert [outcome.status for outcome in row] == [*statuses, *["timeout_wall"] * rest]
    assert row[-1].error.startswith(reason)


def test_a_program_that_sleeps_just_under_its_limit_has_a_budget_for_all_its_inputs() -> None:
    script = Script(fails(0, {}))
    script.answer = lambda source, x: {**OK, "wall_seconds": 0.9}
    (row,) = script.run(Program("p", "f", [(i,) for i in range(24)], Limits(wall_seconds=1)))
    # Six times its limit.
    assert [outcome.status for outcome in row] == ["ok"] * 7 + ["timeout_wall"] * 17
    assert row[-1].error == "not run: the program had used up its 6 s for all inputs"
    assert row[-1].suspected
    limits = Limits(wall_seconds=1, total_seconds=2)
    (row,) = Script(script.answer).run(Program("p", "f", [(i,) for i in range(24)], limits))
    assert [outcome.status for outcome in row] == ["ok"] * 3 + ["timeout_wall"] * 21


def test_the_time_in_a_sandbox_does_not_count_against_a_verdicts_deadline() -> None:
    """Whatever a program does, it cannot use up the time of its verdict and so be left out of the loss."""

    def answer(source: str, x: int) -> dict[str, Any]:
        time.sleep(0.3)
        return OK

    script = Script(answer)

    async def verdict() -> tuple[list[Outcome], float]:
        (row,) = await script.pool.run([Program("p", "f", [(i,) for i in range(5)])])
        return list(row), current_call().left()

    async def whole() -> tuple[list[Outcome], float]:
        try:
            return await within(verdict(), 0.5)
        finally:
            await script.pool.close()

    row, left = asyncio.run(whole())
    assert [outcome.status for outcome in row] == ["ok"] * 5
    assert 0.3 < left <= 0.5


async def test_a_closed_pool_sends_those_away_who_wait_for_an_outage_to_end() -> None:
    script = Script(away, patience_seconds=1000)
    waiting = asyncio.ensure_future(script.pool.run([PROGRAM]))
    await asyncio.sleep(0.5)
    started = time.monotonic()
    await script.pool.close()
    assert (await waiting)[0][0].status == "infra_error"
    assert time.monotonic() - started < 3
