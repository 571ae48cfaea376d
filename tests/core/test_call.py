"""What services do to the call that they serve: they stop its clock, and keep its result out of caches."""

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict, current_call
from grpo_core.calls.deadline import DeadlineError, in_thread, within
from grpo_core.verify.engine import Verifier
from grpo_core.verify.judge.cache import VerdictCache


async def waits(*, stopped: float, working: float) -> str:
    with current_call().stopped():
        await asyncio.sleep(stopped)
    await asyncio.sleep(working)
    return "done"


def test_time_beside_it_does() -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineError):
        asyncio.run(within(waits(stopped=0.4, working=10), 0.3))
    assert 0.6 < time.monotonic() - started < 5


def test_the_clocks_of_the_calls_around_stop_too() -> None:
    assert asyncio.run(within(within(waits(stopped=0.6, working=0), 0.4), 0.3)) == "done"


async def test_calls_beside_each_other_have_clocks_of_their_own() -> None:
    calls = within(waits(stopped=0.6, working=0), 0.3), within(waits(stopped=0, working=5), 0.3)
    first, second = await asyncio.gather(*calls, return_exceptions=True)
    assert first == "done"
    assert isinstance(second, DeadlineError)


def test_threads_know_which_call_they_serve() -> None:
    async def asked() -> float:
        return await in_thread(lambda: current_call().left())

    assert 0 < asyncio.run(within(asked(), 5)) <= 5


class Suspicious(Environment[Any]):
    """Asks a service that is not sure of the answer "doubtful"."""

    trusted = True
    deterministic = True
    asked = 0

    def task(self, key: TaskKey) -> Task[Any]:
        return Task(key, "?", None)

    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        type(self).asked += 1
        if rollout.text == "doubtful":
            await asyncio.gather(self._service())
        return Verdict({"reward": Reward(0.0)})

    async def _service(self) -> None:
        current_call().keep_out_of_caches()


class SuspiciousSync(Suspicious):
    """The same with a synchronous verifier, which runs in a thread."""

    averify = Environment.averify

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        type(self).asked += 1
        if rollout.text == "doubtful":
            current_call().keep_out_of_caches()
        return Verdict({"reward": Reward(0.0)})


@pytest.mark.parametrize("environment", [Suspicious, SuspiciousSync])
@pytest.mark.parametrize(("text", "asked"), [("certain", 1), ("doubtful", 2)])
async def test_a_verdict_on_an_answer_that_a_service_suspects_is_never_cached(
    environment: type[Suspicious], text: str, asked: int
) -> None:
    environment.asked = 0
    async with Verifier(environment(), cache=VerdictCache(entries=10)) as verifier:
        task = verifier.env.task(TaskKey("suspicious", "train", 0))
        verdicts = [(await verifier.verify([task], [[Rollout.of(text)]]))[0][0] for _ in range(2)]
    assert environment.asked == asked
    assert [(verdict.scored, verdict.cacheable) for verdict in verdicts] == [
        (True, text == "certain")
    ] * 2


async def idents(count: int) -> set[int]:
    return {await in_thread(threading.get_ident) for _ in range(count)}


async def test_threads_are_used_again_and_one_that_hangs_holds_nothing_up() -> None:
    ended = threading.Event()
    hanging = asyncio.ensure_future(in_thread(ended.wait))
    used = await asyncio.wait_for(idents(50), 10)
    ended.set()
    assert await hanging
    assert len(used) < 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_a_fork_starts_threads_of_its_own() -> None:
    asyncio.run(idents(3))
    child = os.fork()
    if child == 0:
        os._exit(len(asyncio.run(idents(3))) == 0)
    started, ended = time.monotonic(), (0, 0)
    while ended == (0, 0) and time.monotonic() - started < 20:
        time.sleep(0.05)
        ended = os.waitpid(child, os.WNOHANG)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0), "it waits for a thread that the fork does not have"
