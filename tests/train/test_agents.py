"""Agents in a run: their tokens are those of the same dialogues natively, and a run learns from them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core import (
    AgentEnvironment,
    Message,
    NoConfig,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.rollout.budget import Budget
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.conversation import StatelessConversations

from ..core.scripted import with_endpoint
from .arrange import rolled_out, tiny_policy
from .tiny import save_tiny
from .trained import make

POLICY = tiny_policy()
KEYS = [TaskKey("talk", "train", index) for index in (0, 1)]
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
    same. Each turn ends by itself, after the tokens `ending`."""

    def __init__(self, ending: tuple[int, ...] = ()) -> None:
        super().__init__(POLICY)
        self.ending = ending
        self.known: dict[tuple[int, ...], list[Request]] = {}
        self.replaying = False

    async def generate(self, request: Request) -> Completion:
        if self.replaying:
            request = replace(request, uniforms=self.known[request.prefix].pop(0).uniforms)
        else:
            self.known.setdefault(request.prefix, []).append(request)
        drawn = await super().generate(request)
        logprobs = (*drawn.logprobs, *[-1.0 for _ in self.ending])
        tokens = (*drawn.token_ids, *self.ending)
        return replace(drawn, token_ids=tokens, logprobs=logprobs, finish="stop")


def by_agent(
    kind: type[AgentEnvironment[Any]], sampler: Any, *, attempts: int = 3
) -> list[list[Rollout]]:
    async def run() -> list[list[Rollout]]:
        async with with_endpoint(kind) as env, Verifier(env) as verifier:
            tasks = await verifier.tasks(KEYS)
            budget = Budget(turn=6, turns=12, context=POLICY.context, for_agents=True)
            return await rolled_out(
                POLICY, sampler, tasks, attempts=attempts, budget=budget, replies=verifier
            )

    return asyncio.run(run())


def natively(sampler: Any) -> list[list[Rollout]]:
    tasks: list[Task[Any]] = [Talking().task(key) for key in KEYS]
    budget = Budget(turn=6, turns=4, context=POLICY.context)
    return asyncio.run(
        rolled_out(POLICY, sampler, tasks, attempts=3, budget=budget, replies=Replies())
    )


@pytest.mark.parametrize("ending", [(), POLICY.end_ids[:1]], ids=["no end token", "end token"])
def test_over_http_an_agent_has_the_ids_masks_and_log_probs_of_the_native_dialogue(ending):
    """And with them its gradients, as these are all that an update sees of an attempt."""
    sampler = ByPrefix(ending)
    agent = by_agent(Talking, sampler)
    sampler.replaying = True

    def tokens(rollouts: Sequence[Rollout]) -> list[Any]:
        return sorted(
            (r.prompt_ids, r.token_ids, r.trainable, r.turn_lengths, r.logprobs) for r in rollouts
        )

    for asked, played in zip(agent, natively(sampler), strict=True):
        assert [each.later_segments for each in asked] == [()] * 3
        for ours, theirs in zip(tokens(asked), tokens(played), strict=True):
            assert ours[:4] == theirs[:4]
            assert ours[4] == pytest.approx(theirs[4], abs=1e-9)


def test_an_agent_that_rewrites_its_history_makes_segments_and_no_token_is_trained_twice():
    for rollout in (each for group in by_agent(Rewriting, ByPrefix()) for each in group):
        first, second = rollout.segments
        kept = (*first.prompt_ids, *first.token_ids[: rollout.turn_lengths[0]])
        assert second.prompt_ids[: len(kept)] == kept
        assert rollout.sampled_tokens == sum(rollout.turn_lengths)
        assert len(rollout.turn_lengths) == 4
        said = [message.content for message in rollout.messages if message.role == "user"]
        assert said == ["again", SAID[2]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two steps, "a" and "b", with equal settings."""
    place = tmp_path_factory.mktemp("agents")
    model = {"name": str(save_tiny(place / "model")), "dtype": "float32"}
    sizes = {"steps": 2, "prompts_per_step": 2, "group_size": 3, "eval": {"tasks": 2}}
    settings = {"environment": "talk", "model": model, "sampling": {"max_new_tokens": 6}, **sizes}
    for name in ("a", "b"):
        make(place / name, settings, env=Rewriting()).run()
    return place


def test_a_run_trains_on_the_attempts_of_agents_and_another_one_draws_the_same(run):
    def attempts(name: str) -> list[Any]:
        lines = RunFolder(run / name).rollout_lines()
        train = [line for line in lines if line["key"]["split"] == "train"]
        return [(line["step"], line["key"], line["messages"]) for line in train]

    assert attempts("a") == attempts("b")
    assert len(attempts("a")) == 12
    lines = list(read_lines(run / "a" / "metrics.jsonl"))
    assert all(line.get("verify/error_rate", 0.0) == 0.0 for line in lines)
    steps = [line for line in lines if "loss" in line]
    # Of four turns each the third rewrites the history, and discards the second.
    assert [line["segments/mean"] for line in steps] == [2.0] * 2
    assert [line["segments/continued"] for line in steps] == [2 / 3] * 2
    assert all(0 < line["segments/discarded"] < 1 for line in steps)
    assert {line["eval/segments/mean"] for line in lines if "eval/tasks" in line} == {2.0}


def test_the_log_of_a_run_says_what_segments_share(run):
    for line in RunFolder(run / "a").rollout_lines():
        first, second = line["segments"]
        kept = first["prompt_tokens"] + first["turns"][0]
        assert kept <= second["shared_tokens"] <= second["prompt_tokens"]
        assert len(line["returned"]) == 4
