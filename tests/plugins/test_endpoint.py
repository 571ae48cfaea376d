"""The endpoint as a server: keys, what it asks of a completer, limits, clients that vanish or are slow, and its end."""

import asyncio
import contextlib
import json
import logging
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from grpo_core import ConfigError, GrpoError, Message, ToolCall, UserError
from grpo_core.config.settings import EndpointConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import open_endpoint
from grpo_core.protocol.endpoint import CompletionRequest, RefusedRequestError
from grpo_endpoint.config import HttpConfig
from grpo_endpoint.server import HttpEndpoint

from .served import CHAT, HELLO, Fake, answer, openai_client, post, raw, served, until


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, in the form that OpenAI's clients read."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    found: dict[str, Any] = body["error"]
    return found


async def for_ever(request: CompletionRequest | None = None) -> Any:
    await asyncio.Event().wait()


def is_cut_off(connection: socket.socket, part: bytes, *, most: int = 100) -> bool:
    """Whether the server ends the connection while parts are sent."""
    for _ in range(most):
        try:
            connection.sendall(part)
            connection.settimeout(0.05)
            if connection.recv(65536) == b"":
                return True
        except TimeoutError:
            connection.settimeout(20)
        except OSError:
            return True
    return False


# What reaches a completer.


def test_a_completer_gets_what_a_chat_asks() -> None:
    completer = Fake()
    body = {
        "model": "policy",
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "exact."}]},
            {"role": "user", "content": "What is 2 + 3?", "name": "Ann"},
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [
                    {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
                    {"id": "y", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "y", "content": "none"},
            {"role": "tool", "tool_call_id": "x", "content": "two"},
            {"role": "assistant", "content": "So?"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "strict": True}}],
        "temperature": 0.5,
        "top_p": 1,
        "seed": -3,
        "n": 2,
        "stop": ["A", "B"],
        "max_completion_tokens": 7,
    }  # fmt: skip
    with served() as server, server.http(server.admit(completer)) as http:
        assert len(http.post(CHAT, json=body).json()["choices"]) == 1
    described = {
        "name": "add",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }
    assert completer.asked == [
        CompletionRequest(
            prompt=(
                Message("system", "Be exact."),
                Message("user", "What is 2 + 3?"),
                Message(
                    "assistant", "", (ToolCall("add", {"a": 2}, "x"), ToolCall("add", {}, "y"))
                ),
                Message("tool", "two"),
                Message("tool", "none"),
                Message("assistant", "So?"),
            ),
            tools=[{"type": "function", "function": described}],
            max_tokens=7,
            stop=("A", "B"),
            temperature=0.5,
            top_p=1.0,
            seed=-3,
            count=2,
        )
    ]


WRONG: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": []}, "messages", r"\[\] was found; it has to have at least 1 item"),
    ({"messages": [{"role": "boss", "content": "x"}]}, "messages.0", "role is 'boss'; it has to be one of 'system'"),
    ({"messages": [{"role": "user"}]}, "messages.0.content", "it is missing; send it"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content", "7 was found; it has to be a valid"),
    ({"messages": [{"role": "tool", "content": "5", "tool_call_id": "x"}]}, "messages.0", "follows no such call"),
    ({"temperature": "1"}, "temperature", '"1" was found; it has to be a valid number'),
    ({"top_p": 0}, "top_p", "0 was found; it has to be greater than 0"),
    ({"max_tokens": 1.5}, "max_tokens", "1.5 was found; it has to be a valid integer"),
    ({"n": True}, "n", "true was found; it has to be a valid integer"),
    ({"stop": ["a", ""]}, "stop.1", "at least 1 character"),
    ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages.0.content.0", "parts of the type text alone"),
    ({"response_format": {"type": "json_object"}, "tools": [{"type": "function", "function": {"name": "a"}}]}, "response_format", ""),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "send only one"),
    ({"top_k": 5}, "top_k", "this server does not support it; leave it out"),
    ({"frequency_penalty": 0.5}, "frequency_penalty", "0.5 was found; this server supports only null or 0; leave the parameter out"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", '"a b" was found'),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"properties": 5}}}]}, "tools.0.function.parameters", "object of JSON schemas"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema", "it is missing"),
    ({"n": 200}, "n", "200 completions were asked for, and this server gives 128 at most"),
    ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7}, "a", "and 2 more"),
    ({"presence_penalty": -1}, "presence_penalty", "^presence_penalty"),
    ({"logit_bias": {"5": 10}}, "logit_bias", "^logit_bias"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "^parallel_tool_calls"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "^reasoning_effort"),
    ({"modalities": ["audio"]}, "modalities", "^modalities"),
    ({"service_tier": "flex"}, "service_tier", "^service_tier"),
    ({"store": True}, "store", "^store"),
    ({"tool_choice": "required"}, "tool_choice", "^tool_choice"),
    ({"web_search_options": {}}, "web_search_options", "^web_search_options"),
    ({"functions": []}, "functions", "^functions"),
]  # fmt: skip


