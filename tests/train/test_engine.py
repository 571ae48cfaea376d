"""The built-in sampler as a service: requests that come and go, and computations that follow one another."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from grpo_core.config.settings import SamplingConfig
from grpo_core.engine.compute.thread import ComputeThread
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.errors import RunStoppedError
from grpo_core.protocol.sampler import Completion, Request, SamplingParams

from .arrange import sampled, tiny_policy
from .test_sampler import prompts, requests_for


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that engines compute."""
    found: list[int] = []
    compute = Engine._compute

    def counted(engine: Engine, batch: object) -> None:
        found.append(len(batch.requests))  # type: ignore[attr-defined]
        compute(engine, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "_compute", counted)
    return found


def test_requests_with_other_parameters_are_a_batch_of_their_own(policy, sizes):
    plain = requests_for(prompts(2), 2)
    greedy = [replace(request, params=SamplingParams(temperature=0.0)) for request in plain[:3]]

    async def together() -> list[Completion]:
        engine = Engine(policy)
        return await asyncio.gather(*map(engine.generate, [*plain[:2], *greedy, *plain[2:]]))

    completions = asyncio.run(together())
    assert sizes == [4, 3]
    expected = [*sampled(policy, plain)[:2], *sampled(policy, plain[:3], temperature=0.0)]
    assert [c.token_ids for c in completions[:5]] == [c.token_ids for c in expected]


async def test_a_request_that_comes_while_others_are_decoded_is_computed_next(policy, sizes):
    """One that is given up while it waits is not computed at all."""
    first, second, given_up, late = requests_for(prompts(4), 1, length=60)
    engine = Engine(policy)
    running = [asyncio.create_task(engine.generate(request)) for request in (first, second)]
    await asyncio.sleep(0.005)
    waiting = [asyncio.create_task(engine.generate(request)) for request in (given_up, late)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(*running, *waiting, return_exceptions=True)
    assert waiting[0].cancelled()
    assert waiting[1].result().token_ids
    assert sizes == [2, 1]


def test_a_request_that_is_given_up_costs_the_others_nothing():
    policy = tiny_policy()
    policy.end_ids = ()  # so that all are long
    requests = requests_for(prompts(4), 1, length=100)
    expected = sampled(policy, requests)

    async def one_given_up() -> list[Any]:
        engine = Engine(policy)
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await asyncio.sleep(0.03)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(one_given_up())
    assert isinstance(found[1], asyncio.CancelledError)
    for place in (0, 2, 3):
        assert found[place].token_ids == expected[place].token_ids


async def test_logits_that_are_not_finite_reach_every_caller_and_the_engine_goes_on():
    policy = tiny_policy()
    requests = requests_for(prompts(2), 2)
    head = policy.model.get_output_embeddings().weight.detach()
    before = head.clone()
    engine = Engine(policy)
    head.fill_(float("nan"))
    outcomes = await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)
    assert all(isinstance(outcome, RunStoppedError) for outcome in outcomes)
    head.copy_(before)
    assert all(c.token_ids for c in await asyncio.gather(*map(engine.generate, requests)))


def test_a_request_without_numbers_is_answered_with_nothing(policy):
    request = Request(prompts(1)[0], ())
    assert sampled(policy, [request, *requests_for(prompts(1), 1)])[0] == Completion()
    assert SamplingConfig(temperature=0.7).params(0.0) == SamplingParams(temperature=0.0)


async def test_computations_follow_one_another_in_one_thread_while_the_loop_goes_on():
    thread = ComputeThread(torch.device("cpu"))
    names: list[str] = []

    def compute() -> int:
        names.append(threading.current_thread().name)
        time.sleep(0.1)
        return len(names)

    computing = [asyncio.ensure_future(thread.run(compute)) for _ in range(2)]
    ticks = 0
    while not computing[1].done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert [task.result() for task in computing] == [1, 2]
    assert ticks >= 10
    assert len(set(names)) == 1
    assert names[0] != threading.main_thread().name


async def test_a_caller_that_is_cancelled_waits_for_the_end_of_its_computation():
    thread = ComputeThread(torch.device("cpu"))
    steps: list[str] = []

    def compute() -> None:
        steps.append("began")
        time.sleep(0.2)
        steps.append("ended")

    task = asyncio.create_task(thread.run(compute))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["began", "ended"]


async def test_who_has_all_completions_finds_the_weights_restored(monkeypatch):
    policy = tiny_policy()
    merged = policy.merged

    @contextmanager
    def slowly_restored() -> Iterator[None]:
        with merged():
            yield
            time.sleep(0.2)

    monkeypatch.setattr(policy, "merged", slowly_restored)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    engine = Engine(policy)
    await asyncio.gather(*map(engine.generate, requests_for(prompts(3), 2)))
    assert policy.trainable()
    assert all(torch.equal(before[name], p) for name, p in policy.model.named_parameters())


def arriving(policy: Policy, pauses: Sequence[float], **limits: float) -> None:
    """Send a request after each of these pauses, in seconds."""
    requests = requests_for(prompts(len(pauses)), 1)

    async def send() -> None:
        engine = Engine(policy, SamplingConfig(**limits))  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            for request, pause in zip(requests, pauses, strict=True):
                await asyncio.sleep(pause)
                tasks.create_task(engine.generate(request))

    asyncio.run(send())


def test_a_batch_waits_for_requests_that_arrive_a_little_later(policy, sizes):
    arriving(policy, [0.0] + [0.01] * 5, gather_ms=200)
    assert sizes == [6]


def test_a_batch_does_not_wait_for_ever(policy, sizes):
    arriving(policy, [0.0] + [0.06] * 20, gather_ms=100)  # for a second at most
    assert sum(sizes) == 21
    assert sizes[0] < 21


async def test_clients_that_answer_a_batch_at_once_are_a_batch_again(policy, sizes):
    """The first to come back does not begin the next batch without the others."""
    requests = requests_for(prompts(8), 1)

    async def client(engine: Engine, number: int) -> None:
        for _ in range(3):
            await engine.generate(requests[number])
            await asyncio.sleep(0.001 * number)

    engine = Engine(policy, SamplingConfig(gather_ms=50))
    await asyncio.gather(*(client(engine, number) for number in range(8)))
    assert sizes == [8, 8, 8]
