"""Dialogues: earlier tokens stay as they were drawn, the environment's text is not trained on, and every budget holds."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from grpo_core.config.settings import VerifyConfig
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.models import chat
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message, Task, TaskKey
from grpo_core.train.rollout.budget import Budget
from grpo_core.verify.episodes.conversation import StatelessConversations

from ..commandline import words
from .arrange import CPU, micro_batches, rolled_out, tiny_policy
from .guessing import Guessing
from .samplers import Scripted, play, said
from .tiny import save_tiny

ROOM = Budget(6, turns=3)
ONCE = VerifyConfig(isolation="inline", retries=0)
played = partial(play, env=Guessing(), budget=ROOM, settings=ONCE)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


def test_the_mask_is_that_of_the_rendered_dialogue(policy):
    """The oracle: the whole dialogue through the chat template in one go; the policy wrote its words and its end tokens."""
    script = said(policy, "ab!", "c!", "de!")
    (rollout,) = played(policy, Scripted(*script))
    assert [m.content for m in rollout.messages] == ["ab", "lower", "c", "higher", "de"]
    dialogue = [Message("user", "guess 0"), *rollout.messages]
    text = policy.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in dialogue], tokenize=False
    )
    (ids,) = said(policy, text)
    # The line break after the last end token was not said by anybody.
    assert [*rollout.prompt_ids, *rollout.token_ids] == ids[:-1]
    drawn = list(zip(rollout.token_ids, rollout.trainable, rollout.logprobs, strict=True))
    assert [token for token, own, _ in drawn if own] == [token for turn in script for token in turn]
    assert all((logprob == -1.0) == bool(own) for _, own, logprob in drawn)


def test_earlier_tokens_are_never_tokenised_again(policy):
    """Token 1 is printed as nothing, so it would be lost by a way through text."""
    first, second, third = said(policy, "a!", "b!", "c!")
    first = [1, first[0], 1, first[1]]
    sampler = Scripted(first, second, third)
    (rollout,) = played(policy, sampler)
    assert "a" in rollout.messages[0].content
    start = len(sampler.requests[0].prefix)
    for request in sampler.requests[1:]:
        assert list(request.prefix[start : start + len(first)]) == first
    last = sampler.requests[2].prefix
    assert last == (*rollout.prompt_ids, *rollout.token_ids)[: len(last)]


def test_a_turn_that_a_stop_string_ended_is_closed_by_the_environment(policy):
    (rollout,) = played(policy, Scripted(*said(policy, "ab", "c", "d")))
    assert rollout.token_ids[2] == said(policy, "!")[0][0]
    assert rollout.trainable[:3] == (1, 1, 0)


def test_a_dialogue_ends_when_the_environment_says_so(policy):
    right = str(Guessing().task(TaskKey("guessing", "train", 0)).data)
    sampler = Scripted(*said(policy, "x!", f"{right}!", "y!"))
    (rollout,) = played(policy, sampler)
    assert len(sampler.requests) == 2
    assert (rollout.text, rollout.finish) == (right, "stop")


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_the_policy_speaks_no_oftener_than_it_may(policy, turns):
    sampler = Scripted(*said(policy, "x!", "x!", "x!"))
    (rollout,) = played(policy, sampler, budget=Budget(6, turns=turns))
    assert len(sampler.requests) == turns
    assert rollout.messages[-1].role == "assistant"


def test_a_turn_that_was_cut_off_ends_its_dialogue(policy):
    sampler = Scripted(*said(policy, "xxxxxxxx!", "y!"))
    (rollout,) = played(policy, sampler)
    assert (len(sampler.requests), rollout.finish, len(rollout.token_ids)) == (1, "length", 6)


@pytest.mark.parametrize("limit", range(1, 80, 13))
@pytest.mark.parametrize("name", ["dialogue", "context"])
def test_the_budget_of_the_whole_dialogue_holds(policy, name, limit):
    script = said(policy, "ab!", "ab!", "ab!")
    (whole,) = played(policy, Scripted(*script))
    most = limit if name == "dialogue" else len(whole.prompt_ids) + limit
    (rollout,) = played(policy, Scripted(*script), budget=Budget(6, 3, **{name: most}))
    assert 0 < len(rollout.token_ids) <= limit
    assert rollout.token_ids == whole.token_ids[: len(rollout.token_ids)]
    assert rollout.trainable[-1] == 1, "an environment's text is kept only if it is answered"
    assert (rollout.finish == "length") == (len(rollout.token_ids) < len(whole.token_ids))


def test_log_probs_of_later_turns_equal_the_trainers(policy):
    rollouts = played(policy, Engine(policy), tasks=3, attempts=4, budget=Budget(12, turns=3))
    assert any(len(r.turn_lengths) > 1 for r in rollouts), "no dialogue had a second turn"
    rows = [Row(r.segments[0], 0.0, 0.0) for r in rollouts]
    for micro in micro_batches(rows, max_tokens=400, device=CPU, dtype=torch.float64):
        logprob_BT, _ = policy.logprobs(micro, temperature=1.0)
        for row, logprob_T in zip(micro.rows, logprob_BT, strict=True):
            own_T = torch.tensor(row.segment.trainable, dtype=torch.bool)
            drawn_T = torch.tensor(row.segment.logprobs, dtype=torch.float64)
            found_T = logprob_T[: len(own_T)]
            torch.testing.assert_close(found_T[own_T], drawn_T[own_T], rtol=0, atol=1e-9)


def test_a_raw_prompt_goes_on_with_the_bare_words(policy):
    task = Task(TaskKey("raw", "train", 0), "1, 2, ", None)

    class Counting(StatelessConversations):
        async def reply(self, task: Task[None], messages: Sequence[Message]) -> Sequence[Message]:
            return (Message("user", " next: "),)

    sampler, budget = Scripted(*said(policy, "3", "4")), Budget(4, turns=2)
    rolled = rolled_out(policy, sampler, [task], attempts=1, budget=budget, replies=Counting())
    ((rollout,),) = asyncio.run(rolled)
    assert [list(rollout.token_ids)] == said(policy, "3 next: 4")
    assert rollout.trainable == (1, *[0] * 7, 1)


@pytest.mark.parametrize(
    "turn", ["higher", [Message("user", "higher"), "lower"], (Message("user", "\ud800"),), 3]
)
def test_a_reply_that_cannot_be_said_ends_its_attempt_as_one_that_cannot_be_judged(policy, turn):
    class Odd(Guessing):
        async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message]:
            return turn

    (rollout,) = played(policy, Scripted(*said(policy, "x!")), env=Odd())
    assert (rollout.finish, rollout.text) == ("error", "x")


def test_a_prompt_with_half_a_surrogate_pair_is_one_line(policy):
    message = r"a prompt holds half of a surrogate pair, .*: '.*\\ud83d"
    for prompt in ("\ud83d", (Message("user", "x \ud83d"),)):
        with pytest.raises(ConfigError, match=message):
            policy.encode(prompt)


def test_a_system_prompt_of_the_run_takes_the_place_of_the_prompts_own_and_of_no_other(policy):
    frame = ChatFrame(system_prompt="be brief")
    prompt = (Message("system", "be long"), Message("user", "hi"))
    shown = policy.decode(chat.encode(policy.tokenizer, prompt, frame))
    assert ("be brief" in shown, "be long" in shown) == (True, False)
    without = policy.decode(chat.encode(policy.tokenizer, prompt[1:], frame))
    assert "be brief" in without
    spoken, turn = [Message("assistant", "a")], [Message("system", "HINT")]
    reply = chat.encode_reply(policy.tokenizer, prompt[1:], spoken, turn, frame, end_id=None)
    assert "HINT" in policy.decode(reply)


def test_arguments_and_tools_reach_the_chat_template():
    own = tiny_policy()
    own.tokenizer.chat_template = "{{ messages[0].content }}{{ mood }}{{ tools[0].function.name }}"
    tool = {"type": "function", "function": {"name": "add"}}
    frame = ChatFrame(arguments={"mood": "calm"}, tools=[tool])
    assert own.decode(chat.encode(own.tokenizer, (Message("user", "x"),), frame)) == "xcalmadd"
    with pytest.raises(ConfigError, match="refuses the prompt"):
        chat.encode(own.tokenizer, (Message("user", "x"),), ChatFrame(arguments={"tokenize": True}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("03_train_on_cpu.py", marks=pytest.mark.heavy), "04_dialogue.py"]
)
def test_the_example_trains(tmp_path, name):
    example = Path(__file__).parents[2] / "examples" / name
    options = words(f"--model {save_tiny(tmp_path / 'model')} --steps 2 --out {tmp_path / 'run'}")
    command = [sys.executable, example, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "reward: " in result.stdout
    assert (tmp_path / "run" / "final" / "adapter_model.safetensors").exists()
