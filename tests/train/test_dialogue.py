"""Dialogues: earlier tokens stay as they were drawn, the environment's text is not trained on, and every budget holds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from grpo_core.config.overrides import build_config
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Completion, Request, Sampler
from grpo_core.protocol.types import Message, Rollout, Task, TaskKey
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.compute.batch import Row
from grpo_core.train.models import chat
from grpo_core.train.models.chat import ChatFrame
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.engine import Engine
from grpo_core.train.rollout.budget import Budget
from grpo_core.train.trainer import Trainer
from grpo_core.verify.conversation import StatelessConversations
from grpo_core.verify.engine import Verifier

from ..commandline import words
from .arrange import CPU, micro_batches, rolled_out, tiny_policy
from .guessing import Config, Guessing
from .samplers import Copyless
from .tiny import save_tiny

ROOM = Budget(6, turns=3)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


class Scripted(Copyless):
    """A sampler that says what it is told, token by token, and remembers what it was asked to continue."""

    def __init__(self, *turns: Sequence[int]) -> None:
        self.turns = list(turns)
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        turn = tuple(self.turns[len(self.requests) - 1])
        tokens = turn[: len(request.uniforms)]
        return Completion(tokens, (-1.0,) * len(tokens), "stop" if tokens == turn else "length")


def said(policy: Policy, text: str) -> list[int]:
    ids: list[int] = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def play(
    policy: Policy,
    sampler: Sampler,
    *,
    budget: Budget = ROOM,
    config: Config | None = None,
    tasks: int = 1,
    attempts: int = 1,
    env: type[Guessing] = Guessing,
) -> list[Rollout]:
    async def through() -> list[Rollout]:
        async with Verifier(
            env(config or Config()), settings=VerifyConfig(isolation="inline", retries=0)
        ) as verifier:
            tasks_P = await verifier.tasks([TaskKey("guessing", "train", i) for i in range(tasks)])
            rolled = rolled_out(
                policy, sampler, tasks_P, attempts=attempts, budget=budget, replies=verifier
            )
            return [rollout for group in await rolled for rollout in group]

    return asyncio.run(through())


def test_the_mask_is_that_of_the_rendered_dialogue(policy):
    """The oracle: the whole dialogue through the chat template in one go; the policy wrote its words and its end tokens."""
    script = ["ab<|im_end|>", "c<|im_end|>", "de<|im_end|>"]
    (rollout,) = play(policy, Scripted(*[said(policy, turn) for turn in script]))
    text = policy.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "guess 0"},
            *[{"role": m.role, "content": m.content} for m in rollout.messages],
        ],
        tokenize=False,
    )
    ids = said(policy, text)[:-1]  # the line break after the last end token was not said by anybody
    assert [m.content for m in rollout.messages] == ["ab", "lower", "c", "higher", "de"]
    assert [*rollout.prompt_ids, *rollout.token_ids] == ids
    written = [
        token for token, own in zip(rollout.token_ids, rollout.trainable, strict=True) if own
    ]
    assert written == [token for turn in script for token in said(policy, turn)]
    assert all(
        (logprob == -1.0) == bool(own)
        for logprob, own in zip(rollout.logprobs, rollout.trainable, strict=True)
    )


def test_earlier_tokens_are_never_tokenised_again(policy):
    """Token 1 is printed as nothing, so it would be lost by a way through text."""
    first, end = [1, *said(policy, "a"), 1], list(policy.end_ids)[:1]
    sampler = Scripted(first + end, said(policy, "b") + end, said(policy, "c") + end)
    (rollout,) = play(policy, sampler)
    assert "a" in rollout.messages[0].content
    start = len(sampler.requests[0].prefix)
    for request in sampler.requests[1:]:
        assert list(request.prefix[start : start + len(first)]) == first
    assert (
        sampler.requests[2].prefix
        == (*rollout.prompt_ids, *rollout.token_ids)[: len(sampler.requests[2].prefix)]
    )


def test_a_turn_that_a_stop_string_ended_is_closed_by_the_environment(policy):
    sampler = Scripted(said(policy, "ab"), said(policy, "c"), said(policy, "d"))
    (rollout,) = play(policy, sampler)
    end = said(policy, "<|im_end|>")[0]
    place = rollout.token_ids.index(end)
    assert place == 2
    assert rollout.trainable[place] == 0


def test_a_dialogue_ends_when_the_environment_says_so(policy):
    right = str(Guessing().task(TaskKey("guessing", "train", 0)).data)
    sampler = Scripted(
        said(policy, "x<|im_end|>"), said(policy, f"{right}<|im_end|>"), said(policy, "y<|im_end|>")
    )
    (rollout,) = play(policy, sampler)
    assert len(sampler.requests) == 2
    assert (rollout.text, rollout.finish) == (right, "stop")


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_the_policy_speaks_no_oftener_than_it_may(policy, turns):
    sampler = Scripted(*[said(policy, "x<|im_end|>")] * 3)
    (rollout,) = play(policy, sampler, budget=Budget(6, turns=turns))
    assert len(sampler.requests) == turns
    assert rollout.messages[-1].role == "assistant"


def test_a_turn_that_was_cut_off_ends_its_dialogue(policy):
    sampler = Scripted(said(policy, "xxxxxxxx<|im_end|>"), said(policy, "y<|im_end|>"))
    (rollout,) = play(policy, sampler)
    assert (len(sampler.requests), rollout.finish, len(rollout.token_ids)) == (1, "length", 6)


@pytest.mark.parametrize("limit", range(1, 80, 7))
@pytest.mark.parametrize("name", ["dialogue", "context"])
def test_the_budget_of_the_whole_dialogue_holds(policy, name, limit):
    script = [said(policy, "ab<|im_end|>")] * 3
    prompt = len(play(policy, Scripted(*script))[0].prompt_ids)
    budget = (
        Budget(6, 3, dialogue=limit) if name == "dialogue" else Budget(6, 3, context=prompt + limit)
    )
    (rollout,) = play(policy, Scripted(*script), budget=budget)
    (whole,) = play(policy, Scripted(*script))
    assert 0 < len(rollout.token_ids) <= limit
    assert rollout.token_ids == whole.token_ids[: len(rollout.token_ids)]
    assert rollout.trainable[-1] == 1, (
        "nothing of the environment's is kept that the policy does not answer"
    )
    assert (rollout.finish == "length") == (len(rollout.token_ids) < len(whole.token_ids))


def test_a_dialogue_whose_partner_breaks_is_never_scored(policy):
    async def judged() -> list[str]:
        env = Guessing(Config(break_on="b"))
        async with Verifier(env, settings=VerifyConfig(isolation="inline", retries=0)) as verifier:
            tasks = await verifier.tasks([TaskKey("guessing", "train", 0)])
            return [
                v.error or "" for group in await verifier.verify(tasks, [broken]) for v in group
            ]

    broken = play(policy, Scripted(said(policy, "ab<|im_end|>")), config=Config(break_on="b"))
    assert broken[0].finish == "error"
    assert "dialogue failed" in asyncio.run(judged())[0]


def test_log_probs_of_later_turns_equal_the_trainers(policy):
    rollouts = play(policy, Engine(policy), tasks=3, attempts=4, budget=Budget(12, turns=3))
    assert max(sum(m.role == "assistant" for m in r.messages) for r in rollouts) > 1, (
        "no dialogue had a second turn"
    )
    rows = [Row(r.segments[0], 0.0, 0.0) for r in rollouts]
    for micro in micro_batches(rows, max_tokens=400, device=CPU, dtype=torch.float64):
        for row, found in zip(
            micro.rows, policy.logprobs(micro, temperature=1.0)[0].tolist(), strict=True
        ):
            for own, logprob, at_sampling in zip(
                row.segment.trainable, found, row.segment.logprobs, strict=False
            ):
                assert not own or logprob == pytest.approx(at_sampling, abs=1e-9)


def test_a_raw_prompt_goes_on_with_the_bare_words(policy):
    task = Task(TaskKey("raw", "train", 0), "1, 2, ", None)

    class Counting(StatelessConversations):
        async def reply(
            self, task: Task[None], messages: Sequence[Message]
        ) -> Sequence[Message] | None:
            return (Message("user", " next: "),)

    rolled = rolled_out(
        policy,
        Scripted(said(policy, "3"), said(policy, "4")),
        [task],
        attempts=1,
        budget=Budget(4, turns=2),
        replies=Counting(),
    )
    ((rollout,),) = asyncio.run(rolled)
    assert list(rollout.token_ids) == said(policy, "3 next: 4")
    assert rollout.trainable == (1, *[0] * 7, 1)


@pytest.mark.parametrize(
    "turn", ["higher", [Message("user", "higher"), "lower"], (Message("user", "\ud800"),), 3]
)
def test_a_reply_that_cannot_be_said_ends_its_attempt_as_one_that_cannot_be_judged(policy, turn):
    class Odd(Guessing):
        async def reply(
            self, task: Task[int], messages: Sequence[Message]
        ) -> Sequence[Message] | None:
            return turn

    (rollout,) = play(policy, Scripted(said(policy, "x<|im_end|>")), env=Odd)
    assert (rollout.finish, rollout.text) == ("error", "x")


def test_a_prompt_with_half_a_surrogate_pair_is_one_line(policy):
    for prompt in ("\ud83d", (Message("user", "x \ud83d"),)):
        with pytest.raises(
            ConfigError, match=r"a prompt holds half of a surrogate pair, .*: '.*\\ud83d"
        ):
            policy.encode(prompt)


def test_a_dialogue_trains(tmp_path: Path):
    config = build_config(
        [
            {
                "environment": "guessing",
                "steps": 3,
                "prompts_per_step": 2,
                "group_size": 4,
                "model": {
                    "name": str(save_tiny(tmp_path / "model")),
                    "dtype": "float32",
                },  # the draws that were looked at
                "env": {"break_on": "%"},
                "eval": {"tasks": 2},
                "verify": {"max_error_rate": 1.0, "retries": 0, "isolation": "inline"},
            }
        ]
    )
    folder = RunFolder(tmp_path / "run")
    Trainer(config, Guessing(Config(break_on="%")), folder=folder).run()
    lines = list(RunFolder(folder.path).rollout_lines())
    roles = {
        tuple(m["role"] if isinstance(m, dict) else m[0] for m in line["messages"])
        for line in lines
    }
    assert any(len(some) > 1 for some in roles), roles
    assert (
        len([line for line in read_lines(folder.path / "metrics.jsonl") if "reward/mean" in line])
        == 3
    )


def test_a_system_prompt_of_the_run_takes_the_place_of_the_prompts_own_and_of_no_other(policy):
    frame = ChatFrame(system_prompt="be brief")
    prompt = (Message("system", "be long"), Message("user", "hi"))
    shown = policy.decode(chat.encode(policy.tokenizer, prompt, frame))
    assert ("be brief" in shown, "be long" in shown) == (True, False)
    without = policy.decode(chat.encode(policy.tokenizer, prompt[1:], frame))
    assert "be brief" in without
    turn = [Message("system", "HINT")]
    reply = policy.decode(
        chat.encode_reply(
            policy.tokenizer, prompt[1:], [Message("assistant", "a")], turn, frame, end_id=None
        )
    )
    assert "HINT" in reply


def test_arguments_and_tools_reach_the_chat_template():
    own = tiny_policy()
    own.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}{% if tools %}{{ tools[0].function.name }}{% endif %}"
    frame = ChatFrame(
        arguments={"mood": "calm"}, tools=[{"type": "function", "function": {"name": "add"}}]
    )
    assert own.decode(chat.encode(own.tokenizer, (Message("user", "x"),), frame)) == "xcalmadd"
    with pytest.raises(ConfigError, match="refuses the prompt"):
        chat.encode(own.tokenizer, (Message("user", "x"),), ChatFrame(arguments={"tokenize": True}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("03_train_on_cpu.py", marks=pytest.mark.heavy), "04_dialogue.py"]
)
def test_the_example_trains(tmp_path: Path, name: str):
    example = Path(__file__).parents[2] / "examples" / name
    options = words(f"--model {save_tiny(tmp_path / 'model')} --steps 2 --out {tmp_path / 'run'}")
    result = subprocess.run(
        [sys.executable, example, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "reward: " in result.stdout
    assert (tmp_path / "run" / "final" / "adapter_model.safetensors").exists()
