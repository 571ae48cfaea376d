"""Calls of the `openai` package's own client against the endpoint, with a tiny policy behind it."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from grpo_endpoint.policy import PolicyCompleter

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
            create = partial(tool_client.chat.completions.create, model="policy")
            yield SimpleNamespace(
                access=access,
                policy=random_client,
                scripted=tool_client,
                create=create,
                socket=socket,
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


@dataclass
class Calls:
    """Calls of the client of the random policy."""

    client: OpenAI

    def _chat(self, **more: Any) -> Any:
        return self.client.chat.completions.create(**{**CHAT, **more})

    def _text(self, **more: Any) -> Any:
        return self.client.completions.create(**{**TEXT, **more})

    def an_unknown_model_is_not_found(self) -> None:
        with pytest.raises(openai.NotFoundError, match="there is only 'policy'"):
            self.client.models.retrieve("gpt/4o")
        with pytest.raises(openai.NotFoundError) as caught:
            self._chat(model="gpt-4o")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    def a_chat_is_answered(self) -> None:
        answer = self._chat()
        (choice,), usage = answer.choices, answer.usage
        assert (answer.object, answer.model) == ("chat.completion", "policy")
        assert choice.message.role == "assistant"
        assert choice.finish_reason in ("stop", "length")
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert 0 < usage.completion_tokens <= 12

    def a_seed_fixes_the_answer(self) -> None:
        answers = [content(self._chat(seed=seed)) for seed in (5, 5, 6)]
        assert answers[0] == answers[1]
        assert answers[0] != answers[2]

    def several_choices_differ(self) -> None:
        answer = self._chat(n=4, seed=3)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert len({choice.message.content for choice in answer.choices}) == 4
        again = self._chat(n=4, seed=3)
        assert [content(again, i) for i in range(4)] == [content(answer, i) for i in range(4)]

    def a_stop_text_is_cut(self) -> None:
        whole = content(self._chat(seed=7))
        assert len(whole) > 6
        for stop in (whole[4], [whole[4:6], "no such text"]):
            answer = self._chat(seed=7, stop=stop)
            first = stop if isinstance(stop, str) else stop[0]
            assert content(answer) == whole[: whole.index(first)]
            assert answer.choices[0].finish_reason == "stop"

    def log_probs_belong_to_the_tokens(self) -> None:
        answer = self._chat(logprobs=True, seed=8)
        logprobs = answer.choices[0].logprobs.content
        tokens = [each.token for each in logprobs]
        assert "".join(tokens).removesuffix("<|im_end|>") == content(answer)
        assert all(each.logprob <= 0 and each.bytes for each in logprobs)
        assert len(tokens) == answer.usage.completion_tokens

    def a_stream_has_the_same_text(self) -> None:
        whole = self._chat(seed=9)
        chunks = streamed(self._chat(seed=9, stream=True))
        assert text_of(chunks) == content(whole)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert len({chunk.id for chunk in chunks}) == 1

    def a_stream_may_end_with_the_usage(self) -> None:
        whole = self._chat(seed=9)
        options: Any = {"include_usage": True}
        chunks = streamed(self._chat(seed=9, stream=True, stream_options=options))
        assert chunks[-1].usage == whole.usage
        assert chunks[-1].choices == []
        assert all(chunk.usage is None for chunk in chunks[:-1])

    def the_clients_own_accumulation_of_a_stream_works(self) -> None:
        whole = content(self._chat(seed=9))
        with self.client.chat.completions.stream(**CHAT, seed=9, stop=whole[5]) as stream:
            final = stream.get_final_completion()
        assert content(final) == whole[: whole.index(whole[5])]

    def an_answer_may_have_to_be_json(self) -> None:
        properties = {"answer": {"type": "integer"}, "sure": {"enum": [True, False]}}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        schema["required"] = [*properties]
        schema["additionalProperties"] = False
        named = {"name": "answer", "schema": schema, "strict": True}
        ended = []
        for seed in range(12):
            wanted = {"type": "json_schema", "json_schema": named}
            answer = self._chat(max_tokens=60, seed=seed, response_format=wanted)
            if answer.choices[0].finish_reason == "stop":
                ended.append(json.loads(content(answer)))
        assert ended
        for each in ended:
            assert each.keys() == {"answer", "sure"}
            assert each["sure"] in (True, False)
        free = self._chat(response_format={"type": "json_object"}, seed=1)
        assert content(free).startswith("{")

    def parameters_that_change_nothing_are_accepted(self) -> None:
        self._chat(
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

    def a_text_is_continued(self) -> None:
        answer = self._text()
        assert (answer.object, answer.choices[0].index) == ("text_completion", 0)
        assert 0 < answer.usage.completion_tokens <= 12

    def several_texts_are_continued(self) -> None:
        for prompt in (["One", "Two"], [[40, 41], [42]]):
            answer = self._text(prompt=prompt, n=2, seed=1)
            assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
            single = self._text(prompt=prompt[1], n=2, seed=1)
            last = [choice.text for choice in answer.choices[2:]]
            assert last == [choice.text for choice in single.choices]

    def a_text_has_log_probs_and_offsets(self) -> None:
        choice = self._text(logprobs=0, seed=1).choices[0]
        assert "".join(choice.logprobs.tokens).replace("<|pad|>", "") == choice.text
        assert choice.logprobs.text_offset[:3] == [0, 1, 2]
        with pytest.raises(openai.BadRequestError, match="logprobs: 30 was found"):
            self._text(logprobs=30)

    def a_text_may_be_streamed(self) -> None:
        whole = self._text(seed=1, stop="zz")
        options: Any = {"include_usage": True}
        chunks = streamed(self._text(seed=1, stop="zz", stream=True, stream_options=options))
        assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
        assert chunks[-1].usage == whole.usage

    def tokens_are_continued(self) -> None:
        answer = self._text(prompt=[40, 41, 42])
        assert answer.usage.prompt_tokens == 3
        with pytest.raises(openai.BadRequestError, match="the token 7000"):
            self._text(prompt=[7000])

    def what_cannot_be_done_is_refused(self) -> None:
        with pytest.raises(openai.BadRequestError, match="exceed the model's context of 1024"):
            self._chat(max_tokens=5000)
        for parameters in ({"suffix": "."}, {"best_of": 3}):
            with pytest.raises(openai.BadRequestError, match=next(iter(parameters))):
                self._text(**parameters)

    def raw_answers_have_an_id(self) -> None:
        raw = self.client.chat.completions.with_raw_response.create(**CHAT)
        assert raw.headers["content-type"] == "application/json"
        assert raw.parse()._request_id == raw.headers["x-request-id"] != ""

    def a_stream_may_have_several_choices(self) -> None:
        whole = self._chat(seed=9, n=3)
        chunks = streamed(self._chat(seed=9, n=3, stream=True))
        assert [text_of(chunks, i) for i in range(3)] == [content(whole, i) for i in range(3)]

    def a_stream_may_have_log_probs(self) -> None:
        whole = self._chat(seed=9, logprobs=True)
        chunks = streamed(self._chat(seed=9, logprobs=True, stream=True))
        found = [logprobs for c in chunks if (logprobs := c.choices[0].logprobs) is not None]
        assert [each for part in found for each in part.content] == whole.choices[
            0
        ].logprobs.content

    def two_requests_at_once_are_answered(self) -> None:
        async def both() -> list[ChatCompletion]:
            options: Any = {"base_url": self.client.base_url, "api_key": self.client.api_key}
            async with openai.AsyncOpenAI(**options) as other:
                return await asyncio.gather(
                    *(other.chat.completions.create(**CHAT, seed=seed) for seed in (1, 2))
                )

        answers = [content(answer) for answer in asyncio.run(both())]
        alone = [content(self._chat(seed=seed)) for seed in (1, 2)]
        assert answers == alone


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in vars(Calls) if not name.startswith("_")])
def test_the_clients_calls_are_answered(clients: SimpleNamespace, name: str) -> None:
    getattr(Calls(clients.policy), name)()


def test_tools_are_called_and_their_results_are_read(clients: SimpleNamespace) -> None:
    create = clients.create
    asked = create(messages=[USER], tools=TOOLS)
    assert (asked.choices[0].finish_reason, asked.choices[0].message.content) == (
        "tool_calls",
        None,
    )
    (call,) = asked.choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "add")
    assert json.loads(call.function.arguments) == {"a": 2, "b": 3}
    result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    told = create(messages=[USER, asked.choices[0].message, result], tools=TOOLS)
    assert (content(told), told.choices[0].finish_reason) == ("It is 5", "stop")


def test_results_belong_to_their_calls_in_any_order(clients: SimpleNamespace) -> None:
    create, user = clients.create, {"role": "user", "content": "Do both."}
    asked = create(messages=[user], tools=TOOLS).choices[0].message
    assert asked.content == "I do both."
    assert [call.function.name for call in asked.tool_calls] == ["add", "multiply"]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": text}
        for call, text in zip(asked.tool_calls, ("5", "6"), strict=True)
    ]
    told = create(messages=[user, asked, *reversed(results)], tools=TOOLS)
    assert content(told) == "It is 5 and 6"
    with pytest.raises(openai.BadRequestError, match="has no result") as caught:
        create(messages=[user, asked, results[0]], tools=TOOLS)
    assert caught.value.param == "messages.2"


def test_calls_of_tools_may_be_streamed(clients: SimpleNamespace) -> None:
    create, user = clients.create, {"role": "user", "content": "Do both."}
    whole = create(messages=[user], tools=TOOLS).choices[0]
    chunks = streamed(create(messages=[user], tools=TOOLS, stream=True))
    calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or ()]
    assert [(call.index, call.id) for call in calls] == [
        (number, call.id) for number, call in enumerate(whole.message.tool_calls)
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert text_of(chunks) == "I do both."


def test_without_tools_a_call_is_text(clients: SimpleNamespace) -> None:
    create = clients.create
    for more in ({"tools": TOOLS, "tool_choice": "none"}, {}):
        choice = create(messages=[USER], **more).choices[0]
        assert choice.message.content == called("add", a=2, b=3)
        assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")


def test_thoughts_come_apart_and_may_be_sent_back(clients: SimpleNamespace) -> None:
    create, user = clients.create, {"role": "user", "content": "ponder"}
    message = create(messages=[user]).choices[0].message
    assert (message.content, message.reasoning_content) == ("5", "Two and three.")
    sent_back = [
        message,
        {"role": "assistant", "content": "5"},
        {"role": "assistant", "content": "5", "reasoning": "Two and three."},
    ]
    for turn in sent_back:
        told = create(messages=[user, turn, {"role": "user", "content": "ponder"}])
        assert content(told) == "5"
    endless = create(messages=[{"role": "user", "content": "endless"}])
    assert endless.choices[0].message.content == ""
    assert endless.choices[0].message.reasoning_content == "Two and three"
    text = clients.scripted.completions.create(model="policy", prompt="ponder<|im_start|>assistant")
    assert text.choices[0].text.startswith("<think>")


def test_thoughts_are_streamed_before_the_content(clients: SimpleNamespace) -> None:
    create, user = clients.create, {"role": "user", "content": "ponder"}
    deltas = [chunk.choices[0].delta for chunk in streamed(create(messages=[user], stream=True))]
    said = [(d.model_extra.get("reasoning_content"), d.content) for d in deltas]
    assert said == [(None, ""), ("Two and three.", None), (None, "5"), (None, None)]


def test_a_call_in_thoughts_is_not_made(clients: SimpleNamespace) -> None:
    create, user = clients.create, {"role": "user", "content": "think"}
    message = create(messages=[user], tools=TOOLS).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["add"]
    assert "multiply" in message.reasoning_content
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "5"}
    assert content(create(messages=[user, message, result], tools=TOOLS)) == ("It is 5")


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
        Calls(other).a_seed_fixes_the_answer()
