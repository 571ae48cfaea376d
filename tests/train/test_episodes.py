"""Training on episodes: tokens, masks and log-probabilities, turns that overlap, and dialogues of other environments."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.config.overrides import build_config
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.protocol.types import Message, Rollout, TaskKey
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.engine import Engine
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.trainer import Trainer
from grpo_core.verify.engine import Verifier

from .arrange import rolled_out, tiny_policy
from .guessing import Config, Guessing
from .samplers import Copyless
from .tiny import save_tiny

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))  # also for worker processes

import guessing_games as games


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


class Scripted(Copyless):
    """A sampler that says the next turn of a script, token by token."""

    def __init__(self, policy: Policy, *turns: str) -> None:
        self.turns = [
            tuple(policy.tokenizer(turn, add_special_tokens=False)["input_ids"]) for turn in turns
        ]
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        turn = self.turns[len(self.requests) - 1]
        return Completion(turn, (-1.0,) * len(turn), "stop")


def play(
    policy: Policy,
    sampler: Any,
    env: Environment[Any],
    *,
    budget: Budget,
    attempts: int = 1,
    tasks: int = 1,
    overlap: bool = False,
) -> list[Rollout]:
    async def through() -> list[Rollout]:
        async with Verifier(env, settings=VerifyConfig(workers=1)) as verifier:
            tasks_P = await verifier.tasks([TaskKey("games", "train", i) for i in range(tasks)])
            rolled = await rolled_out(
                policy,
                sampler,
                tasks_P,
                attempts=attempts,
                budget=budget,
                replies=verifier,
                overlap=overlap,
            )
            return [rollout for group in rolled for rollout in group]

    return asyncio.run(through())


@pytest.mark.slow
def test_the_mask_and_the_log_probs_of_four_turns_are_those_of_the_rendered_episode(
    policy: Policy,
) -> None:
    """The oracle renders the whole episode at once, and computes the log-probs by one plain forward pass."""
    script = ["ab<|im_end|>", "c<|im_end|>", "de<|im_end|>", "f<|im_end|>"]
    budget = Budget(6, turns=4)
    (rollout,) = play(policy, Scripted(policy, *script), games.Games(), budget=budget)
    assert [(m.role, m.content) for m in rollout.messages] == [
        ("user", "you have 4 guesses"), ("assistant", "ab"), ("user", "1: no"), ("assistant", "c"),
        ("user", "2: no"), ("assistant", "de"), ("user", "3: no"), ("assistant", "f"),
    ]  # fmt: skip
    text = policy.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "guess 0"},
            *[{"role": m.role, "content": m.content} for m in rollout.messages],
        ],
        tokenize=False,
    )
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"][:-1]
    assert [*rollout.prompt_ids, *rollout.token_ids] == ids
    written = [t for t, own in zip(rollout.token_ids, rollout.trainable, strict=True) if own]
    assert policy.decode(written) == policy.decode(
        [t for turn in Scripted(policy, *script).turns for t in turn]
    )
    assert "4 guesses" in policy.decode(list(rollout.prompt_ids))

    drawn = play(policy, Engine(policy), games.Games(), budget=Budget(40, turns=4), attempts=64)
    rollout = max(drawn, key=lambda each: len(each.messages))
    assert sum(m.role == "assistant" for m in rollout.messages) == 4
    tokens = torch.tensor([[*rollout.prompt_ids, *rollout.token_ids]])
    with torch.no_grad():
        logprobs = (
            policy.model(tokens)
            .logits.double()
            .log_softmax(-1)[0, len(rollout.prompt_ids) - 1 : -1]
        )
    for place, (token, own, drawn_at) in enumerate(
        zip(rollout.token_ids, rollout.trainable, rollout.logprobs, strict=True)
    ):
        if own:
            assert drawn_at == pytest.approx(float(logprobs[place, token]), abs=1e-9)


@pytest.mark.slow
def test_turns_that_overlap_are_drawn_with_the_same_numbers(policy: Policy) -> None:
    budget = Budget(40, turns=4)
    rounds, overlapping = (
        play(
            policy,
            Engine(policy),
            games.Games(),
            budget=budget,
            attempts=4,
            tasks=2,
            overlap=overlap,
        )
        for overlap in (False, True)
    )
    assert [r.token_ids for r in rounds] == [r.token_ids for r in overlapping]
    assert [r.messages for r in rounds] == [r.messages for r in overlapping]
    assert max(len(rollout.messages) for rollout in rounds) > 3


@pytest.mark.parametrize("overlap", [False, True])
def test_an_attempt_that_waits_for_another_to_end_holds_up_no_round(
    policy: Policy, overlap: bool
) -> None:
    sampler = Scripted(policy, *["a<|im_end|>"] * 12)
    budget = Budget(6, turns=4)
    rollouts = play(
        policy, sampler, games.TrustedSeatedGames(), budget=budget, attempts=3, overlap=overlap
    )
    assert [rollout.finish for rollout in rollouts] == ["stop"] * 3
    assert [sum(m.role == "assistant" for m in r.messages) for r in rollouts] == [4] * 3


def test_an_attempt_that_overlaps_waits_for_no_other(policy: Policy) -> None:
    """One environment replies late; the others have long had their last turns."""

    class Late(games.TrustedGames):
        def episode(self, task: Any) -> Any:
            game = games.Game(self, task)
            if task.key.index == 0:
                reply = game.reply

                async def late(messages: Sequence[Message]) -> Sequence[Message] | None:
                    await asyncio.sleep(0.3)
                    return await reply(messages)

                game.reply = late  # type: ignore[method-assign]
            return game

    order: list[str] = []

    class Noting(Scripted):
        async def generate(self, request: Request) -> Completion:
            task = policy.decode(list(request.prefix)).partition("guess ")[2][0]
            order.append(task)
            return await super().generate(request)

    script = ["a<|im_end|>"] * 8
    for overlap, expected in ((False, "01010101"), (True, "01111000")):
        order.clear()
        play(
            policy,
            Noting(policy, *script),
            Late(),
            budget=Budget(6, turns=4),
            tasks=2,
            overlap=overlap,
        )
        assert "".join(order) == expected


def test_an_opening_that_does_not_fit_ends_its_attempt_as_one_that_cannot_be_judged(
    policy: Policy,
) -> None:
    class Long(games.Game):
        async def open(self) -> Sequence[Message]:
            return (Message("user", "x" * 5000),)

    class LongGames(games.TrustedGames):
        def episode(self, task: Any) -> Any:
            return Long(self, task)

    (rollout,) = play(policy, Scripted(policy), LongGames(), budget=Budget(6, turns=4))
    assert rollout.finish == "error"
    assert "do not fit" in rollout.error


def test_a_dialogue_without_state_is_the_same_as_ever_as_an_episode(policy: Policy) -> None:
    """The same replies, once from `reply` and `verify`, once from an episode: equal tokens and log-probs, to the bit."""
    from grpo_core import Episode, Task, Verdict

    class Wrapped(Guessing):
        replayable = True
        trusted = True

        def episode(self, task: Task[int]) -> Episode:
            env = self

            class Plain(Episode):
                async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
                    return await env.reply(task, messages)

                async def verdict(self, rollout: Rollout) -> Verdict:
                    return env.verify(task, rollout)

            return Plain()

    class Plain(Guessing):
        trusted = True

    budget = Budget(40, turns=3)
    plain, wrapped = (
        play(policy, Engine(policy), env(Config()), budget=budget, attempts=4, tasks=3)
        for env in (Plain, Wrapped)
    )
    assert plain == wrapped
    assert any(len(rollout.messages) > 1 for rollout in plain)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [None, False])
def test_episodes_train_and_every_one_of_them_is_closed(
    tmp_path: Path, overlap: bool | None
) -> None:
    config = build_config(
        [
            {
                "environment": "games",
                "steps": 2,
                "prompts_per_step": 2,
                "group_size": 4,
                "model": {"name": str(save_tiny(tmp_path / "model")), "dtype": "float32"},
                "sampling": {"max_new_tokens": 40, "stop": list("abcdef0123")},
                "eval": {"tasks": 2},
                "verify": {"overlap": overlap is None, "workers": 1, "cache": "off"},
                "rollout": {} if overlap is None else {"overlap_turns": overlap},
            }
        ]
    )
    folder = RunFolder(tmp_path / "run")
    env = games.Games(games.Config(folder=str(tmp_path)))
    Trainer(config, {"games": env}, folder=folder).run()
    metrics = [line for line in read_lines(folder.path / "metrics.jsonl") if "reward/mean" in line]
    assert [line["verify/error_rate"] for line in metrics] == [0.0, 0.0]
    assert metrics[-1]["reward/mean"] > 0, "the state of the episodes decides the reward"
    card = json.loads((folder.path / "cards.json").read_text())["games"]
    assert (card["episodes"], card["overlap_turns"]) == (True, overlap is None)
    rollouts = list(RunFolder(folder.path).rollout_lines())
    assert all(line["messages"][0]["content"] == "you have 4 guesses" for line in rollouts)
    events = (tmp_path / "events.txt").read_text().split()
    assert events.count("open") == events.count("close") == events.count("verdict") >= 16