def test_a_message_says_which_field_is_wrong_what_was_found_and_what_is_allowed() -> None:
    completer = Fake()
    with served() as server, server.http(server.admit(completer)) as http:
        for change, field, message in WRONG:
            response = http.post(CHAT, json={**HELLO, **change})
            error = error_of(response)
            assert (response.status_code, error["param"]) == (400, field), error
            assert re.search(message, error["message"]), error["message"]
            assert len(error["message"]) < 600
    assert completer.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"model": "\\ud800", "messages": []}',
        b"[" * 100_000,
        b'{"model": "policy", "messages": [{"role": "user", "content": NaN}]}',
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with served() as server, server.http(server.admit(Fake())) as http:
        response = http.post(CHAT, content=body)
        assert response.status_code == 400
        error_of(response)


def test_a_route_or_method_that_does_not_exist_is_an_error_like_any_other() -> None:
    with served() as server, server.http(server.admit(Fake())) as http:
        response = http.get("/v1/embeddings")
        assert (response.status_code, "nothing at" in error_of(response)["message"]) == (404, True)
        response = http.get(CHAT)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        error_of(response)
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/openapi.json").json()["openapi"] == "3.1.0"


# Keys.


def test_without_a_valid_key_nothing_is_answered() -> None:
    completer = Fake()
    with served() as server:
        access = server.admit(completer)
        base = access.base_url.removesuffix("/v1")
        for headers in (
            {},
            {"authorization": access.key},
            {"authorization": f"Bearer {access.key}x"},
            {"authorization": f"Bearer {access.key[:-1]}"},
            {"authorization": f"Basic {access.key}"},
        ):
            with httpx.Client(base_url=base, headers=headers) as http:
                for response in (
                    http.post(CHAT, json=HELLO),
                    http.post("/v1/completions", json={"model": "policy", "prompt": "a"}),
                    http.post(CHAT, content=b"no JSON"),
                    http.get("/v1/models"),
                    http.get("/v1/models/policy"),
                ):
                    assert response.status_code == 401
                    assert response.headers["www-authenticate"] == "Bearer"
                    assert error_of(response)["code"] == "invalid_api_key"
                    assert access.key not in response.text
                assert http.get("/health").status_code == 200
    assert completer.asked == []


def test_the_empty_key_is_for_requests_without_a_known_one() -> None:
    with served() as server:
        named = server.admit(Fake(lambda _: answer("named")), "secret")
        open_access = server.admit(Fake(lambda _: answer("open")), "")
        assert (named.key, open_access.key) == ("secret", "")
        for key, text in (("secret", "named"), ("other", "open"), ("", "open")):
            with server.http(open_access, authorization=f"Bearer {key}".strip()) as http:
                body = http.post(CHAT, json=HELLO).json()
                assert body["choices"][0]["message"]["content"] == text


def test_a_dismissed_key_is_refused_and_its_requests_are_given_up() -> None:
    waiting, other = Fake(for_ever), Fake()
    with served() as server, ThreadPoolExecutor() as threads:
        access, kept = server.admit(waiting), server.admit(other)
        with server.http(access) as http:
            whole = threads.submit(http.post, CHAT, json=HELLO)
            stream = threads.submit(http.post, CHAT, json={**HELLO, "stream": True})
            until(lambda: waiting.running == 2)
            server.run(server.endpoint.dismiss(access.key))
            assert (waiting.running, waiting.given_up) == (0, 2)
            for response in (whole.result(), stream.result(), http.post(CHAT, json=HELLO)):
                assert response.status_code == 401
                assert "no longer in use" in error_of(response)["message"]
        server.run(server.endpoint.dismiss(access.key))  # once more changes nothing
        with server.http(kept) as http:
            assert http.post(CHAT, json=HELLO).status_code == 200
        again = server.admit(other, access.key)
        with server.http(again) as http:
            assert http.post(CHAT, json=HELLO).status_code == 200
        with pytest.raises(GrpoError, match="dismiss it first"):
            server.admit(other, access.key)


