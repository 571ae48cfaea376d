"""Training on episodes: tokens, masks and log-probabilities, turns that overlap, and dialogues of other environments."""

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Episode, Task, Verdict
from grpo_core.config.settings import VerifyConfig
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.types import Message, Rollout
from grpo_core.train.rollout.budget import Budget

from .arrange import tiny_policy
from .guessing import Guessing
from .samplers import Scripted, play, said
from .short_runs import ran, steps_of

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))  # also for worker processes

import guessing_games as games


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


played = partial(play, budget=Budget(6, turns=4), settings=VerifyConfig(workers=1))


def test_the_mask_of_four_turns_is_that_of_the_rendered_episode(policy):
    """The oracle renders the whole episode at once; the log-probs are those of a dialogue, as the test of one without state shows."""
    script = Scripted(*said(policy, "ab!", "c!", "de!", "f!"))
    (rollout,) = played(policy, script, games.Games())
    assert [(m.role, m.content) for m in rollout.messages] == [
        ("user", "you have 4 guesses"), ("assistant", "ab"), ("user", "1: no"), ("assistant", "c"),
        ("user", "2: no"), ("assistant", "de"), ("user", "3: no"), ("assistant", "f"),
    ]  # fmt: skip
    messages = [("user", "guess 0"), *((m.role, m.content) for m in rollout.messages)]
    chat = [{"role": role, "content": content} for role, content in messages]
    text = policy.tokenizer.apply_chat_template(chat, tokenize=False)
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"][:-1]
    assert [*rollout.prompt_ids, *rollout.token_ids] == ids
    written = [t for t, own in zip(rollout.token_ids, rollout.trainable, strict=True) if own]
    assert policy.decode(written) == policy.decode([t for turn in script.turns for t in turn])
    assert "4 guesses" in policy.decode(list(rollout.prompt_ids))


@pytest.mark.slow
def test_turns_that_overlap_are_drawn_with_the_same_numbers(policy):
    size = {"budget": Budget(40, turns=4), "attempts": 4, "tasks": 2}
    rounds, overlapping = (
        played(policy, Engine(policy), games.Games(), overlap=overlap, **size)
        for overlap in (False, True)
    )
    assert [r.token_ids for r in rounds] == [r.token_ids for r in overlapping]
    assert [r.messages for r in rounds] == [r.messages for r in overlapping]
    assert max(len(rollout.messages) for rollout in rounds) > 3


@pytest.mark.parametrize("overlap", [False, True])
def test_an_attempt_that_waits_for_another_to_end_holds_up_no_round(policy, overlap):
    sampler = Scripted(*said(policy, *["a!"] * 12))
    rollouts = played(policy, sampler, games.TrustedSeatedGames(), attempts=3, overlap=overlap)
    assert [rollout.finish for rollout in rollouts] == ["stop"] * 3
    assert [sum(m.role == "assistant" for m in r.messages) for r in rollouts] == [4] * 3


class Late(games.TrustedGames):
    """Replies late in the first task."""

    def episode(self, task: Any) -> Any:
        game = games.Game(self, task)
        if task.key.index == 0:
            reply = game.reply

            async def late(messages: Sequence[Message]) -> Sequence[Message] | None:
                await asyncio.sleep(0.3)
                return await reply(messages)

            game.reply = late  # type: ignore[method-assign]
        return game


@pytest.mark.parametrize(("overlap", "expected"), [(False, "01010101"), (True, "01111000")])
def test_an_attempt_that_overlaps_waits_for_no_other(policy, overlap, expected):
    """One environment replies late; the others have long had their last turns."""
    sampler = Scripted(*said(policy, *["a!"] * 8))
    played(policy, sampler, Late(), tasks=2, overlap=overlap)
    prompts = [policy.decode(list(request.prefix)) for request in sampler.requests]
    assert "".join(prompt.partition("guess ")[2][0] for prompt in prompts) == expected


def test_an_opening_that_does_not_fit_ends_its_attempt_as_one_that_cannot_be_judged(policy):
    class Long(games.Game):
        async def open(self) -> Sequence[Message]:
            return (Message("user", "x" * 5000),)

    class LongGames(games.TrustedGames):
        def episode(self, task: Any) -> Any:
            return Long(self, task)

    (rollout,) = played(policy, Scripted(), LongGames())
    assert rollout.finish == "error"
    assert "do not fit" in rollout.error


def test_a_dialogue_without_state_is_the_same_as_ever_as_an_episode(policy):
    """The same replies, once from `reply` and `verify`, once from an episode: equal tokens and log-probs, to the bit."""

    class Plain(Guessing):
        trusted = True

    class Wrapped(Plain):
        replayable = True

        def episode(self, task: Task[int]) -> Episode:
            env = self

            class Replies(Episode):
                async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
                    return await env.reply(task, messages)

                async def verdict(self, rollout: Rollout) -> Verdict:
                    return env.verify(task, rollout)

            return Replies()

    size = {"budget": Budget(40, turns=3), "attempts": 4, "tasks": 3}
    plain, wrapped = (played(policy, Engine(policy), env(), **size) for env in (Plain, Wrapped))
    assert plain == wrapped
    assert any(len(rollout.messages) > 1 for rollout in plain)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [None, False])
def test_episodes_train_and_every_one_of_them_is_closed(settings, tmp_path, overlap):
    changes = {
        "environment": "games",
        "steps": 2,
        "prompts_per_step": 2,
        "group_size": 4,
        "sampling": {"max_new_tokens": 40, "stop": list("abcdef0123")},
        "eval.tasks": 2,
        "verify": {"overlap": overlap is None, "workers": 1, "cache": "off"},
        "rollout": {} if overlap is None else {"overlap_turns": overlap},
    }
    env = games.Games(games.Config(folder=str(tmp_path)))
    folder = ran(settings, tmp_path / "run", changes, env={"games": env}).folder
    steps = steps_of(folder.path)
    assert [line["verify/error_rate"] for line in steps] == [0.0, 0.0]
    assert steps[-1]["reward/mean"] > 0, "the state of the episodes decides the reward"
    card = json.loads((folder.path / "cards.json").read_text())["games"]
    assert (card["episodes"], card["overlap_turns"]) == (True, overlap is None)
    opened = [line["messages"][0]["content"] for line in folder.rollout_lines()]
    assert {*opened} == {"you have 4 guesses"}
    events = (tmp_path / "events.txt").read_text().split()
    assert events.count("open") == events.count("close") == events.count("verdict") >= 16
