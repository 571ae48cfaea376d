"""Rollouts of later steps while a step updates: what is sampled by which weights, what is learned from it, and what a kill leaves."""

import asyncio
import functools
import itertools
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from grpo_core import Rollout, Task, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.ranks import Ranks
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.errors import ConfigError, RunStoppedError
from grpo_core.protocol.events import BatchCollected
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train import grpo as grpo_module
from grpo_core.train.build import build_method
from grpo_core.train.rollout.queue import RolloutQueue, Turn
from grpo_core.train.run.checkpoint import checkpoints
from grpo_core.train.run.stopping import Stopping
from grpo_core.train.trainer import Trainer
from grpo_core.train.update.updater import Updater
from grpo_core.verify.sources import Sources

from .arrange import random_rollouts, run_config, tiny_policy
from .copying import Copying
from .guessing import Guessing
from .killing import killed
from .letters import Letters
from .short_runs import run_until, steps_of, tiny_settings
from .test_segments import plain_logprobs

P, G = 3, 4


class Patient(Letters):
    """Its verdicts, but for those of the first step, wait for an update to be in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.updating, self.judged = threading.Event(), threading.Event()
        self.verdicts = 0

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        self.verdicts += 1
        if self.verdicts > P * G:
            await asyncio.to_thread(self.updating.wait, 20)
            self.judged.set()
        return self.verify(task, rollout)


class Trusted(Guessing):
    """A dialogue that is judged in this process."""

    trusted = True


class Recorded:
    """A run whose batches, and weights after each step, are kept."""

    def __init__(
        self, folder: Path, env: Any = None, copying: bool = False, name: str = "run", **more: Any
    ) -> None:
        size = {"steps": 6, "prompts_per_step": P, "group_size": G, "eval": {"tasks": 4}}
        learns = {"optimizer": {"lr": 0.02}, "advantage": {}}
        config = build_config([{**tiny_settings(folder), **size, **learns, **more}])
        self.sampler = Copying(config) if copying else None
        self.folder = folder / name
        self.trainer = Trainer(config, env or Letters(), folder=self.folder, sampler=self.sampler)
        self.batches: list[BatchCollected] = []
        self.weights = [self._present()]
        method = self.trainer.method
        collect, update = method.collect, method.update

        async def collected(*arguments: Any) -> Any:
            batch, rows = await collect(*arguments)
            self.batches.append(batch)
            return batch, rows

        async def updated(*arguments: Any) -> dict[str, float]:
            metrics = await update(*arguments)
            self.weights.append(self._present())
            return metrics

        method.collect, method.update = collected, updated  # type: ignore[method-assign]

    def _present(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self.trainer.actor.policy.trainable()}

    def run(self) -> list[dict[str, Any]]:
        self.trainer.run()
        return steps_of(self.folder)

    def before_updates(self, act: Callable[[], Any]) -> list[Any]:
        """Call `act` before each computation of an update; return the list of what it returns."""
        updater, returned = self.trainer.method.updater, list[Any]()
        update = updater.update

        def updated(steps: Any) -> dict[str, float]:
            returned.append(act())
            return update(steps)

        updater.update = updated  # type: ignore[method-assign]
        return returned


def trained_indices(folder: Path) -> dict[int, list[int]]:
    """The index of each prompt of each step, in the order of the log; each once for all its completions."""
    found: dict[int, Counter[int]] = {}
    for line in RunFolder(folder).rollout_lines():
        if line["key"]["split"] == "train":
            found.setdefault(line["step"], Counter())[line["key"]["index"]] += 1
    assert all(count == G for counts in found.values() for count in counts.values())
    return {step: list(counts) for step, counts in found.items()}


def in_order(steps: int) -> dict[int, list[int]]:
    return {step: list(range(P * (step - 1), P * step)) for step in range(1, steps + 1)}


# --- the loss


def test_the_share_of_tokens_whose_importance_is_cut_is_told():
    """What an update makes of the weights, the oracles of test_algorithm.py and test_segments.py compute."""
    config = run_config(loss={"tis_cap": 1.1, "tis_floor": 0.9})
    policy = tiny_policy()
    segments = [r.segments[0] for group in random_rollouts(P, G, seed=5) for r in group]
    weights = [
        math.exp(now - drawn)
        for segment in segments
        for now, drawn, is_trained in zip(
            plain_logprobs(policy, segment).tolist(),
            segment.logprobs,
            segment.trainable,
            strict=True,
        )
        if is_trained
    ]
    cut = [not 0.9 <= weight <= 1.1 for weight in weights]
    assert 0 < sum(cut) < len(cut)
    values = Updater(policy, config, steps=1).update([[Row(s, 0.5, 1.0) for s in segments]])
    assert values["sampling/truncated"] == pytest.approx(fmean(cut))


# --- what is sampled, and by which weights


def test_without_staleness_no_queue_exists(tmp_path, monkeypatch):
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a queue was made")

    monkeypatch.setattr(grpo_module, "RolloutQueue", refused)
    recorded = Recorded(tmp_path, steps=3, eval={"tasks": 0})
    lines = recorded.run()
    assert recorded.trainer.config.loss.tis_cap is None
    new = ("staleness/", "sampling/truncated", "time/trainer_wait", "time/sampler_wait")
    assert not [name for line in lines for name in line if name.startswith(new)]
    versions = [batch.groups[0].rollouts[0].versions for batch in recorded.batches]
    assert versions == [(0,), (1,), (2,)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("copying", [False, True], ids=["builtin", "a copy of the weights"])
@pytest.mark.parametrize("env", [Letters, Trusted])
def test_groups_are_of_one_version_within_the_bound_and_their_log_probs_are_its(
    tmp_path, env, copying
):
    bound = 2
    more = {"pipeline": {"max_staleness": bound}, "eval": {"tasks": 2, "every": 2}}
    recorded = Recorded(tmp_path, env(), copying=copying, **more)
    lines = recorded.run()
    policy = recorded.trainer.actor.policy
    ages = []
    placed = [(batch.step, group) for batch in recorded.batches for group in batch.groups]
    for step, group in placed:
        (version,) = {v for rollout in group.rollouts for v in rollout.versions}
        ages.append(step - 1 - version)
        with torch.no_grad():
            for name, parameter in policy.trainable():
                parameter.copy_(recorded.weights[version][name])
            for rollout in group.rollouts:
                drawn = torch.tensor(rollout.logprobs) * torch.tensor(rollout.trainable)
                logprob_T = plain_logprobs(policy, rollout) * torch.tensor(rollout.trainable)
                torch.testing.assert_close(logprob_T, drawn, rtol=0, atol=1e-4)
    assert 0 < max(ages) <= bound
    assert trained_indices(recorded.folder) == in_order(6)
    assert max(line["staleness/max"] for line in lines) == max(ages)
    assert all(line["staleness/mean"] <= line["staleness/max"] <= bound for line in lines)
    assert recorded.trainer.config.loss.tis_cap == 2.0
    for line in lines:
        assert 0 <= line["sampling/truncated"] <= 1
        assert min(line["time/trainer_wait"], line["time/sampler_wait"]) >= 0
    evaluated = {
        (line["step"], line["versions"][0])
        for line in recorded.trainer.folder.rollout_lines()
        if line["key"]["split"] == "eval"
    }
    assert evaluated == {(step, step) for step in (0, 2, 4, 6)}
    if recorded.sampler is not None:
        assert recorded.sampler.rests == 0


BRIEF: dict[str, Any] = {
    "steps": 3,
    "eval": {"tasks": 0},
    "pipeline": {"max_staleness": 1},
    "alarms": {"every": 0},  # which ask, and whose canaries wait, before an update
}


@pytest.mark.slow
@pytest.mark.parametrize("copying", [False, True], ids=["builtin", "a copy of the weights"])
def test_only_a_sampler_with_weights_of_its_own_samples_during_an_update(tmp_path, copying):
    recorded = Recorded(tmp_path, copying=copying, **BRIEF)
    actor = recorded.trainer.actor
    generate = actor.sampler.generate
    updating, sampled = threading.Event(), threading.Event()

    async def generated(request: Any) -> Any:
        completion = await generate(request)
        if updating.is_set():
            sampled.set()
        return completion

    def wait() -> bool:
        updating.set()
        is_sampled = sampled.wait(20 if copying else 0.3)
        updating.clear()
        return is_sampled

    actor.sampler.generate = generated  # type: ignore[method-assign]
    overlaps = recorded.before_updates(wait)
    recorded.run()
    assert overlaps[0] is copying


def test_verification_overlaps_with_updates_of_the_builtin_sampler(tmp_path):
    env = Patient()
    recorded = Recorded(tmp_path, env, **{**BRIEF, "steps": 2})

    def wait() -> bool:
        env.updating.set()
        return env.judged.wait(20)

    overlaps = recorded.before_updates(wait)
    recorded.run()
    assert overlaps[0]


@pytest.mark.slow
def test_refills_and_a_curriculum_work_and_no_prompt_is_left_out(tmp_path):
    more = {"steps": 8, "eval": {"tasks": 0}, "pipeline": {"max_staleness": 2}, "level": 0.5}
    adds = {"sampling": {"refills": 2}, "curriculum": {"enabled": True, "attempts": 8}}
    recorded = Recorded(tmp_path, **more, **adds)
    lines = recorded.run()
    indices = list(itertools.chain.from_iterable(trained_indices(recorded.folder).values()))
    assert indices == list(range(len(indices)))
    assert any(line["groups/refilled"] > 0 for line in lines)
    assert lines[-1]["curriculum/level"] < lines[0]["curriculum/level"] == 0.5
    assert recorded.trainer.method.stream.position == len(indices)


# --- the queue


class Played:
    """A queue with rollouts and updates of random length; notes what happens."""

    def __init__(self, *, bound: int, total: int, seed: int, early: bool) -> None:
        self.rng, self.total, self.early = random.Random(seed), total, early
        self.version = self.open = 0
        self.steps: list[int] = []
        self.queue: RolloutQueue[tuple[int, int, int]] = RolloutQueue(
            self.roll_out, max_staleness=bound, total=total
        )

    async def roll_out(self, turn: Turn) -> tuple[int, int, int]:
        self.steps.append(turn.step)
        assert self.open == 0, "only one step's rollouts are sampled at a time"
        self.open = 1
        version = self.version
        turn.take_weights()
        await asyncio.sleep(self.rng.uniform(0, 0.004))
        self.open = 0
        end = turn.start + self.rng.randint(1, 4)
        turn.pass_on(end)
        if self.early:
            await asyncio.sleep(self.rng.uniform(0, 0.01))
        return turn.start, end, version

    async def train(self) -> list[int]:
        ages, position = [], 0
        for step in range(1, self.total + 1):
            start, end, version = await self.queue.next(step, start=position)
            assert start == position
            position = end
            ages.append(step - 1 - version)
            await self.queue.weights_taken()
            await asyncio.sleep(self.rng.uniform(0, 0.02 if step > 15 else 0.004))
            self.version = step
            self.queue.trained(step)
        await self.queue.close()
        return ages


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bound", [1, 2, 4])
@pytest.mark.parametrize("early", [False, True])
def test_what_is_admitted_is_never_too_old_and_comes_in_order(bound, early):
    oldest = 0
    for seed in range(3):
        played = Played(bound=bound, total=30, seed=seed, early=early)
        ages = asyncio.run(played.train())
        assert max(ages) <= bound
        assert played.steps == list(range(1, 31))
        oldest = max(oldest, *ages)
    assert oldest == bound  # the bound is used


async def test_a_failure_belongs_to_its_step_and_ends_what_would_follow():
    begun: list[int] = []

    async def roll_out(turn: Turn) -> int:
        begun.append(turn.step)
        turn.take_weights()
        if turn.step == 3:
            raise RunStoppedError("the sampler is gone")
        turn.pass_on(turn.start + 1)
        return turn.step

    queue = RolloutQueue(roll_out, max_staleness=4, total=9)
    assert [await queue.next(step, start=0) for step in (1, 2)] == [1, 2]
    with pytest.raises(RunStoppedError, match="the sampler is gone"):
        await queue.next(3, start=0)
    await queue.weights_taken()
    await queue.close()
    assert len(asyncio.all_tasks()) == 1
    assert begun == [1, 2, 3]


# --- ends


@pytest.mark.slow
def test_a_stop_comes_after_the_step_and_the_run_goes_on_with_the_next_prompts(tmp_path):
    recorded = Recorded(tmp_path, copying=True, pipeline={"max_staleness": 4}, steps=7)
    trainer = run_until(recorded.trainer, 3)
    assert trainer.done == 3
    assert "saved step-000003" in str(trainer.end)
    assert trainer.method.stream.position == 3 * P
    trainer.run()
    assert trainer.folder.finished
    assert trained_indices(recorded.folder) == in_order(7)


async def test_a_failed_step_of_the_pipeline_leaves_a_checkpoint_and_no_task(tmp_path):
    more = {"steps": 4, "eval": {"tasks": 0}, "alarms": {"enabled": False}}
    recorded = Recorded(tmp_path, pipeline={"max_staleness": 2}, **more)
    trainer, calls = recorded.trainer, []
    generate = trainer.actor.sampler.generate

    async def failing(request: Any) -> Any:
        calls.append(request)
        if len(calls) > 2 * P * G:
            raise RunStoppedError("the sampler is gone")
        return await generate(request)

    trainer.actor.sampler.generate = failing  # type: ignore[method-assign]
    with pytest.raises(RunStoppedError, match="the sampler is gone"):
        await trainer.arun()
    assert len(asyncio.all_tasks()) == 1
    assert 0 < trainer.done < 3
    newest = checkpoints(recorded.folder / "checkpoints")[-1]
    assert newest.name == f"step-{trainer.done:06d}"
    trainer.actor.sampler.generate = generate  # type: ignore[method-assign]
    recorded.run()
    assert trained_indices(recorded.folder) == in_order(4)


@pytest.mark.slow
def test_a_killed_run_samples_again_what_was_open_and_loses_no_prompt(tmp_path):
    folder = tmp_path / "run"
    more = {"steps": 4, "eval": {"tasks": 0}, "checkpoint": {"every": 1, "keep": 9}}
    with killed(folder, step=3) as observer:
        recorded = Recorded(tmp_path, pipeline={"max_staleness": 2}, **more)
        recorded.trainer.observer.step = observer.step  # type: ignore[method-assign]
        recorded.run()
    again = Trainer.resumed(folder, Letters())
    assert again.done == 2
    again.run()
    assert trained_indices(folder) == in_order(4)
    ages = [line["staleness/max"] for line in steps_of(folder)]
    assert max(ages) <= 2
    assert ages[2] == 0  # it was sampled again, by the weights of the checkpoint


@pytest.mark.heavy
def test_older_rollouts_teach_as_well(tmp_path):
    """Three seeds at each bound, with a trainer that is slower than the sampler, so that rollouts are as old as they may be."""
    scores: dict[int, list[float]] = {}
    print("| max_staleness | seed | before | after | staleness, mean | truncated |")
    size = {"steps": 60, "prompts_per_step": 8, "group_size": 8, "eval": {"tasks": 100}}
    learns = {"optimizer": {"lr": 0.01}, "kl": {"beta": 0.0}}
    for bound, seed in itertools.product((0, 1, 4), range(3)):
        more = {**size, **learns, "seed": seed, "pipeline": {"max_staleness": bound}}
        recorded = Recorded(tmp_path, copying=True, name=f"{bound}-{seed}", **more)
        recorded.before_updates(functools.partial(time.sleep, 0.4 if bound else 0.0))
        lines = recorded.run()
        before, after = (
            line["eval/reward/mean"]
            for line in read_lines(recorded.folder / "metrics.jsonl")
            if line["kind"] == "evaluation"
        )
        age = fmean(line.get("staleness/mean", 0.0) for line in lines)
        cut = fmean(line.get("sampling/truncated") or 0.0 for line in lines)
        print(f"| {bound} | {seed} | {before:.3f} | {after:.3f} | {age:.2f} | {cut:.2%} |")
        assert age >= bound / 2
        scores.setdefault(bound, []).append(after)
    assert min(scores[0]) > 0.9
    for values in scores.values():
        assert fmean(values) >= min(scores[0]) - 0.01


# --- settings


@pytest.mark.parametrize(
    ("staleness", "stops"),
    [({}, True), ({"staleness/max": 0.0}, True), ({"staleness/max": 1.0}, False)],
)
def test_a_gap_that_older_weights_explain_stops_no_run(staleness, stops):
    line = {"step": 1, "sampling/logprob_gap": 3.0, "reward/mean": 0.0, **staleness}
    stopping = Stopping(build_config([{"environment": "letters"}]))
    reasons = [stopping.look(line) for _ in range(5)]
    assert (reasons[-1] is not None) is stops


def test_several_processes_are_refused(tiny_folder):
    # A named type, since there is no second process that could agree on one.
    model = {"name": str(tiny_folder), "dtype": "float32"}
    pipelined = {"environment": "letters", "model": model, "pipeline": {"max_staleness": 1}}
    config, host = build_config([pipelined]), PluginHost()
    ranks = Ranks(meeting_seconds=1.0)
    ranks.size = 2
    sources = Sources.of(config, {"letters": Letters()}, host=host)
    with pytest.raises(ConfigError, match=r"max_staleness=1 needs one process, and this run has 2"):
        build_method(config, sources, ranks=ranks, host=host, observer=Observer())
