"""What an endpoint's request becomes for the policy, and a completion for the client."""

import asyncio
from dataclasses import replace

import pytest

from grpo_core import ConfigError, Message
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.endpoint import CompletionRequest, RefusedRequestError
from grpo_core.protocol.sampler import Completion, Request, SamplingParams
from grpo_core.protocol.types import ToolCall
from grpo_core.train.rollout import completions
from grpo_core.train.rollout.completions import (
    make_choice,
    prompt_tokens,
    random_key,
    sampler_request,
    token_budget,
)

from .samplers import Copyless
from .test_tool_formats import NAMES, TOOLS, WRITTEN, ids, policy_of
from .tiny import tiny_model, tiny_tokenizer

USER = Message("user", "What is 2 + 3?")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(tiny_model(), tiny_tokenizer())


def completion(policy: Policy, text: str, *, ended: bool = True) -> Completion:
    tokens = ids(policy, text, ended=ended)
    return Completion(tokens, (-1.0,) * len(tokens), "stop" if ended else "length")


def test_a_text_is_cut_at_a_stop_string_and_its_tokens_are_not(policy):
    drawn = replace(completion(policy, "One.\nQ: two", ended=False), finish="stop")
    choice = make_choice(policy, (5,), drawn, stop=("Z", "\nQ:"))
    assert (choice.text, choice.finish) == ("One.", "stop")
    assert choice.message == Message("assistant", "One.")
    assert "".join(choice.tokens) == "One.\nQ: two"
    assert choice.token_ids == drawn.token_ids
    assert choice.logprobs == drawn.logprobs


def test_the_end_token_is_a_token_and_no_text(policy):
    choice = make_choice(policy, (5,), completion(policy, "Yes"))
    assert choice.text == "Yes"
    assert choice.tokens == ("Y", "e", "s", "<|im_end|>")
    cut = make_choice(policy, (5,), completion(policy, "Yes", ended=False))
    assert cut.finish == "length"


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_apart_from_the_text_and_have_ids(name):
    policy = policy_of(name)
    beside = "" if NAMES[name] == "llama" else "Let me see. "
    drawn = completion(policy, beside + WRITTEN[NAMES[name]])
    choice = make_choice(policy, (5,), drawn, tools=TOOLS)
    assert choice.finish == "tool_calls"
    assert choice.message.content == beside.strip()
    (call,) = choice.message.tool_calls or ()
    assert call.name == "add"
    assert {key: int(value) for key, value in call.arguments.items()} == {"a": 2, "b": 3}
    assert len(call.id) == 9
    assert make_choice(policy, (5,), drawn, tools=TOOLS) == choice
    assert make_choice(policy, (6,), drawn, tools=TOOLS).message != choice.message
    without_tools = make_choice(policy, (5,), drawn)
    assert without_tools.finish == "stop"
    assert without_tools.message.tool_calls is None


def test_a_call_whose_form_is_wrong_is_text(policy):
    written = '<tool_call>{"name": "add"}</tool_call><tool_call>{"nam</tool_call>'
    choice = make_choice(policy, (5,), completion(policy, written), tools=TOOLS)
    assert (choice.text, choice.finish) == (written, "stop")
    assert choice.message == Message("assistant", written)


@pytest.mark.parametrize("schema", [{"anyOf": 5}, {"anyOf": ["x", None]}, {"type": ["string"]}, {}])
def test_descriptions_of_any_kind_do_no_harm(schema):
    policy = policy_of("qwen3_6")
    parameters = {"type": "object", "properties": {"a": schema}}
    tool = {"function": {"name": "add", "description": "", "parameters": parameters}}
    drawn = completion(policy, WRITTEN["qwen-coder"])
    (call,) = make_choice(policy, (5,), drawn, tools=[tool]).message.tool_calls or ()
    assert str(call.arguments["a"]) == "2"


def history(call_id: str) -> tuple[Message, ...]:
    call = ToolCall("add", {"a": 77, "b": 31}, call_id)
    return (
        USER,
        Message("assistant", "I add.", (call,)),
        Message("tool", "108"),
        Message("assistant", "Done."),
        Message("user", "Sure?"),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_template_writes_the_calls_of_a_history(name):
    policy = policy_of(name)
    request = CompletionRequest(history("abcDEF123"), tools=TOOLS)
    shown = policy.tokenizer.decode(prompt_tokens(policy, request))
    before, _, after = shown.partition("77")
    assert "add" in before
    assert all(text in after for text in ("31", "108", "Sure?"))
    assert shown.count("77") == 1


def test_a_template_that_knows_no_calls_gets_them_as_text(policy):
    shown = policy.tokenizer.decode(prompt_tokens(policy, CompletionRequest(history("x"))))
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 77, "b": 31}}\n</tool_call>'
    assert f"assistant\nI add.\n{call}<|im_end|>" in shown


