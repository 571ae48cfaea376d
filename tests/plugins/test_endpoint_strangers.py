"""What web pages, foreign names and clients with large bodies get from the endpoint, and what others get meanwhile."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from grpo_core.protocol.endpoint import CompletionRequest
from grpo_endpoint.policy import PolicyCompleter

from .hostile_requests import exchanged
from .served import CHAT, HELLO, Fake, served
from .served_policy import tiny_actor


@pytest.mark.parametrize("key", [None, ""])
def test_a_web_page_is_refused_before_its_key_and_its_body_are_looked_at(key: str | None) -> None:
    completer = Fake()
    with (
        served() as server,
        server.http(server.admit(completer, key), authorization="Bearer x") as http,
    ):
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null", "Content-Type": "text/plain"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"},
            {"Host": "127.0.0.1.evil.example:80"},
        ):
            for path in (CHAT, "/health", "/nothing"):
                response = http.post(path, content=b"{", headers=headers)
                assert response.status_code == 403
                assert response.json()["error"]["code"] == "forbidden"
    assert completer.asked == []


def test_a_form_of_a_page_is_no_request_and_a_body_without_a_type_is_one() -> None:
    with served() as server, server.http(server.admit(Fake())) as http:
        content = json.dumps(HELLO)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            response = http.post(CHAT, content=content, headers={"Content-Type": kind})
            assert response.status_code == 415
        assert http.post(CHAT, content=content).status_code == 200
        for kind in ("application/json; charset=utf-8", "Application/JSON"):
            response = http.post(CHAT, content=content, headers={"Content-Type": kind})
            assert response.status_code == 200


def test_a_proxy_has_the_name_that_settings_give_it_and_a_socket_has_any(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with served(hosts=("models.lab.example",), socket=path) as server:
        access = server.admit(Fake())
        with server.http(access, host="Models.lab.example:443") as http:
            assert http.post(CHAT, json=HELLO).status_code == 200
        headers = {"authorization": f"Bearer {access.key}"}
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(base_url="http://any", headers=headers, transport=transport) as http:
            assert http.post(CHAT, json=HELLO).status_code == 200
            assert http.post(CHAT, json=HELLO, headers={"Origin": "http://any"}).status_code == 403
            assert http.get("/nothing", headers={"Host": "["}).status_code == 404


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_what_is_not_http_is_refused_once_with_an_error_of_the_api_and_logs_nothing(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a body that breaks off in its chunks."""
    completer = Fake()
    with served() as server:
        access = server.admit(completer)
        port = int(access.base_url.rpartition(":")[2].removesuffix("/v1"))
        head = (
            f"{method} {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {access.key}\r\n"
        )
        data = f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\n{{'a':\r\nzz\r\n"
        for other in (b"\x16\x03\x01\x00\x00\r\n\r\n", b"x" * 70_000):
            status, text = exchanged(port, other, seconds=10)
            assert (status, b"this is not valid HTTP" in text) == (400, True)
        status, text = exchanged(port, data.encode(), seconds=3)
    if method == "POST":
        assert json.loads(text)["error"]["message"].startswith("this is not valid HTTP")
    assert status == 400
    assert completer.asked == []
    assert not caplog.records


LARGE: dict[str, bytes] = {
    "messages": json.dumps({**HELLO, "messages": HELLO["messages"] * 250_000}).encode(),
    "fields": json.dumps({**HELLO, "metadata": {f"k{i}": i for i in range(100_000)}}).encode(),
    "names": json.dumps({**HELLO, "x" * 10_000_000: 1}).encode(),
    "tokens": json.dumps({"model": "policy", "prompt": [5] * 500_000}).encode(),
    "a text": json.dumps({**HELLO, "messages": [{"role": "user", "content": "ab " * 4_000_000}]}).encode(),
    "a number": b'{"n": ' + b"9" * 4_000_000 + b"}",
    "arguments": json.dumps({**HELLO, "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "[" * 5_000_000}}]}]}).encode(),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", LARGE)
def test_a_large_body_is_refused_in_a_sentence_while_others_are_answered(
    kind: str, tmp_path: Path
) -> None:
    """What the loop computes between two looks at others is counted, as a busy machine adds its own waits."""
    completer = PolicyCompleter(tiny_actor(tmp_path / "model"))
    waits: list[float] = []
    with served() as server:
        access = server.admit(completer)
        done = threading.Event()

        async def watch() -> None:
            while not done.is_set():
                started = time.thread_time()
                await asyncio.sleep(0.002)
                waits.append(time.thread_time() - started)

        watching = asyncio.run_coroutine_threadsafe(watch(), server.loop)
        with server.http(access) as http:
            path = "/v1/completions" if kind == "tokens" else CHAT
            response = http.post(path, content=LARGE[kind])
        done.set()
        watching.result(10)
    assert response.status_code == 400, response.text[:500]
    assert len(response.json()["error"]["message"]) < 1000
    assert max(waits) < 0.2


def test_numbers_that_vanish_in_float32_draw_what_their_limits_draw(tmp_path: Path) -> None:
    completer = PolicyCompleter(tiny_actor(tmp_path / "model"))

    def drawn(**options: Any) -> tuple[int, ...]:
        request = CompletionRequest("Hello", max_tokens=6, seed=3, **options)
        return asyncio.run(completer.complete(request)).choices[0].token_ids

    greedy = drawn(temperature=0.0)
    for temperature in (1e-300, 1e-40, 1e-7):
        assert drawn(temperature=temperature) == greedy
    assert drawn(temperature=1.0, top_p=1e-300) == greedy