# Failures behind the server.


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_has_the_status_that_says_who_is_to_blame(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[tuple[Exception, int, str]] = [
        (RefusedRequestError("the prompt is too long; cut it"), 400, "the prompt is too long"),
        (GrpoError("the engine at /secret/path died"), 503, "cannot be sampled now"),
        (ValueError("internal detail"), 500, "its log has the reason"),
        (TimeoutError("of its own"), 500, "its log has the reason"),
    ]
    body = {**HELLO, "stream": stream}
    with served() as server, caplog.at_level(logging.WARNING):
        for failure, status, message in failures:

            def fail(_: object, failure: Exception = failure) -> Any:
                raise failure

            access = server.admit(Fake(fail))
            with server.http(access) as http:
                response = http.post(CHAT, json=body)
                assert response.status_code == status
                assert message in error_of(response)["message"]
                assert ("retry-after" in response.headers) == (status == 503)
                assert "secret" not in response.text
                assert "internal" not in response.text
    assert "the engine at /secret/path died" in caplog.text
    assert "internal detail" in caplog.text


def test_one_failure_of_several_prompts_gives_up_the_others() -> None:
    async def act(request: CompletionRequest) -> Any:
        if request.prompt == "bad":
            await asyncio.sleep(0.05)
            raise RefusedRequestError("it is bad")
        return await for_ever()

    completer = Fake(act)
    with served() as server, server.http(server.admit(completer)) as http:
        body = {"model": "policy", "prompt": ["a", "bad", "b"]}
        assert http.post("/v1/completions", json=body).status_code == 400
        assert (completer.running, completer.given_up) == (0, 2)


def test_texts_that_are_no_text_reach_the_client() -> None:
    call = ToolCall("\ud800", {"a": "\udfff\x00"}, "id")
    message = Message("assistant", "\ud83d", (call,))

    def act(_: object) -> Any:
        found = answer("x")
        return replace(found, choices=(replace(found.choices[0], message=message),))

    with served() as server, server.http(server.admit(Fake(act))) as http:
        for stream in (False, True):
            response = http.post(CHAT, json={**HELLO, "stream": stream})
            assert response.status_code == 200
            assert "\\ud83d" in response.text


# Clients that vanish, and streams.


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes_gives_up_its_request(stream: bool) -> None:
    completer = Fake(for_ever)
    with served(keep_alive_seconds=0.05) as server:
        access = server.admit(completer)
        body = json.dumps({**HELLO, "stream": stream}).encode()
        with raw(access) as connection:
            connection.sendall(post(access, body))
            until(lambda: completer.running)
            while stream and b": waiting" not in connection.recv(10_000):
                pass
        until(lambda: completer.given_up == 1)
        assert completer.running == 0


def test_a_stream_is_kept_open_and_an_error_after_that_is_an_event() -> None:
    async def act(request: CompletionRequest) -> Any:
        await asyncio.sleep(0.3)
        if request.seed:
            raise RefusedRequestError("too late")
        return answer("Hi")

    with served(keep_alive_seconds=0.05) as server, server.http(server.admit(Fake(act))) as http:
        for seed in (0, 1):
            response = http.post(CHAT, json={**HELLO, "stream": True, "seed": seed})
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.text.split("\n\n") if line]
            assert lines.count(": waiting") >= 2
            assert lines[-1] == "data: [DONE]"
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            if seed:
                assert [event["error"]["message"] for event in events] == ["too late"]
            else:
                assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == "Hi"


# Limits.


def test_requests_wait_in_a_queue_and_beyond_it_are_to_come_again() -> None:
    release = asyncio.Event()

    async def act(_: object) -> Any:
        await release.wait()
        return answer("Hi")

    completer = Fake(act)
    with (
        served(requests=2, queue=3) as server,
        server.http(server.admit(completer)) as http,
        ThreadPoolExecutor(8) as threads,
    ):
        futures = [threads.submit(http.post, CHAT, json=HELLO) for _ in range(6)]
        until(lambda: any(future.done() for future in futures))
        (refused,) = [future.result() for future in futures if future.done()]
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        server.loop.call_soon_threadsafe(release.set)
        assert sorted(each.result().status_code for each in futures) == [200] * 5 + [429]
        assert http.post(CHAT, json=HELLO).status_code == 200
    assert completer.most_running == 2


