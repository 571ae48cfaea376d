"""Attempts are judged while others are generated, and nothing is left under way when something fails."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core import Group, Reward, Rollout, Task, Verdict
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.errors import RunStoppedError
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.train.trainer import Trainer

from .arrange import tiny_policy
from .letters import Letters
from .samplers import Copyless
from .short_runs import QUICK, make
from .test_sampler import prompts, requests_for


class Judge(Letters):
    """Asynchronous. It remembers how many completions the sampler still owed when each attempt came to it."""

    def __init__(self) -> None:
        super().__init__()
        self.owed: list[int] = []
        self.sampler: Late | None = None
        self.cancelled = 0

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        assert self.sampler is not None
        self.owed.append(self.sampler.owed)
        try:
            await asyncio.sleep(30 if self.sampler.fails else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Verdict({"share": Reward(len(rollout.text) / 100)})


class Stateful(Judge):
    stateful = True


class Comparing(Judge):
    async def verify_batch(self, groups: Sequence[Group[str]]) -> list[list[Verdict]]:
        each = [[self.averify(group.task, r) for r in group.rollouts] for group in groups]
        return [[await verdict for verdict in verdicts] for verdicts in each]


class Late(Copyless):
    """The built-in engine, whose completions arrive one by one, and which breaks after half of them if it `fails`."""

    def __init__(self, engine: Engine, *, fails: bool = False) -> None:
        self.engine, self.fails, self.owed, self.asked = engine, fails, 0, 0

    async def generate(self, request: Request) -> Completion:
        self.owed, self.asked = self.owed + 1, self.asked + 1
        place = self.asked
        completion = await self.engine.generate(request)
        await asyncio.sleep(0.1 + 0.02 * place)
        self.owed -= 1
        if self.fails and self.owed <= self.asked / 2:
            raise RunStoppedError("the sampler broke")
        return completion


def trainer(
    settings: dict[str, Any], folder: Path, env: Judge, *, fails: bool = False, **more: Any
) -> Trainer:
    policy = tiny_policy()
    env.sampler = Late(Engine(policy), fails=fails)
    changes = {**QUICK, "steps": 1, "verify.cache": "off", **more}
    return make(settings, folder, changes, env=env, policy=policy, sampler=env.sampler)


def test_an_attempt_is_judged_while_others_are_generated(settings, tmp_path):
    trainer(settings, tmp_path / "run", env := Judge()).run()
    assert env.owed == sorted(env.owed, reverse=True)
    assert len(set(env.owed)) > 12  # most came while others were still owed


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "more"), [(Judge, {"verify.overlap": False}), (Stateful, {}), (Comparing, {})]
)
def test_what_cannot_be_judged_alone_waits(settings, tmp_path, kind, more):
    trainer(settings, tmp_path / "run", env := kind(), **more).run()
    assert env.owed == [0] * 24


async def test_a_sampler_that_fails_leaves_no_verdict_under_way(settings, tmp_path):
    env = Judge()
    with pytest.raises(RunStoppedError, match="the sampler broke"):
        await trainer(settings, tmp_path / "run", env, fails=True).arun()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert env.cancelled == len(env.owed) >= 11


@pytest.mark.slow
async def test_the_event_loop_goes_on_while_tokens_are_drawn_and_a_cancelled_rollout_puts_the_weights_back():
    policy = tiny_policy()
    policy.end_ids = ()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    requests = requests_for(prompts(5), 4, length=500)
    sampled = asyncio.gather(*map(Engine(policy).generate, requests))
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert not sampled.done()
    sampled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sampled
    assert all(torch.equal(before[name], p) for name, p in policy.model.named_parameters())
