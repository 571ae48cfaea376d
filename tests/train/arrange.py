"""What the trainer's tests start from: a tiny float64 policy with a LoRA adapter that is not zero, and random rollouts."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import torch

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import SamplingConfig
from grpo_core.config.sizes import with_defaults
from grpo_core.engine.compute.batch import MicroBatch, Row, passes, tensors
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.load import ModelSource
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import builtin_sampler
from grpo_core.protocol.sampler import Completion, Request, Sampler
from grpo_core.protocol.types import Group, Message, Rollout, Task, TaskKey
from grpo_core.train.rollout.attempt import start_attempts
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.rollout.dialogue import Dialogues
from grpo_core.train.update import updater
from grpo_core.verify.episodes.conversation import Conversations

from .tiny import tiny_model, tiny_tokenizer

CPU = torch.device("cpu")


def collate(
    rollouts_PG: Sequence[Sequence[Rollout]], *others: Any, **settings: Any
) -> list[list[Row]]:
    """Return the rows of each optimizer step for rollouts of P prompts (see `updater.collate`)."""
    task = Task(TaskKey("any", "train", 0), "?", None)
    groups = [Group(task, rollouts) for rollouts in rollouts_PG]
    return updater.collate(groups, *others, **settings)


def sampled(policy: Policy, requests: Sequence[Request], **settings: Any) -> list[Completion]:
    """Return the built-in sampler's completions of requests that arrive together."""
    config = SamplingConfig(**settings)
    params = config.params()

    async def together() -> list[Completion]:
        sampler = builtin_sampler(policy, config)
        return await asyncio.gather(
            *(sampler.generate(replace(request, params=params)) for request in requests)
        )

    return asyncio.run(together())


async def rolled_out(
    policy: Policy,
    sampler: Sampler,
    tasks: Sequence[Task[Any]],
    *,
    attempts: int,
    budget: Budget,
    replies: Conversations | None = None,
    overlap: bool = False,
    seed: int = 0,
    step: int = 1,
) -> list[list[Rollout]]:
    """Return `attempts` rollouts of each task."""
    budgets: Mapping[str, Budget] = {task.key.env: budget for task in tasks}
    started = start_attempts(
        tasks, attempts, policy=policy, budgets=budgets, dealt=Counter(), seed=seed, step=step
    )
    params = SamplingConfig().params()
    dialogues = Dialogues(
        policy, sampler, params, environments=replies, overlap=lambda task: overlap
    )
    async with aclosing(dialogues.finished(started)) as finished:
        assert sorted([place async for place in finished]) == list(range(len(started)))
    rollouts = [attempt.rollout() for attempt in started]
    return [rollouts[i : i + attempts] for i in range(0, len(rollouts), attempts)]


def run_config(**sections: Any) -> RunConfig:
    """The rate and beta that are not given are those of a small model, as in a run."""
    config = build_config([{"environment": "letters", "model": {"dtype": "float64"}, **sections}])
    return with_defaults(config, 0)[0]


def tiny_policy(*, shared_prefix: bool = True, adapter: bool = True, scale: float = 0.3) -> Policy:
    """scale: of the random adapter; with 0 the policy equals its reference."""
    config = run_config()
    model: Any = tiny_model(dtype=torch.float64)
    if adapter:
        model = add_adapter(model, config.lora, ModelSource("tiny", "tiny")).to(torch.float64)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    shape = parameter.shape
                    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
                    parameter.copy_(scale * noise)
    return Policy(model, tiny_tokenizer(), shared_prefix=shared_prefix)


def random_rollouts(
    prompts: int, attempts: int, *, seed: int = 0, vocab: int = 100
) -> list[list[Rollout]]:
    """Ragged prompts with a common start, ragged completions that share their first tokens with another one of the group, or all of
    them; one is empty, one is wholly written by the environment."""
    rng = random.Random(seed)
    common = tuple(rng.randrange(4, vocab) for _ in range(10))
    rollouts = []
    for _ in range(prompts):
        prompt = common + tuple(rng.randrange(4, vocab) for _ in range(rng.randint(1, 6)))
        group = []
        for _ in range(attempts):
            before = group[-1].token_ids if group else ()
            tokens = before[: rng.randint(0, len(before))]
            tokens += tuple(rng.randrange(4, vocab) for _ in range(rng.randint(1, 9)))
            tokens = before if before and rng.random() < 0.2 else tokens[:9]
            trainable = tuple(int(rng.random() < 0.8) for _ in tokens)
            finish = "length" if rng.random() < 0.25 else "stop"
            drawn = tuple(-5.2 + rng.gauss(0, 0.2) for _ in tokens)
            said = (Message("assistant", "x"),)
            group.append(Rollout(said, finish, prompt, tokens, drawn, trainable))
        rollouts.append(group)
    rollouts[0][0] = Rollout((Message("assistant", ""),), "stop", rollouts[0][0].prompt_ids)
    last = rollouts[-1][-1]
    rollouts[-1][-1] = replace(last, finish="stop", trainable=(0,) * len(last.token_ids))
    return rollouts


def micro_batches(
    rows: Sequence[Row],
    *,
    max_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    shared_prefix: bool = True,
    pair: float = 0.0,
) -> Iterator[MicroBatch]:
    """Rows as the tensors of each forward pass (see `passes`)."""
    for chunk, _ in passes(rows, max_tokens=max_tokens, shared_prefix=shared_prefix, pair=pair):
        yield tensors(chunk, device=device, dtype=dtype)
