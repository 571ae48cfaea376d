"""What `grpo serve` answers besides: token by token, with penalties and alternatives, echoes and metrics, as vLLM does."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import torch

from grpo_core import Message
from grpo_core.engine.policy.engine import Engine
from grpo_core.protocol.sampler import Extras, Request, SamplingParams
from grpo_endpoint.policy import PolicyCompleter

from .served import CHAT, Fake, openai_client, served, until
from .served_policy import scripted_completer, tiny_actor

USER = {"role": "user", "content": "What is 2 + 3?"}
ASK: dict[str, Any] = {"model": "policy", "messages": [USER], "max_tokens": 12}
TEXT: dict[str, Any] = {"model": "policy", "prompt": "One, two,", "max_tokens": 12}
NUMBER = {"type": "integer"}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"a": NUMBER},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("add", "multiply")
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A server with the random policy behind one key, and plain completers behind others."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    actor = tiny_actor(folder)
    with served(keep_alive_seconds=0.2) as found:
        access = found.admit(PolicyCompleter(actor))
        with openai_client(access) as client, found.http(access) as http:
            yield SimpleNamespace(
                access=access, actor=actor, client=client, found=found, folder=folder, http=http
            )


def chat(server: SimpleNamespace, **more: Any) -> Any:
    return server.client.chat.completions.create(**{**ASK, **more})


def text(server: SimpleNamespace, **more: Any) -> Any:
    return server.client.completions.create(**{**TEXT, **more})


def logits_after(server: SimpleNamespace, token_ids: list[int]) -> torch.Tensor:
    """The logits of the next token, by transformers' own forward pass."""
    with torch.no_grad():
        return server.actor.policy.model(torch.tensor([token_ids])).logits[0, -1].float()


# Streams.


def test_a_stream_sends_each_token_when_it_is_drawn(server):
    whole = chat(server, seed=9, logprobs=True, top_logprobs=2)
    assert whole.usage.completion_tokens > 3
    chunks = list(chat(server, seed=9, logprobs=True, top_logprobs=2, stream=True))
    texts = [c.choices[0].delta.content for c in chunks if c.choices[0].delta.content]
    assert len(texts) > 3
    assert "".join(texts) == whole.choices[0].message.content
    tokens = [each for c in chunks if (found := c.choices[0].logprobs) for each in found.content]
    assert tokens == whole.choices[0].logprobs.content
    assert [c.choices[0].finish_reason for c in chunks[-1:]] == [whole.choices[0].finish_reason]