def test_one_key_leaves_room_for_the_others() -> None:
    greedy, other = Fake(for_ever), Fake()
    with served(requests=4, requests_per_key=3) as server, ThreadPoolExecutor(8) as threads:
        access = server.admit(greedy)
        with server.http(access) as http, server.http(server.admit(other)) as modest:
            waiting = [threads.submit(http.post, CHAT, json=HELLO) for _ in range(6)]
            until(lambda: greedy.running == 3)
            assert modest.post(CHAT, json=HELLO).status_code == 200
            assert greedy.running == 3
            server.run(server.endpoint.dismiss(access.key))
            assert {each.result().status_code for each in waiting} == {401}
    assert (greedy.most_running, len(greedy.asked)) == (3, 3)


@pytest.mark.parametrize(("ends", "status"), [("dismiss", 401), ("close", 503)])
def test_a_request_whose_body_follows_the_end_of_its_key_is_refused(ends: str, status: int) -> None:
    completer = Fake(for_ever)
    with served() as server:
        access = server.admit(completer)
        with raw(access) as connection:
            whole = post(access, json.dumps(HELLO).encode())
            connection.sendall(whole[:-5])
            time.sleep(0.2)  # for the server to read the head
            if ends == "dismiss":
                server.run(server.endpoint.dismiss(access.key))
                connection.sendall(whole[-5:])
            else:
                closing = asyncio.run_coroutine_threadsafe(server.endpoint.close(), server.loop)
                time.sleep(0.2)  # for it to give up what is in progress
                connection.sendall(whole[-5:])
                closing.result(20)
            assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)
    assert completer.asked == []


def test_a_client_that_vanishes_from_the_queue_leaves_it() -> None:
    completer = Fake(for_ever)

    def waits(http: httpx.Client) -> bool:
        """Whether a request is let into the queue, which it then leaves."""
        try:
            return http.post(CHAT, json=HELLO, timeout=0.3).status_code != 429
        except httpx.ReadTimeout:
            return True

    with served(requests=1, queue=1) as server, ThreadPoolExecutor() as threads:
        access = server.admit(completer)
        with server.http(access) as http:
            first = threads.submit(http.post, CHAT, json=HELLO)
            until(lambda: completer.running)
            for _ in range(3):
                until(lambda: waits(http))
            server.run(server.endpoint.dismiss(access.key))
            assert first.result().status_code == 401
    assert len(completer.asked) == 1


def test_a_request_has_a_deadline() -> None:
    completer = Fake(for_ever)
    with served(request_seconds=0.2) as server, server.http(server.admit(completer)) as http:
        response = http.post(CHAT, json=HELLO)
        assert (response.status_code, error_of(response)["code"]) == (504, "timeout")
        assert "within 0.2 s" in error_of(response)["message"]
    assert (completer.given_up, completer.running) == (1, 0)


def test_a_large_body_is_refused_whatever_it_says_of_its_size() -> None:
    completer = Fake()
    large = json.dumps({**HELLO, "user": "x" * 200_000}).encode()
    with served(body_mb=0.1) as server, server.http(server.admit(completer)) as http:
        for content in (large, (large[i : i + 5000] for i in range(0, len(large), 5000))):
            response = http.post(CHAT, content=content)
            assert response.status_code == 413
            assert "0.1 MiB" in error_of(response)["message"]
        assert http.post(CHAT, json=HELLO).status_code == 200
    assert len(completer.asked) == 1


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he",
        b"a body of 500 bytes",
        b"a body without end",
    ],
)
def test_a_request_that_comes_slowly_or_without_end_is_cut_off(start: bytes) -> None:
    completer, part = Fake(), b"X" if start else b""
    with served(io_seconds=0.4, body_mb=0.1) as server:
        access = server.admit(completer)
        if b"500" in start:
            start = post(access, b"", "Content-Length: 500")
        elif b"without" in start:
            start = post(access, b"", "Transfer-Encoding: chunked")
            part = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        with raw(access) as connection:
            connection.sendall(start)
            began = time.monotonic()
            assert is_cut_off(connection, part)
            assert time.monotonic() - began < 4
    assert completer.asked == []


