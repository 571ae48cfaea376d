"""Sixty-four clients at once, some of them gone, some slow, some streaming: nothing lost, nothing mixed up, nothing left."""

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from grpo_core import Message
from grpo_core.protocol.endpoint import Access, CompletionAnswer, CompletionRequest

from .served import CHAT, Fake, answer, post, raw, served, until

KEYS, CLIENTS, REQUESTS = 4, 64, 4


def user_text(request: CompletionRequest) -> str:
    (message,) = request.prompt
    assert isinstance(message, Message)
    return message.content


def echo(name: str) -> Fake:
    """A completer that repeats what it is told, some time later, with its own name."""
    rng = random.Random(name)

    async def act(request: CompletionRequest) -> CompletionAnswer:
        text = user_text(request)
        await asyncio.sleep(60 if "give up" in text else rng.random() * 0.05)
        return answer(f"{name}: {text}", request.count)

    return Fake(act)


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [{"role": "user", "content": text}], **more}


async def plain(http: httpx.AsyncClient, text: str) -> str:
    response = await http.post(CHAT, json=body(text))
    return str(response.raise_for_status().json()["choices"][0]["message"]["content"])


async def streaming(http: httpx.AsyncClient, text: str) -> str:
    found = ""
    async with http.stream("POST", CHAT, json=body(text, stream=True)) as response:
        async for line in response.raise_for_status().aiter_lines():
            if line.startswith("data: {"):
                found += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    return found


async def slow(http: httpx.AsyncClient, text: str) -> str:
    """Send and read in small parts, with pauses."""
    content = json.dumps(body(text)).encode()

    async def parts() -> Any:
        for start in range(0, len(content), 30):
            yield content[start : start + 30]
            await asyncio.sleep(0.02)

    read = b""
    async with http.stream("POST", CHAT, content=parts()) as response:
        async for part in response.raise_for_status().aiter_bytes(50):
            read += part
            await asyncio.sleep(0.005)
    return str(json.loads(read)["choices"][0]["message"]["content"])


async def leaving(http: httpx.AsyncClient, text: str) -> str:
    """Leave in the middle of a request, and then send it properly."""
    stream = text.endswith(("0", "2", "4"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await http.post(CHAT, json=body(f"give up {text}", stream=stream))
    return await plain(http, text)


async def client(access: Access, name: str, number: int) -> None:
    """Send requests one after another; each has to get the answer of its own completer."""
    kind = (plain, streaming, slow, leaving)[number // KEYS % 4]
    base = access.base_url.removesuffix("/v1")
    headers = {"authorization": f"Bearer {access.key}"}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60) as http:
        for request in range(REQUESTS):
            text = f"client {number}, request {request}"
            assert await kind(http, text) == f"{name}: {text}"


@pytest.mark.slow
def test_sixty_four_clients_at_once_get_their_own_answers_and_leave_nothing() -> None:
    completers = [echo(f"key {number}") for number in range(KEYS)]
    with served(keep_alive_seconds=0.05, requests=40, requests_per_key=20) as server:
        accesses = [server.admit(completer) for completer in completers]
        gone = [raw(access) for access in accesses]
        for connection, access in zip(gone, accesses, strict=True):
            connection.sendall(post(access, json.dumps(body("give up: gone")).encode()))
        until(lambda: all(completer.running for completer in completers))

        async def storm() -> None:
            clients = [
                client(accesses[number % KEYS], f"key {number % KEYS}", number)
                for number in range(CLIENTS)
            ]
            await asyncio.gather(*clients)

        asyncio.run(storm())
        for connection in gone:
            connection.close()
        until(lambda: not any(completer.running for completer in completers))
    for number, completer in enumerate(completers):
        texts = [user_text(request) for request in completer.asked]
        mine = [text for text in texts if not text.startswith("give up")]
        expected = [
            f"client {one}, request {request}"
            for one in range(number, CLIENTS, KEYS)
            for request in range(REQUESTS)
        ]
        assert sorted(mine) == sorted(expected)
        assert completer.given_up == len(texts) - len(mine) >= 1
    assert sum(completer.given_up for completer in completers) > KEYS