def test_several_choices_of_several_texts_are_streamed_side_by_side(server):
    asked = {"prompt": ["One", "Two"], "n": 2, "seed": 3, "logprobs": 1, "echo": True}
    whole = text(server, **asked)
    texts, logprobs = [""] * 4, [[] for _ in range(4)]
    for chunk in text(server, **asked, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.logprobs is not None:
            found = choice.logprobs
            logprobs[choice.index] += zip(
                found.tokens, found.token_logprobs, found.text_offset, strict=True
            )
    assert texts == [choice.text for choice in whole.choices]
    for choice, found in zip(whole.choices, logprobs, strict=True):
        own = choice.logprobs
        assert found == [*zip(own.tokens, own.token_logprobs, own.text_offset, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_a_streamed_text_ends_before_its_stop_string(server, seed):
    whole = chat(server, seed=seed).choices[0].message.content
    stop = whole[4:7]
    answer = chat(server, seed=seed, stop=[stop, "never"])
    chunks = list(chat(server, seed=seed, stop=[stop, "never"], stream=True))
    content = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert content == answer.choices[0].message.content == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


SAID = {
    "thinks": "<think>\nTwo and three.\n</think>\n\nIt is <b>5</b>.",
    "hides": "<think>\nTwo and",
    "calls": 'I look. [sic] <tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>',
    "plain": "It is {5} \n",
    "odd": "<thin",
}


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["", "tools"])
def test_a_stream_of_tokens_has_thoughts_content_and_calls_of_the_whole_answer(said, tools, server):
    """Whatever the tokens are, no delta takes back what an earlier one said."""

    class Telling:
        """Says a text, and tells its tokens as the built-in engine does."""

        takes_extras = True

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def generate(self, request: Request) -> Any:
            completion = await self._inner.generate(request)
            if request.extras is not None and request.extras.on_token is not None:
                for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
                    request.extras.on_token(token, logprob, ())
                    await asyncio.sleep(0)
            return completion

    completer = scripted_completer(server.folder, lambda prompt: SAID[said])
    completer._sampler = Telling(completer._sampler)
    access = server.found.admit(completer)
    with openai_client(access) as client:
        ask: Any = {**ASK, "max_tokens": 500, "tools": tools or openai.NOT_GIVEN}
        message = client.chat.completions.create(**ask).choices[0].message
        chunks = list(client.chat.completions.create(**ask, stream=True))
    deltas = [c.choices[0].delta for c in chunks]
    thoughts = [found for d in deltas if (found := getattr(d, "reasoning_content", None))]
    calls = [call for d in deltas for call in d.tool_calls or ()]
    assert "".join(thoughts) == (getattr(message, "reasoning_content", None) or "")
    assert "".join(d.content or "" for d in deltas) == (message.content or "")
    assert [call.function.name for call in calls] == [
        call.function.name for call in message.tool_calls or ()
    ]
    if said in ("thinks", "hides"):
        assert len(thoughts) > 3
    if said == "calls":
        assert len([d for d in deltas if d.content]) > 3
        assert bool(calls) == bool(tools)


def test_a_client_that_goes_away_in_the_midst_of_a_stream_frees_its_place(server):
    own = '{model_name="policy"}'
    failed = numbers(server)[f"grpo:request_failure_total{own}"]
    bias = {str(token): -100 for token in server.actor.policy.end_ids}
    stream = chat(server, max_tokens=900, n=20, temperature=5, logit_bias=bias, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()
    until(lambda: numbers(server)[f"grpo:request_failure_total{own}"] == failed + 1)
    assert numbers(server)[f"grpo:num_requests_running{own}"] == 0
    assert chat(server, max_tokens=2).usage.completion_tokens <= 2


# Parameters of sampling.


@pytest.mark.parametrize(
    "more", [{"top_k": 1}, {"min_p": 1.0}, {"top_k": 1, "min_p": 0.5, "repetition_penalty": 1.0}]
)
def test_top_k_and_min_p_leave_only_the_most_likely_token(server, more):
    greedy = chat(server, temperature=0).choices[0].message.content
    assert chat(server, temperature=1.5, extra_body=more).choices[0].message.content == greedy
    free = [chat(server, temperature=1.5, seed=seed, extra_body={"top_k": -1}) for seed in (1, 2)]
    assert free[0].choices[0].message.content != free[1].choices[0].message.content


def drawn(server: SimpleNamespace, extras: Extras, count: int = 8) -> Any:
    """A greedy completion of some tokens with extras, by the built-in engine."""
    policy = server.actor.policy
    ids = policy.encode("One, two,")
    request = Request(ids, [0.5] * count, SamplingParams(temperature=0.0), extras=extras)

    async def both() -> Any:
        plain = Request(ids, [0.5] * count, SamplingParams(temperature=0.0))
        engine = Engine(policy)
        return await asyncio.gather(engine.generate(request), engine.generate(plain))

    return (*asyncio.run(both()), ids)


def test_penalties_and_bias_draw_what_their_definition_draws_and_change_no_other_request(server):
    ends = server.actor.policy.end_ids
    bias = dict.fromkeys(ends, -100.0)
    plain_alone = drawn(server, Extras())[0]
    for extras in (
        Extras(bias, repetition_penalty=1.7),
        Extras(bias, presence_penalty=2.0),
        Extras(bias, frequency_penalty=1.5),
        Extras({**bias, 7: 30.0}, 1.3, 0.5, 2.0),
    ):
        completion, beside, ids = drawn(server, extras)
        assert beside.token_ids == plain_alone.token_ids
        out: list[int] = []
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            logits = logits_after(server, [*ids, *out])
            shaped = logits.tolist()
            for place, value in extras.logit_bias.items():
                shaped[place] += value
            for place in {*ids, *out}:
                factor = extras.repetition_penalty
                shaped[place] = (
                    shaped[place] / factor if shaped[place] > 0 else shaped[place] * factor
                )
            for place in set(out):
                shaped[place] -= extras.presence_penalty
                shaped[place] -= extras.frequency_penalty * out.count(place)
            assert shaped[token] == pytest.approx(max(shaped), abs=1e-3)
            assert logprob == pytest.approx(logits.log_softmax(-1)[token].item(), abs=1e-3)
            out.append(token)


def test_the_alternatives_are_the_most_likely_tokens_of_the_full_distribution(server):
    ids = list(server.actor.policy.encode("One, two,"))
    choice = text(server, logprobs=5, temperature=0.5, top_p=0.1, seed=1, max_tokens=1).choices[0]
    expected = (logits_after(server, ids) / 0.5).log_softmax(-1)
    (found,) = choice.logprobs.top_logprobs
    assert len(found) in (5, 6)  # the drawn one is among them
    best = sorted(found.values(), reverse=True)[:5]
    assert best == pytest.approx(expected.topk(5).values.tolist(), abs=1e-3)
    assert found[choice.logprobs.tokens[0]] == choice.logprobs.token_logprobs[0]
    answer = chat(server, logprobs=True, top_logprobs=3).choices[0]
    for place in answer.logprobs.content:
        assert len(place.top_logprobs) == 3
        values = [each.logprob for each in place.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-6


def test_an_echo_has_the_log_probs_of_its_prompt_as_harnesses_compare_them(server):
    policy = server.actor.policy
    ids = list(policy.encode("One, two,"))
    answer = text(server, echo=True, logprobs=1, max_tokens=0, temperature=0)
    (choice,) = answer.choices
    assert (choice.text, answer.usage.completion_tokens) == ("One, two,", 0)
    first, *rest = choice.logprobs.token_logprobs
    assert (first, choice.logprobs.top_logprobs[0]) == (None, None)
    for place, logprob in enumerate(rest, 1):
        expected = logits_after(server, ids[:place]).log_softmax(-1)
        assert logprob == pytest.approx(expected[ids[place]].item(), abs=1e-3)
        assert max(choice.logprobs.top_logprobs[place].values()) == pytest.approx(
            expected.max().item(), abs=1e-3
        )
    plain = text(server, seed=4)
    behind = text(server, seed=4, echo=True, logprobs=0, prompt=ids)
    assert behind.choices[0].text == policy.decode(ids) + plain.choices[0].text
    assert len(behind.choices[0].logprobs.tokens) == len(ids) + plain.usage.completion_tokens


@pytest.mark.slow
def test_a_tool_that_has_to_be_called_is_called(server):
    named = {"type": "function", "function": {"name": "multiply"}}
    for choice, names in ((named, {"multiply"}), ("required", {"add", "multiply"})):
        ended = 0
        for seed in range(6):
            asked = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "max_tokens": 150}
            found = chat(server, **asked).choices[0]
            if found.finish_reason == "length":
                continue
            ended += 1
            assert found.finish_reason == "tool_calls"
            assert found.message.content is None
            for call in found.message.tool_calls:
                assert call.function.name in names
                assert json.loads(call.function.arguments).keys() == {"a"}
            chunks = list(chat(server, **asked, stream=True))
            told = [call for c in chunks for call in c.choices[0].delta.tool_calls or ()]
            assert [c.id for c in told] == [c.id for c in found.message.tool_calls]
        assert ended


def test_arguments_reach_the_chat_template(server):
    policy = server.actor.policy
    template = policy.tokenizer.chat_template
    policy.tokenizer.chat_template = "{% if loud %}LOUD {% endif %}" + template
    try:
        plain = chat(server, max_tokens=1).usage.prompt_tokens
        loud = chat(server, max_tokens=1, extra_body={"chat_template_kwargs": {"loud": True}})
        assert loud.usage.prompt_tokens > plain
        with pytest.raises(openai.BadRequestError, match="its argument messages is set already"):
            chat(server, extra_body={"chat_template_kwargs": {"messages": []}})
    finally:
        policy.tokenizer.chat_template = template


@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs=true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21 was found"),
        ({"min_tokens": 3}, "min_tokens", "this server supports only null or 0"),
        ({"ignore_eos": True}, "ignore_eos", "only null or false"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice", "there is no tool 'no'"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "ids of tokens"),
        ({"logit_bias": {"99999": 1}}, None, "the token 99999"),
        ({"best_of": 2}, "best_of", "does not support it"),
        ({"guided_json": {}}, "guided_json", "does not support it"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty", "greater than or equal to 0.01"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_with_the_name_of_its_field(server, more, param, message):
    response = server.http.post(CHAT, json={**ASK, **more})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


EXTREMES: list[dict[str, Any]] = [
    {"repetition_penalty": 0.01, "temperature": 1e-6},
    {"repetition_penalty": 100, "temperature": 100, "frequency_penalty": -2},
    {"logit_bias": {str(token): -100 for token in range(104)}, "presence_penalty": 2},
    {"logit_bias": {"5": 100, "05": -100}},
    {"top_k": 10**30, "min_p": 1},
    {"logit_bias": {"9" * 5000: 1}},
    {"logit_bias": {"\u0665": 1}},
    {"chat_template_kwargs": {"__class__": 1, "bos_token": ["x"], "raise_exception": 0}},
    {"chat_template_kwargs": {"add_generation_prompt": False}},
    {"tools": [tool({"type": "array"})], "tool_choice": "required"},
    {"tools": [tool({})], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"tools": [tool({"type": 5})], "tool_choice": "required"},
    {"tools": [tool({})], "tool_choice": "required", "response_format": {"type": "json_object"}},
    {"logprobs": True, "top_logprobs": 20, "n": 128, "max_tokens": 1},
]


@pytest.mark.slow
def test_extreme_values_are_answered_or_refused_and_cost_nobody_else_his_answer(server):
    honest = {"seed": 1, "temperature": 0}
    first = chat(server, **honest).choices
    for more in EXTREMES:
        for stream in (False, True):
            response = server.http.post(CHAT, json={**ASK, "seed": 2, **more, "stream": stream})
            assert response.status_code in (200, 400), (more, response.text[:500])
            assert '"server_error"' not in response.text, (more, response.text[-500:])
        assert chat(server, **honest).choices == first, more


def test_what_a_sampler_cannot_do_is_refused_and_the_rest_of_a_stream_comes_whole(server):
    access = server.found.admit(scripted_completer(server.folder, lambda prompt: "It is 5."))
    with openai_client(access) as client:
        create = client.chat.completions.create
        for more in ({"presence_penalty": 0.5}, {"logprobs": True, "top_logprobs": 2}):
            with pytest.raises(
                openai.BadRequestError, match=f"{[*more][-1]}: this server's sampler"
            ):
                create(**ASK, **more)
        content = [
            c.choices[0].delta.content for c in create(**{**ASK, "max_tokens": 50}, stream=True)
        ]
    assert content == ["", "It is 5.", None]


VLLM: dict[str, Any] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias")),
    **dict.fromkeys(("seed", "temperature", "top_p", "top_k", "min_p", "watermarking", "user")),
    **dict.fromkeys(("truncate_prompt_tokens", "truncation_side", "prompt_logprobs")),
    **dict.fromkeys(("logprob_token_ids", "allowed_token_ids", "structured_outputs")),
    **dict.fromkeys(("return_tokens_as_token_ids", "return_token_ids", "thinking_token_budget")),
    "n": 1,
    "stop": [],
    "stream": False,
    "stream_options": None,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "bad_words": [],
    "spaces_between_special_tokens": True,
    "echo": False,
    "response_format": None,
    "priority": 0,
    "request_id": "a",
    "session_id": None,
}
"""The fields of vLLM's requests with the defaults of its server."""
VLLM_CHAT: dict[str, Any] = {
    "logprobs": False,
    "top_logprobs": 0,
    "max_completion_tokens": None,
    "tools": None,
    "tool_choice": "none",
    "reasoning_effort": None,
    "include_reasoning": True,
    "parallel_tool_calls": True,
    "add_generation_prompt": True,
    "documents": None,
    "continue_final_message": False,
    "add_special_tokens": False,
    "chat_template": None,
    "chat_template_kwargs": None,
}
VLLM_TEXT: dict[str, Any] = {"logprobs": None, "suffix": None, "add_special_tokens": True}


def test_what_clients_of_vllm_send_by_default_changes_nothing(server):
    for path, asked, own in (
        (CHAT, ASK, VLLM_CHAT),
        ("/v1/completions", TEXT, VLLM_TEXT),
    ):
        plain, full = (
            server.http.post(path, json={**asked, **more, "seed": 5}).json()
            for more in ({}, {**VLLM, **own})
        )
        assert full.get("choices") == plain["choices"], full
        assert full.keys() == plain.keys()


# What stands before a chat, and budgets.


def test_messages_of_an_environment_stand_before_each_chat_that_has_no_system_prompt(server):
    before = (Message("system", "Be exact."), Message("user", "1 + 1"), Message("assistant", "2"))
    sent = [{"role": message.role, "content": message.content} for message in before]
    with openai_client(server.found.admit(PolicyCompleter(server.actor, before))) as client:

        def tokens(*messages: Any) -> int:
            asked = {**ASK, "max_tokens": 1, "messages": [*messages]}
            return int(client.chat.completions.create(**asked).usage.prompt_tokens)

        whole = tokens(*sent, USER)
        assert tokens(USER) == whole
        assert tokens({"role": "system", "content": "No."}, USER) < whole
        answer = client.completions.create(**{**TEXT, "max_tokens": 1})
        assert answer.usage.prompt_tokens < whole


def test_a_request_that_names_no_budget_has_the_rest_of_the_context(server):
    bias = {str(token): -100 for token in server.actor.policy.end_ids}
    long = [{"role": "user", "content": "a " * 470}]  # so that the rest is drawn quickly
    answer = chat(server, messages=long, max_tokens=None, temperature=0, logit_bias=bias)
    assert answer.usage.completion_tokens > 20
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == server.actor.policy.context
    assert text(server, max_tokens=openai.NOT_GIVEN, logit_bias=bias).usage.completion_tokens == 16


# Other routes.


def numbers(server: SimpleNamespace) -> dict[str, float]:
    """The metrics by their names with labels."""
    response = server.http.get("/metrics", headers={"authorization": ""})
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_requests_and_tokens(server):
    before = numbers(server)
    answer = chat(server, n=2)
    with pytest.raises(openai.BadRequestError):
        chat(server, max_tokens=5000)
    change = {name: value - before[name] for name, value in numbers(server).items()}
    own = '{model_name="policy"}'
    assert change[f"grpo:prompt_tokens_total{own}"] == answer.usage.prompt_tokens
    assert change[f"grpo:generation_tokens_total{own}"] == answer.usage.completion_tokens
    assert change[f"grpo:request_failure_total{own}"] == 1
    assert change[f"grpo:e2e_request_latency_seconds_count{own}"] == 1
    assert change['grpo:e2e_request_latency_seconds_bucket{model_name="policy",le="+Inf"}'] == 1
    finished = [value for name, value in change.items() if "request_success" in name]
    assert sum(finished) == 2
    stop = threading.Event()

    async def wait(_: object) -> Any:
        await asyncio.to_thread(stop.wait, 20)
        return None

    access = server.found.admit(Fake(wait))
    with server.found.http(access) as http, httpx.Client() as _:
        thread = threading.Thread(target=lambda: http.post(CHAT, json={**ASK}))
        thread.start()
        until(lambda: numbers(server)[f"grpo:num_requests_running{own}"] == 1)
        stop.set()
        thread.join()


def test_the_model_says_its_context_and_the_training_endpoint_has_no_metrics(server):
    (model,) = server.client.models.list().data
    assert (model.id, model.max_model_len) == ("policy", server.actor.policy.context)
    assert "ServedChatBody" in server.http.get("/openapi.json").text
    with served() as other, other.http(other.admit(Fake())) as http:
        assert http.get("/metrics").status_code == 404
        assert "max_model_len" not in http.get("/v1/models").text
        assert "top_k" not in http.get("/openapi.json").text