@pytest.mark.slow
def test_a_client_that_does_not_read_is_cut_off() -> None:
    size = 30_000_000
    completer = Fake(lambda _: answer("x" * size))
    with served(io_seconds=0.4) as server:
        access = server.admit(completer)
        with raw(access) as connection:
            connection.sendall(post(access, json.dumps(HELLO).encode()))
            received = len(connection.recv(1))  # the answer has begun
            time.sleep(1.2)
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(1_000_000):
                    received += len(part)
            assert received < size


def test_there_are_only_so_many_connections() -> None:
    with served(connections=3) as server:
        access = server.admit(Fake())
        held = [server.http(access) for _ in range(3)]
        for http in held:
            assert http.get("/health").status_code == 200
        with server.http(access) as further:
            with pytest.raises(httpx.TransportError):
                further.get("/health")
            held.pop().close()
            until(lambda: is_healthy(further))
            assert further.post(CHAT, json=HELLO).status_code == 200
        for http in held:
            http.close()


def is_healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.TransportError:
        return False


# The beginning and the end.


def test_the_end_gives_up_requests_and_tells_their_clients(tmp_path: Path) -> None:
    completer = Fake(for_ever)
    path = tmp_path / "socket"
    with ThreadPoolExecutor() as threads:
        with served(socket=str(path)) as server:
            access = server.admit(completer)
            assert access.socket == str(path)
            assert path.is_socket()
            http = server.http(access)
            waiting = threads.submit(http.post, CHAT, json=HELLO)
            until(lambda: completer.running)
        response = waiting.result()
        assert (response.status_code, completer.given_up) == (503, 1)
        assert "retry-after" in response.headers
        with pytest.raises(httpx.ConnectError):
            http.post(CHAT, json=HELLO)
        http.close()
        assert not path.exists()


def test_a_taken_port_or_path_is_said(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with served(socket=str(path)) as server:
        port = int(server.admit(Fake()).base_url.split(":")[-1].removesuffix("/v1"))
        for settings, message in (
            ({"port": port}, f"cannot listen at 127.0.0.1, port {port}: .*in use.* choose another"),
            ({"socket": str(path)}, "Unix socket .*socket: .*in use"),
            ({"socket": str(tmp_path / "no" / "folder")}, "Unix socket .*No such file"),
            ({"socket": str(tmp_path / ("x" * 200))}, "of at most 100 characters"),
            ({"host": "256.1.1.1"}, "cannot listen at 256.1.1.1"),
        ):
            with pytest.raises(UserError, match=message):
                asyncio.run(HttpEndpoint(HttpConfig(**settings)).open())  # type: ignore[arg-type]
        with server.http(server.admit(Fake())) as http:
            assert http.post(CHAT, json=HELLO).status_code == 200


def test_the_socket_of_a_dead_server_is_replaced_and_another_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with served(socket=str(path)) as server:
        transport = httpx.HTTPTransport(uds=str(path))
        access = server.admit(Fake())
        with openai_client(access, http_client=httpx.Client(transport=transport)) as client:
            assert client.models.retrieve("policy").id == "policy"
    path.write_text("precious")
    with pytest.raises(UserError, match="in use"), served(socket=str(path)):
        pass
    assert path.read_text() == "precious"


def test_a_server_at_all_addresses_is_found_on_this_machine() -> None:
    with served(host="0.0.0.0") as server:
        access = server.admit(Fake())
        assert access.base_url.startswith("http://127.0.0.1:")
        with server.http(access) as http:
            assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 70000}, "port from 0 to 65535"),
        ({"queue": -1}, "queue of 0 or more"),
        ({"io_seconds": 0}, "times and sizes above 0"),
        ({"model": ""}, "name of a model"),
        ({"hots": "x"}, "endpoint.settings.host"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_endpoint(PluginHost(), EndpointConfig(settings=settings))
    endpoint = open_endpoint(PluginHost(), EndpointConfig())
    assert isinstance(endpoint, HttpEndpoint)
    with pytest.raises(GrpoError, match="not open"):
        endpoint.admit(Fake())
