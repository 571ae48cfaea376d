"""Random settings of the algorithm: what is accepted takes a finite step and ranks completions rightly, what is refused says so in a line.

`pytest -m heavy tests/train/test_valid_configs.py` tries ten times as many. A real `Grpo` computes advantages and steps of a tiny model;
only its rollouts and verdicts are drawn here, in place of a sampler and an environment.
"""

import asyncio
import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from grpo_core import ConfigError, Group, Reward, Task, Verdict, build_config
from grpo_core.config.config import RunConfig
from grpo_core.config.sizes import with_defaults
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.ranks import Ranks
from grpo_core.train.algorithm.rewards import Rewards
from grpo_core.train.grpo import Grpo
from grpo_core.train.rollout.askable import Askable
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.run.method import Clock
from grpo_core.verify.sources import Sources

from .arrange import random_rollouts, tiny_policy
from .letters import Letters
from .test_advantages import DEFINITIONS, EPS

IN_ORDER = ("grpo", "mean_only", "rloo", "maxrl")
"""Estimators that never reverse two totals of a group."""
CHUNK = 30
"""Accepted configs of one test."""


def draw(rng: random.Random) -> dict[str, Any]:
    """Settings of every kind, most of which go together; each is left out half the time."""
    group_size, prompts = rng.randint(2, 6), rng.randint(1, 4)
    name = rng.choice([*IN_ORDER, "gdpo", "gdpo", "maxk", "passk", "pkpo", "best_minus_second"])
    surrogate = rng.choice(["clip", "clip", "reinforce", "cispo", "sapo"])

    def some(**choices: Any) -> dict[str, Any]:
        return {key: value for key, value in choices.items() if rng.random() < 0.5}

    def seldom(value: Any) -> Any:
        return value if rng.random() < 0.2 else None

    return {
        "environment": "letters",
        "group_size": group_size,
        "prompts_per_step": prompts,
        "model": {"dtype": "float64"},
        "optimizer": some(
            lr=10 ** rng.uniform(-6, -2), max_grad_norm=rng.choice([0.05, 1.0, 100.0])
        ),
        "sampling": some(temperature=rng.uniform(0.5, 1.5), refills=rng.randint(0, 2)),
        "advantage": {
            "name": name,
            **some(
                ddof=rng.randint(0, 1),
                eps=rng.choice([0.0, EPS, EPS, 1e-4]),
                clip=seldom(0.4),
                whiten=rng.random() < 0.3,
                keep=seldom(rng.randint(2, group_size + 1)),
                overlong_buffer=seldom(rng.randint(1, 9)) or 0,
                overlong_weight=rng.uniform(0, 2),
            ),
            **({"k": rng.randint(1, group_size)} if name in ("maxk", "passk", "pkpo") else {}),
        },
        "loss": {
            "name": surrogate,
            **some(
                level=rng.choice(["token", "sequence_mean", "sequence"]),
                anchor=rng.choice(["old", "old", "reference"]),
                clip_low=rng.uniform(0, 1),
                clip_high=rng.uniform(0, 1),
                dual_clip=seldom(3.0),
                sapo_positive=rng.uniform(0.5, 2),
                sapo_negative=rng.uniform(0.5, 2),
                tis_cap=rng.uniform(1, 3),
                tis_floor=rng.uniform(0, 1),
                entropy=rng.choice([0.0, 0.01]),
                mask_truncated=rng.random() < 0.5,
                aggregation=rng.choice(["sequence_mean", "token_mean", "sequence_sum", "constant"]),
            ),
        },
        "kl": some(
            beta=rng.choice([0.0, 0.04, 1.0]),
            estimator=rng.choice(["k1", "k1", "k2", "k3", "k3_reverse", "k3_st"]),
            importance=rng.choice([True, False, None]),
            placement=rng.choice(["loss", "reward"]),
            target=seldom(rng.uniform(0.001, 1)),
            horizon=rng.randint(1, 1000),
        ),
        "trainer": some(
            mu=rng.randint(1, 3),
            minibatches=rng.randint(1, prompts + 1),
            micro_batch_tokens=rng.choice([8, 64, 2048]),
            shuffle_rewards=rng.random() < 0.2,
        ),
    }  # fmt: skip


def judge(rng: random.Random, weights: dict[str, float]) -> Verdict:
    if rng.random() < 0.1:
        return Verdict.failed("the verifier broke")
    rewards = {
        name: Reward(rng.choice([0.0, 0.0, 1.0, rng.random()]), weight)
        for name, weight in weights.items()
    }
    return Verdict(rewards, passed=rng.random() < 0.5)


class Parted(Letters):
    """An environment with the parts of the verdicts below."""

    parts: ClassVar[Mapping[str, float]] = {"a": 1.0, "b": 0.2, "c": 0.1}


class DrawnActor:
    """In place of an `Actor`: a tiny policy whose rollouts and verdicts are drawn at random."""

    def __init__(self, config: RunConfig, sources: Sources, policy: Policy, seed: int) -> None:
        self.config, self.sources, self.policy = config, sources, policy
        self.ranks = Ranks(meeting_seconds=1.0)
        self.budgets = {"letters": Budget(9)}
        self.askable = Askable(policy, self.budgets, warn=lambda text: None)
        self.rng = random.Random(seed)
        values = [0.0, -0.2, 0.1, 0.2, 1.0]
        self.weights = {name: self.rng.choice(values) for name in Parted.parts}

    async def sample_and_verify(
        self, tasks_P: Sequence[Task[Any]], *, attempts: int, **_: Any
    ) -> tuple[list[Group[Any]], float]:
        rollouts_PG = random_rollouts(len(tasks_P), attempts, seed=self.rng.randrange(10**6))
        groups = []
        for task, rollouts in zip(tasks_P, rollouts_PG, strict=True):
            alike = self.rng.random() < 0.3
            verdict = judge(self.rng, self.weights)
            verdicts = [verdict if alike else judge(self.rng, self.weights) for _ in rollouts]
            groups.append(Group(task, rollouts, verdicts))
        return groups, 1.0

    def changing_weights(self, version: int) -> AbstractAsyncContextManager[None]:
        """Keep nobody waiting: the rollouts are drawn, whatever the weights are."""
        return nullcontext()


