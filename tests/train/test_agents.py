"""Agents in a run: their tokens are those of the same dialogues natively, and a run learns from them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core import (
    AgentEnvironment,
    Message,
    NoConfig,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Trainer,
    Verdict,
)
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import EndpointConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import open_endpoint
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.policy.engine import Engine
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.update.updater import Updater
from grpo_core.verify.conversation import StatelessConversations
from grpo_core.verify.engine import Verifier

from .arrange import collate, rolled_out, run_config, tiny_policy
from .tiny import save_tiny

POLICY = tiny_policy()
SAID = ("and more", "go on", "the end")


class Talking(AgentEnvironment[None]):
    """Asks four times, in the way that `Config.mode` says."""

    trusted = True
    max_turns = 12
    Config = NoConfig
    rewrites = False

    def task(self, key: TaskKey) -> Task[None]:
        return Task(key, (Message("user", f"question {key.index}"),), None)

    async def agent(self, task: Task[None], client: Any) -> Any:
        messages: list[Any] = [{"role": "user", "content": task.prompt[0].content}]  # type: ignore[union-attr]
        texts = []
        for said in (*SAID, None):
            answer = await client.chat.completions.create(model="policy", messages=messages)
            texts.append(answer.choices[0].message.content)
            messages.append(answer.choices[0].message)
            if said is not None:
                messages.append({"role": "user", "content": said})
            if self.rewrites and len(texts) == 2:
                messages = [*messages[:2], {"role": "user", "content": "again"}]
        return texts

    def verify(self, task: Task[None], rollout: Rollout) -> Verdict:
        return Verdict({"reward": Reward(len(rollout.returned[0]) % 3 / 2)}, passed=False)


class Rewriting(Talking):
    rewrites = True


class Replies(StatelessConversations):
    async def reply(self, task: Any, messages: Sequence[Message]) -> Any:
        number = sum(message.role == "assistant" for message in messages)
        return [Message("user", SAID[number - 1])] if number <= len(SAID) else None


class ByPrefix(Engine):
    """Draws with the numbers of the first request for a prefix and a seed, so that an attempt that is played again natively hears the
    same. Each turn ends by itself."""

    def __init__(self) -> None:
        super().__init__(POLICY)
        self.known: dict[tuple[int, ...], list[Request]] = {}
        self.replaying = False

    async def generate(self, request: Request) -> Completion:
        if self.replaying:
            request = replace(request, uniforms=self.known[request.prefix].pop(0).uniforms)
        else:
            self.known.setdefault(request.prefix, []).append(request)
        return replace(await super().generate(request), finish="stop")


def by_agent(
    kind: type[AgentEnvironment[Any]], sampler: Any, *, attempts: int = 3
) -> list[list[Rollout]]:
    async def run() -> list[list[Rollout]]:
        endpoint = open_endpoint(PluginHost(), EndpointConfig())
        env = kind(services=Services(endpoints={"default": endpoint}))
        try:
            async with Verifier(env) as verifier:
                tasks = await verifier.tasks([TaskKey("talk", "train", index) for index in (0, 1)])
                budget = Budget(turn=6, turns=12, context=POLICY.context, for_agents=True)
                return await rolled_out(
                    POLICY, sampler, tasks, attempts=attempts, budget=budget, replies=verifier
                )
        finally:
            await endpoint.close()

    return asyncio.run(run())


def natively(sampler: Any, *, attempts: int = 3) -> list[list[Rollout]]:
    tasks: list[Task[Any]] = [Talking().task(TaskKey("talk", "train", index)) for index in (0, 1)]
    budget = Budget(turn=6, turns=4, context=POLICY.context)
    return asyncio.run(
        rolled_out(POLICY, sampler, tasks, attempts=attempts, budget=budget, replies=Replies())
    )


def gradients(rollouts: Sequence[Sequence[Rollout]]) -> list[torch.Tensor]:
    config = run_config(kl={"beta": 0.1}, loss={"aggregation": "token_mean"})
    updater = Updater(POLICY, config, steps=1)
    advantage = torch.tensor([[1.0, -0.5, 0.25], [-1.0, 2.0, 0.5]], dtype=torch.float64)
    (rows,) = collate(
        rollouts,
        advantage,
        torch.ones(2, 3, dtype=torch.bool),
        aggregation=config.loss.aggregation,
        max_length=48,
    )
    from grpo_core.train.update.updater import Sums

    for parameter in updater.parameters:
        parameter.grad = None
    for micro in POLICY.micro_batches(rows, max_tokens=4096, dtype=torch.float64):
        reference = POLICY.reference_states(micro)
        loss, _ = updater.loss(micro, None, reference, Sums())
        loss.backward()
    return [
        parameter.grad.clone() for parameter in updater.parameters if parameter.grad is not None
    ]


def test_over_http_an_agent_has_the_ids_log_probs_and_gradients_of_the_native_dialogue() -> None:
    sampler = ByPrefix()
    agent = by_agent(Talking, sampler)
    sampler.replaying = True
    native = natively(sampler)

    def tokens(rollouts: Sequence[Rollout]) -> list[Any]:
        return sorted(
            (r.prompt_ids, r.token_ids, r.trainable, r.turn_lengths, r.logprobs) for r in rollouts
        )

    for asked, played in zip(agent, native, strict=True):
        assert [each.later_segments for each in asked] == [()] * 3
        for ours, theirs in zip(tokens(asked), tokens(played), strict=True):
            assert ours[:4] == theirs[:4]
            assert ours[4] == pytest.approx(theirs[4], abs=1e-9)
    in_order = [
        sorted(rollouts, key=lambda rollout: rollout.token_ids) for rollouts in (*agent, *native)
    ]
    ours, theirs = gradients(in_order[:2]), gradients(in_order[2:])
    assert max(float(gradient.abs().max()) for gradient in theirs) > 1e-3
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-9, rtol=0)


def test_an_agent_that_rewrites_its_history_makes_segments_and_no_token_is_trained_twice() -> None:
    sampler = ByPrefix()
    for rollout in (each for group in by_agent(Rewriting, sampler) for each in group):
        first, second = rollout.segments
        kept = rollout.turn_lengths[0]
        assert second.prompt_ids[: len(first.prompt_ids) + kept] == (
            *first.prompt_ids,
            *first.token_ids[:kept],
        )
        assert rollout.sampled_tokens == sum(rollout.turn_lengths)
        assert len(rollout.turn_lengths) == 4
        assert [message.content for message in rollout.messages if message.role == "user"] == [
            "again",
            SAID[2],
        ]


def test_a_run_trains_on_the_attempts_of_agents_and_a_resumed_one_draws_the_same(
    tmp_path: Path,
) -> None:
    save_tiny(tmp_path / "model")

    def attempts(folder: Path, steps: int) -> list[dict[str, Any]]:
        config = build_config(
            [
                {
                    "environment": "talk",
                    "model": {"name": str(tmp_path / "model"), "dtype": "float32"},
                    "steps": steps,
                    "prompts_per_step": 2,
                    "group_size": 3,
                    "sampling": {"max_new_tokens": 6},
                    "eval": {"tasks": 2},
                }
            ]
        )
        Trainer(config, Rewriting(), folder=folder).run()
        return [
            {"step": line["step"], "key": line["key"], "messages": line["messages"]}
            for line in RunFolder(folder).rollout_lines()
            if line["key"]["split"] == "train"
        ]

    first, again = (attempts(tmp_path / name, 2) for name in ("a", "b"))
    assert first == again
    assert len(first) == 12
    metrics = [
        line for line in read_lines(tmp_path / "a" / "metrics.jsonl") if "verify/error_rate" in line
    ]
    assert [line["verify/error_rate"] for line in metrics] == [0.0] * len(metrics)
    # Of four turns each the third rewrites the history, and discards the second.
    assert [line["segments/mean"] for line in metrics] == [2.0] * 2
    assert [line["segments/continued"] for line in metrics] == [2 / 3] * 2
    assert all(0 < line["segments/discarded"] < 1 for line in metrics)
    evaluations = [
        line for line in read_lines(tmp_path / "a" / "metrics.jsonl") if "eval/tasks" in line
    ]
    assert {line["eval/segments/mean"] for line in evaluations} == {2.0}
    for line in RunFolder(tmp_path / "a").rollout_lines():
        first, second = line["segments"]
        kept = first["prompt_tokens"] + first["turns"][0]
        assert kept <= second["shared_tokens"] <= second["prompt_tokens"]
        assert len(line["returned"]) == 4
