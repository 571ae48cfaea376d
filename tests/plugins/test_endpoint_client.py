"""Calls of the `openai` package's own client against the endpoint, with a tiny policy behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from grpo_core.train.run.serving import PolicyCompleter

from .served import openai_client, served
from .served_policy import scripted_completer, tiny_actor

USER = {"role": "user", "content": "What is 2 + 3?"}
CHAT: dict[str, Any] = {"model": "policy", "messages": [USER], "max_tokens": 12}
TEXT: dict[str, Any] = {"model": "policy", "prompt": "One, two,", "max_tokens": 12}


def function(name: str) -> dict[str, Any]:
    number = {"type": "integer"}
    parameters = {"type": "object", "properties": {"a": number, "b": number}}
    return {
        "type": "function",
        "function": {"name": name, "description": "Computes.", "parameters": parameters},
    }


TOOLS: Any = [function("add"), function("multiply")]


def called(name: str, **arguments: int) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def script(prompt: str) -> str:
    """What the scripted policy says: it looks at the last message."""
    last = prompt.rpartition("<|im_start|>assistant")[0].rpartition("<|im_start|>")[2]
    if last.startswith("tool"):
        return "It is " + " and ".join(
            part.partition("<|im_end|>")[0] for part in prompt.split("<|im_start|>tool\n")[1:]
        )
    if "think" in last:
        return f"<think>\n{called('multiply', a=2, b=3)}?\n</think>\n\n{called('add', a=2, b=3)}"
    if "ponder" in last:
        return "<think>\nTwo and three.\n</think>\n\n5"
    if "endless" in last:
        return "<think>\nTwo and three"
    if "both" in last:
        return "I do both." + called("add", a=2, b=3) + called("multiply", a=2, b=3)
    return called("add", a=2, b=3)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Clients of one server: of a random policy, and of a scripted one, which calls tools."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    socket = tmp_path_factory.mktemp("s") / "socket"
    with served(socket=str(socket)) as server:
        access = server.admit(PolicyCompleter(tiny_actor(folder)))
        scripted = server.admit(scripted_completer(folder, script))
        with openai_client(access) as random_client, openai_client(scripted) as tool_client:
            yield SimpleNamespace(
                access=access, policy=random_client, scripted=tool_client, socket=socket
            )


def content(answer: ChatCompletion, number: int = 0) -> str:
    return answer.choices[number].message.content or ""


def streamed(stream: Any) -> list[Any]:
    with stream:
        return list(stream)


def text_of(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice.delta.content or ""
        for chunk in chunks
        for choice in chunk.choices
        if choice.index == index
    )


class Calls:
    """Each gets the client of the random policy."""

    @staticmethod
    def an_unknown_model_is_not_found(client: OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="there is only 'policy'"):
            client.models.retrieve("gpt/4o")
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(**{**CHAT, "model": "gpt-4o"})
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    @staticmethod
    def a_chat_is_answered(client: OpenAI) -> None:
        answer = client.chat.completions.create(**CHAT)
        assert (answer.object, answer.model, len(answer.choices)) == (
            "chat.completion",
            "policy",
            1,
        )
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert answer.usage is not None
        assert (
            answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        )
        assert 0 < answer.usage.completion_tokens <= 12

    @staticmethod
    def a_seed_fixes_the_answer(client: OpenAI) -> None:
        answers = [content(client.chat.completions.create(**CHAT, seed=seed)) for seed in (5, 5, 6)]
        assert answers[0] == answers[1]
        assert answers[0] != answers[2]

    @staticmethod
    def several_choices_differ(client: OpenAI) -> None:
        answer = client.chat.completions.create(**CHAT, n=4, seed=3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert len({choice.message.content for choice in answer.choices}) == 4
        again = client.chat.completions.create(**CHAT, n=4, seed=3)
        assert [content(again, i) for i in range(4)] == [content(answer, i) for i in range(4)]

    @staticmethod
    def a_stop_text_is_cut(client: OpenAI) -> None:
        whole = content(client.chat.completions.create(**CHAT, seed=7))
        assert len(whole) > 6
        for stop in (whole[4], [whole[4:6], "no such text"]):
            answer = client.chat.completions.create(**CHAT, seed=7, stop=stop)
            first = stop if isinstance(stop, str) else stop[0]
            assert content(answer) == whole[: whole.index(first)]
            assert answer.choices[0].finish_reason == "stop"

    @staticmethod
    def log_probs_belong_to_the_tokens(client: OpenAI) -> None:
        answer = client.chat.completions.create(**CHAT, logprobs=True, seed=8)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        tokens = [each.token for each in logprobs.content]
        assert "".join(tokens).removesuffix("<|im_end|>") == content(answer)
        assert all(each.logprob <= 0 and each.bytes for each in logprobs.content)
        assert answer.usage is not None
        assert len(tokens) == answer.usage.completion_tokens

    @staticmethod
    def a_stream_has_the_same_text(client: OpenAI) -> None:
        whole = client.chat.completions.create(**CHAT, seed=9)
        chunks = streamed(client.chat.completions.create(**CHAT, seed=9, stream=True))
        assert text_of(chunks) == content(whole)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert len({chunk.id for chunk in chunks}) == 1

    @staticmethod
    def a_stream_may_end_with_the_usage(client: OpenAI) -> None:
        whole = client.chat.completions.create(**CHAT, seed=9)
        options: Any = {"include_usage": True}
        chunks = streamed(
            client.chat.completions.create(**CHAT, seed=9, stream=True, stream_options=options)
        )
        assert chunks[-1].usage == whole.usage
        assert chunks[-1].choices == []
        assert all(chunk.usage is None for chunk in chunks[:-1])

    @staticmethod
    def the_clients_own_accumulation_of_a_stream_works(client: OpenAI) -> None:
        whole = content(client.chat.completions.create(**CHAT, seed=9))
        with client.chat.completions.stream(**CHAT, seed=9, stop=whole[5]) as stream:
            final = stream.get_final_completion()
        assert content(final) == whole[: whole.index(whole[5])]

    @staticmethod
    def an_answer_may_have_to_be_json(client: OpenAI) -> None:
        properties = {"answer": {"type": "integer"}, "sure": {"enum": [True, False]}}
        schema = {"type": "object", "properties": properties, "required": ["answer", "sure"]}
        named = {
            "name": "answer",
            "schema": {**schema, "additionalProperties": False},
            "strict": True,
        }
        ended = []
        for seed in range(12):
            answer = client.chat.completions.create(
                **{**CHAT, "max_tokens": 60},
                seed=seed,
                response_format={"type": "json_schema", "json_schema": named},  # type: ignore[typeddict-item]
            )
            if answer.choices[0].finish_reason == "stop":
                ended.append(json.loads(content(answer)))
        assert ended
        assert all(
            each.keys() == {"answer", "sure"} and each["sure"] in (True, False) for each in ended
        )
        free = client.chat.completions.create(
            **CHAT, response_format={"type": "json_object"}, seed=1
        )
        assert content(free).startswith("{")

    @staticmethod
    def parameters_that_change_nothing_are_accepted(client: OpenAI) -> None:
        client.chat.completions.create(
            **CHAT,
            user="me",
            metadata={"run": "1"},
            store=False,
            service_tier="auto",
            frequency_penalty=0.0,
            presence_penalty=0,
            logit_bias={},
            top_logprobs=0,
            modalities=["text"],
            parallel_tool_calls=True,
            safety_identifier="me",
            prompt_cache_key="k",
            response_format={"type": "text"},
        )

    @staticmethod
    def parameters_that_would_change_the_answer_are_refused(client: OpenAI) -> None:
        unsupported: list[dict[str, Any]] = [
            {"frequency_penalty": 0.5},
            {"presence_penalty": -1},
            {"logit_bias": {"5": 10}},
            {"parallel_tool_calls": False},
            {"reasoning_effort": "high"},
            {"modalities": ["audio"]},
            {"service_tier": "flex"},
            {"store": True},
            {"tool_choice": "required"},
            {"web_search_options": {}},
            {"functions": []},
            {"extra_body": {"top_k": 5}},
        ]
        for parameters in unsupported:
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**CHAT, **parameters)
            name = next(iter(parameters.get("extra_body", parameters)))
            assert caught.value.param == name
            assert name in caught.value.message

    @staticmethod
    def a_text_is_continued(client: OpenAI) -> None:
        answer = client.completions.create(**TEXT)
        assert (answer.object, answer.choices[0].index) == ("text_completion", 0)
        assert answer.usage is not None
        assert 0 < answer.usage.completion_tokens <= 12

    @staticmethod
    def several_texts_are_continued(client: OpenAI) -> None:
        for prompt in (["One", "Two"], [[40, 41], [42]]):
            answer = client.completions.create(**{**TEXT, "prompt": prompt}, n=2, seed=1)
            assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
            single = client.completions.create(**{**TEXT, "prompt": prompt[1]}, n=2, seed=1)
            assert [choice.text for choice in answer.choices[2:]] == [
                choice.text for choice in single.choices
            ]

    @staticmethod
    def a_text_has_log_probs_and_offsets(client: OpenAI) -> None:
        choice = client.completions.create(**TEXT, logprobs=0, seed=1).choices[0]
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert choice.logprobs.text_offset is not None
        assert "".join(choice.logprobs.tokens).replace("<|pad|>", "") == choice.text
        assert choice.logprobs.text_offset[:3] == [0, 1, 2]
        with pytest.raises(openai.BadRequestError, match="logprobs: 3 was found"):
            client.completions.create(**TEXT, logprobs=3)

    @staticmethod
    def a_text_may_be_streamed(client: OpenAI) -> None:
        whole = client.completions.create(**TEXT, seed=1, stop="zz")
        options: Any = {"include_usage": True}
        chunks = streamed(
            client.completions.create(
                **TEXT, seed=1, stop="zz", stream=True, stream_options=options
            )
        )
        assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
        assert chunks[-1].usage == whole.usage

    @staticmethod
    def a_wrong_key_is_refused(client: OpenAI) -> None:
        for key in ("sk-wrong", "grpo-"):
            with pytest.raises(openai.AuthenticationError, match="not known") as caught:
                client.with_options(api_key=key).chat.completions.create(**CHAT)
            assert caught.value.code == "invalid_api_key"

    @staticmethod
    def tokens_are_continued(client: OpenAI) -> None:
        answer = client.completions.create(**{**TEXT, "prompt": [40, 41, 42]})
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 3
        with pytest.raises(openai.BadRequestError, match="the token 7000"):
            client.completions.create(**{**TEXT, "prompt": [7000]})

    @staticmethod
    def a_budget_beyond_the_context_is_refused(client: OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="exceed the model's context of 1024"):
            client.chat.completions.create(**{**CHAT, "max_tokens": 5000})

    @staticmethod
    def an_echo_is_refused(client: OpenAI) -> None:
        for parameters in ({"echo": True}, {"suffix": "."}, {"best_of": 3}):
            with pytest.raises(openai.BadRequestError, match=next(iter(parameters))):
                client.completions.create(**TEXT, **parameters)  # type: ignore[call-overload]

    @staticmethod
    def raw_answers_have_an_id(client: OpenAI) -> None:
        raw = client.chat.completions.with_raw_response.create(**CHAT)
        assert raw.headers["content-type"] == "application/json"
        assert raw.parse()._request_id == raw.headers["x-request-id"] != ""

    @staticmethod
    def a_stream_may_have_several_choices(client: OpenAI) -> None:
        whole = client.chat.completions.create(**CHAT, seed=9, n=3)
        chunks = streamed(client.chat.completions.create(**CHAT, seed=9, n=3, stream=True))
        assert [text_of(chunks, i) for i in range(3)] == [content(whole, i) for i in range(3)]

    @staticmethod
    def a_stream_may_have_log_probs(client: OpenAI) -> None:
        whole = client.chat.completions.create(**CHAT, seed=9, logprobs=True)
        chunks = streamed(
            client.chat.completions.create(**CHAT, seed=9, logprobs=True, stream=True)
        )
        found = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
        assert found[0].content == whole.choices[0].logprobs.content  # type: ignore[union-attr]

    @staticmethod
    def two_requests_at_once_are_answered(client: OpenAI) -> None:
        async def both() -> list[ChatCompletion]:
            options: Any = {"base_url": client.base_url, "api_key": client.api_key}
            async with openai.AsyncOpenAI(**options) as other:
                return await asyncio.gather(
                    *(other.chat.completions.create(**CHAT, seed=seed) for seed in (1, 2))
                )

        answers = [content(answer) for answer in asyncio.run(both())]
        alone = [content(client.chat.completions.create(**CHAT, seed=seed)) for seed in (1, 2)]
        assert answers == alone


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in vars(Calls) if not name.startswith("_")])
def test_the_clients_calls_are_answered(clients: SimpleNamespace, name: str) -> None:
    getattr(Calls, name)(clients.policy)


def test_tools_are_called_and_their_results_are_read(clients: SimpleNamespace) -> None:
    create = clients.scripted.chat.completions.create
    asked = create(model="policy", messages=[USER], tools=TOOLS)
    assert (asked.choices[0].finish_reason, asked.choices[0].message.content) == (
        "tool_calls",
        None,
    )
    (call,) = asked.choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "add")
    assert json.loads(call.function.arguments) == {"a": 2, "b": 3}
    result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    told = create(model="policy", messages=[USER, asked.choices[0].message, result], tools=TOOLS)
    assert (content(told), told.choices[0].finish_reason) == ("It is 5", "stop")


def test_results_belong_to_their_calls_in_any_order(clients: SimpleNamespace) -> None:
    create = clients.scripted.chat.completions.create
    user = {"role": "user", "content": "Do both."}
    asked = create(model="policy", messages=[user], tools=TOOLS).choices[0].message
    assert asked.content == "I do both."
    assert [call.function.name for call in asked.tool_calls] == ["add", "multiply"]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": text}
        for call, text in zip(asked.tool_calls, ("5", "6"), strict=True)
    ]
    told = create(model="policy", messages=[user, asked, *reversed(results)], tools=TOOLS)
    assert content(told) == "It is 5 and 6"
    with pytest.raises(openai.BadRequestError, match="has no result") as caught:
        create(model="policy", messages=[user, asked, results[0]], tools=TOOLS)
    assert caught.value.param == "messages.2"


def test_calls_of_tools_may_be_streamed(clients: SimpleNamespace) -> None:
    create = clients.scripted.chat.completions.create
    user = {"role": "user", "content": "Do both."}
    whole = create(model="policy", messages=[user], tools=TOOLS).choices[0]
    chunks = streamed(create(model="policy", messages=[user], tools=TOOLS, stream=True))
    calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or ()]
    assert [(call.index, call.id) for call in calls] == [
        (number, call.id) for number, call in enumerate(whole.message.tool_calls)
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert text_of(chunks) == "I do both."


def test_without_tools_a_call_is_text(clients: SimpleNamespace) -> None:
    create = clients.scripted.chat.completions.create
    for more in ({"tools": TOOLS, "tool_choice": "none"}, {}):
        choice = create(model="policy", messages=[USER], **more).choices[0]
        assert choice.message.content == called("add", a=2, b=3)
        assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")


def test_thoughts_come_apart_and_may_be_sent_back(clients: SimpleNamespace) -> None:
    create = clients.scripted.chat.completions.create
    user = {"role": "user", "content": "ponder"}
    message = create(model="policy", messages=[user]).choices[0].message
    assert (message.content, message.reasoning_content) == ("5", "Two and three.")
    sent_back = [
        message,
        {"role": "assistant", "content": "5"},
        {"role": "assistant", "content": "5", "reasoning": "Two and three."},
    ]
    for turn in sent_back:
        told = create(model="policy", messages=[user, turn, {"role": "user", "content": "ponder"}])
        assert content(told) == "5"
    endless = create(model="policy", messages=[{"role": "user", "content": "endless"}])
    assert endless.choices[0].message.content == ""
    assert endless.choices[0].message.reasoning_content == "Two and three"
    text = clients.scripted.completions.create(model="policy", prompt="ponder<|im_start|>assistant")
    assert text.choices[0].text.startswith("<think>")


def test_thoughts_are_streamed_before_the_content(clients: SimpleNamespace) -> None:
    create = clients.scripted.chat.completions.create
    user = {"role": "user", "content": "ponder"}
    deltas = [
        chunk.choices[0].delta
        for chunk in streamed(create(model="policy", messages=[user], stream=True))
    ]
    said = [(d.model_extra.get("reasoning_content"), d.content) for d in deltas]
    assert said == [(None, ""), ("Two and three.", None), (None, "5"), (None, None)]


def test_a_call_in_thoughts_is_not_made(clients: SimpleNamespace) -> None:
    create = clients.scripted.chat.completions.create
    user = {"role": "user", "content": "think"}
    message = create(model="policy", messages=[user], tools=TOOLS).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["add"]
    assert "multiply" in message.reasoning_content
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "5"}
    assert content(create(model="policy", messages=[user, message, result], tools=TOOLS)) == (
        "It is 5"
    )


def test_json_of_a_schema_is_parsed_by_the_client(clients: SimpleNamespace) -> None:
    class Point(BaseModel):
        name: Literal["a", "b"]
        x: Literal[1, 2, 3]

    ask = partial(clients.policy.chat.completions.parse, model="policy", messages=[USER])
    for seed in range(3):
        answer = ask(response_format=Point, seed=seed, max_tokens=200)
        assert isinstance(answer.choices[0].message.parsed, Point)


def test_a_schema_that_cannot_be_followed_is_refused(clients: SimpleNamespace) -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": 5}}}
    for name, wanted, reason in (
        ("policy", wrong, "response_format: the JSON schema cannot be followed"),
        ("scripted", {"type": "json_object"}, "response_format: this sampler cannot hold"),
    ):
        with pytest.raises(openai.BadRequestError, match=reason):
            getattr(clients, name).chat.completions.create(**CHAT, response_format=wanted)


def test_the_unix_socket_answers_like_the_port(clients: SimpleNamespace) -> None:
    transport = httpx.HTTPTransport(uds=str(clients.socket))
    with openai_client(clients.access, http_client=httpx.Client(transport=transport)) as other:
        Calls.a_seed_fixes_the_answer(other)