def method(config: RunConfig, policy: Policy, seed: int) -> Grpo:
    sources = Sources.of(config, {"letters": Parted()})
    return Grpo(
        config,
        sources,
        make_actor=lambda need_reference: DrawnActor(config, sources, policy, seed),
    )


def assert_ranked(found: Grpo, rewards: Rewards, advantage_PG: Tensor) -> None:
    """Hold the advantages against what their estimator promises."""
    config = found.actor.config.advantage
    assert torch.isfinite(advantage_PG).all()
    assert (advantage_PG[~rewards.scored_PG] == 0).all()
    for p in range(len(advantage_PG)):
        scored = rewards.scored_PG[p].nonzero().flatten().tolist()
        advantage, total = advantage_PG[p].tolist(), rewards.total_PG[p].tolist()
        # A part of negative weight counts against a completion.
        worth = (rewards.part_KPG[:, p] * rewards.weight_KP[:, p].sign().unsqueeze(1)).T.tolist()
        for i, j in itertools.permutations(scored, 2):
            if config.name in IN_ORDER and total[i] > total[j]:
                assert advantage[i] >= advantage[j]
            if config.name == "gdpo" and all(
                a >= b for a, b in zip(worth[i], worth[j], strict=True)
            ):
                assert advantage[i] >= advantage[j]


def assert_as_defined(found: Grpo, rewards: Rewards) -> None:
    """Hold the advantages of each group, before what concerns the whole batch, against plain Python."""
    config = found.actor.config.advantage
    if config.name == "gdpo" or config.eps != EPS or (config.name == "grpo" and config.ddof):
        return
    plain = config.model_copy(update={"clip": None, "whiten": False})
    found.actor.config = found.actor.config.model_copy(update={"advantage": plain})
    advantage_PG = found.advantages(rewards)
    for p in range(len(advantage_PG)):
        scored_G = rewards.scored_PG[p]
        reward = (rewards.passed_PG.double() if config.name == "passk" else rewards.total_PG)[
            p, scored_G
        ].tolist()
        fewest = {"pkpo": config.k, "maxk": (config.k or 0) + 1, "passk": (config.k or 0) + 1}
        if (
            len(set(reward)) < 2
            or len(reward) < (fewest.get(config.name) or 2)
            or (config.name == "maxrl" and math.fsum(reward) <= 0)
        ):
            expected = [0.0] * len(reward)
        else:
            expected = DEFINITIONS[config.name](reward, config.k or 1)
        # Totals that differ by rounding only have no spread to speak of.
        assert advantage_PG[p, scored_G].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-8)


def assert_step(found: Grpo) -> None:
    """Take a step; every number is finite, or was not measured."""

    async def step() -> tuple[Any, Rewards, dict[str, float]]:
        clock = Clock()
        batch, rows = await found.collect(1, clock)
        rewards = await found.rewards(batch.groups)
        return rows, rewards, await found.update(batch, rows, clock)

    steps, rewards, metrics = asyncio.run(step())
    assert_ranked(found, rewards, found.advantages(rewards))
    trained = sum(map(len, steps))
    trained_tokens = metrics["tokens/trained"]
    assert metrics["steps/skipped_nonfinite"] == 0
    assert math.isfinite(metrics["loss"])
    assert metrics["beta"] >= 0
    assert found.updater.beta >= 0
    assert math.isfinite(metrics["grad_norm"]) == bool(steps)
    for name in ("logprob/mean", "entropy", "clip_fraction"):
        assert math.isfinite(metrics[name]) == bool(trained and trained_tokens)
    for _, weight in found.actor.policy.trainable():
        assert torch.isfinite(weight).all()
    assert_as_defined(found, rewards)


def try_configs(seed: int, accepted: int) -> Counter[str]:
    counts = Counter[str]()
    policy = tiny_policy()
    start = {name: weight.detach().clone() for name, weight in policy.trainable()}
    while counts["accepted"] < accepted:
        rng = random.Random(f"{seed} {counts.total()}")
        drawn = draw(rng)
        try:
            config, _ = with_defaults(build_config([drawn]), 0)
            found = method(config, policy, rng.randrange(10**6))
        except ConfigError as error:
            refusal: str | None = str(error)
        else:
            refusal = None
        if refusal is not None:
            assert len(refusal.splitlines()) == 1
            assert len(refusal) > 20
            counts["refused"] += 1
            continue
        try:
            assert_step(found)
        except Exception as failure:
            raise AssertionError(f"{failure!r} with {drawn}") from failure
        with torch.no_grad():
            for name, weight in policy.trainable():
                weight.copy_(start[name])
                weight.grad = None
        counts["accepted"] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [*range(15, 19), *(pytest.param(n, marks=pytest.mark.heavy) for n in range(19, 95))],
)
def test_a_random_config_takes_a_finite_step_and_ranks_rightly_or_is_refused_in_one_line(seed):
    counts = try_configs(seed, CHUNK)
    assert counts["refused"] > 0