def test_a_prompt_may_be_text_tokens_or_a_chat(policy):
    assert prompt_tokens(policy, CompletionRequest("ab")) == policy.encode("ab")
    assert prompt_tokens(policy, CompletionRequest((7, 8))) == (7, 8)
    assert prompt_tokens(policy, CompletionRequest((USER,))) == policy.encode((USER,))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (CompletionRequest(""), "no tokens"),
        (CompletionRequest(()), "no tokens"),
        (CompletionRequest((7, 5000)), "the token 5000, but the model's tokens are 0 to 103"),
        (CompletionRequest((-1,)), "the token -1"),
        (CompletionRequest("\ud800"), "surrogate"),
    ],
)
def test_a_prompt_without_tokens_is_refused(policy, request_, message):
    with pytest.raises(RefusedRequestError, match=message):
        prompt_tokens(policy, request_)


def test_a_chat_without_a_template_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(RefusedRequestError, match="no chat template"):
        prompt_tokens(Policy(tiny_model(), tokenizer), CompletionRequest((USER,)))


def test_the_budget_is_what_the_request_says_and_the_context_has_room_for(policy):
    prompt = (5,) * 1000
    assert token_budget(policy, CompletionRequest("a", max_tokens=24), prompt, default=9) == 24
    assert token_budget(policy, CompletionRequest("a"), prompt, default=9) == 9
    assert token_budget(policy, CompletionRequest("a"), prompt, default=99) == 24
    with pytest.raises(RefusedRequestError, match=r"1000 tokens and 25 new ones exceed .* 1024"):
        token_budget(policy, CompletionRequest("a", max_tokens=25), prompt, default=9)
    with pytest.raises(RefusedRequestError, match="exceed"):
        token_budget(policy, CompletionRequest("a"), (5,) * 1024, default=9)


def test_what_a_request_leaves_open_is_the_servers():
    defaults = SamplingParams(0.7, top_p=0.9, top_k=4, stop=("Q",))
    assert completions.sampling_params(CompletionRequest("a"), defaults) == defaults
    request = CompletionRequest("a", temperature=0.0, top_p=0.5, stop=("A", "B"))
    assert completions.sampling_params(request, defaults) == SamplingParams(
        0.0, top_p=0.5, top_k=4, stop=("A", "B")
    )


def test_a_seed_fixes_the_random_numbers_of_each_completion():
    keys = [random_key(3, 0), random_key(3, 1), random_key(4, 0), random_key(None, 0)]
    assert len({*keys}) == 4
    assert random_key(3, 1) == keys[1]
    assert random_key(None, 0) != keys[3]
    request = sampler_request((1, 2), SamplingParams(), key=keys[0], count=5)
    assert request == sampler_request((1, 2), SamplingParams(), key=keys[0], count=5)
    assert len(request.uniforms) == 5
    assert all(0 <= number < 1 for number in request.uniforms)
    other = sampler_request((1, 2), SamplingParams(), key=keys[1], count=5)
    assert other.uniforms != request.uniforms
    assert other.seed != request.seed


class Failing(Copyless):
    """Cannot draw: for want of a tokenizer that is known, or of anything else."""

    follows_schemas = True

    async def generate(self, request: Request) -> Completion:
        raise ConfigError("the tokenizer is unknown")


def test_only_a_schema_is_the_clients_to_leave_out():
    request = sampler_request((1,), SamplingParams(), key=1, count=2)
    with pytest.raises(ConfigError):
        asyncio.run(completions.generate(Failing(), request))
    with pytest.raises(RefusedRequestError, match="response_format: the tokenizer is unknown"):
        asyncio.run(completions.generate(Failing(), replace(request, json_schema={})))
    with pytest.raises(RefusedRequestError, match="response_format: this sampler cannot hold"):
        asyncio.run(completions.generate(object(), replace(request, json_schema={})))  # type: ignore[arg-type]
