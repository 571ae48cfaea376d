"""Compare log-probs of sampler and trainer on a few tokens, before anything is trained.

The policy's own check (see `policy.selfcheck`) uses random tokens and float32; this one uses the
prompts and the precision of the run. Where the built-in sampler differs, another way of sampling is
taken; where the sampler of a plugin differs, the run warns or is refused. A sampler that a script
gives to the trainer is the script's to check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from grpo_core.engine.compute.batch import Row
from grpo_core.engine.policy.choose import BUILTIN
from grpo_core.engine.policy.engine import Engine
from grpo_core.engine.policy.ways import DecodingWay
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.protocol.types import Segment, Task, TaskKey
from grpo_core.runs.observer import Observer
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.draws import Draws

PROMPTS, TOKENS = 4, 16
"""The longest of the first prompts, and tokens sampled after each."""

EXACT, HALF = 1e-3, 0.1
"""Most nats per token, as a mean over a completion, by which log-probs may differ: in float32, and
where some number has half the precision or is quantised (0.01 to 0.03 are usual there)."""


async def check_sampler(
    actor: Actor, prompts: Sequence[tuple[int, ...]], observer: Observer
) -> None:
    """Sample a few tokens, and make sampling slow if their log-probs are not the trainer's.

    Raises:
        ConfigError: they differ in the slow way, too, or there is none.
    """
    policy = actor.policy
    await actor.sync()
    if not isinstance(actor.sampler, Engine):
        if actor.config.sampler.name != BUILTIN:
            await _check_other_sampler(actor, prompts, observer)
        return
    limit = EXACT if policy.is_exact else HALF
    gap = await _gap(actor, prompts)
    if gap <= limit:
        return
    found = f"log-probs of sampler and trainer differ by {gap:.2g} nats per token (limit {limit:g})"
    if not policy.fills and policy.sampling is not DecodingWay.UNCACHED:
        policy.sampling = DecodingWay.UNCACHED
        observer.warn(f"the {found}; {policy.sampling.value}, which is slow")
        if await _gap(actor, prompts) <= limit:
            return
    raise ConfigError(
        f"the {found}, so the policy would learn from tokens that it did not draw; use another "
        "model or model.dtype=float32"
    )


async def _check_other_sampler(
    actor: Actor, prompts: Sequence[tuple[int, ...]], observer: Observer
) -> None:
    """Warn if the log-probs of a sampler that is not built in differ by more than is usual."""
    limit, gap = actor.config.stop.max_logprob_gap, await _gap(actor, prompts)
    found = (
        f"log-probs of the sampler {actor.config.sampler.name!r} and of the trainer differ by "
        f"{gap:.2g} nats per token"
    )
    if gap > limit:
        raise ConfigError(
            f"the {found} (stop.max_logprob_gap={limit:g}), so the policy would learn from tokens "
            "that it did not draw; check that both have the same model, adapter and temperature"
        )
    if gap > HALF:
        observer.warn(f"the {found}; 0.01 to 0.03 are usual in bfloat16, and less in float32")


def warn_of_unseen_tools(actor: Actor, task: Task[Any], observer: Observer) -> None:
    """Warn if the prompt of a task does not hold the tools that the policy may call."""
    tools = actor.budgets[task.key.env].tools
    if tools and actor.policy.encode(task.prompt, tools=tools) == actor.policy.encode(task.prompt):
        observer.warn(
            "the model's chat template has no place for tools, so the policy does not see those of "
            f"{task.key.env!r}; set model.chat_template (chatml-tools is one for models of ChatML) "
            "or describe them in the prompt"
        )


async def _gap(actor: Actor, prompts: Sequence[tuple[int, ...]]) -> float:
    """Return the mean difference per token of the completion where it is largest, in nats."""
    policy, params = actor.policy, actor.config.sampling.params()
    chosen = sorted(set(prompts), key=len, reverse=True)[:PROMPTS]

    def request(prompt_ids: tuple[int, ...], index: int) -> Request:
        slots = policy.slots(prompt_ids)
        room = policy.context - len(prompt_ids) if policy.context is not None else TOKENS
        count = min(TOKENS, room) if slots is None else len(slots)
        draws = Draws(TaskKey("sampling check", "train", index), actor.config.seed, step=0)
        return draws.request(prompt_ids, params, count)

    with policy.whole():
        completions: list[Completion] = await asyncio.gather(
            *(
                actor.sampler.generate(request(prompt_ids, index))
                for index, prompt_ids in enumerate(chosen)
            )
        )
        pairs = [pair for pair in zip(chosen, completions, strict=True) if pair[1].token_ids]
        rows = [
            Row(
                Segment(
                    prompt_ids,
                    completion.token_ids,
                    completion.logprobs,
                    (1,) * len(completion.token_ids),
                ),
                0.0,
                0.0,
            )
            for prompt_ids, completion in pairs
        ]
        gaps = await policy.thread.run(lambda: _gaps(actor, rows))
    return max([0.0, *actor.ranks.gather_values(max(gaps, default=0.0))])


def _gaps(actor: Actor, rows: Sequence[Row]) -> list[float]:
    """Return the mean absolute difference of the log-probs of each row."""
    policy, gaps = actor.policy, []
    micro_batches = policy.micro_batches(
        rows,
        max_tokens=actor.config.trainer.micro_batch_tokens or policy.tuning.micro_batch_tokens,
        dtype=torch.float32,
    )
    for micro in micro_batches:
        with torch.no_grad():
            logprob_BT, _ = policy.logprobs(micro, temperature=actor.config.sampling.temperature)
        difference_BT = (logprob_BT - micro.generated_BT).abs() * micro.real_BT
        gaps += (difference_BT.sum(dim=1) / micro.real_BT.sum(dim=1)).tolist()
    return gaps
