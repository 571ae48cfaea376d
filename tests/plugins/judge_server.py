"""A simulated endpoint for judges: a token bucket, bursts, slow and cut answers, restarts; and texts that do it harm."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from grpo_judge.llm import LLM
from grpo_judge.llm_config import LLMConfig

from .endpoint import answered

TEXT = re.compile(r"<<TEXT \w+>>\n(.*)\n<<END", re.DOTALL)
RIGHT = 7


@dataclass
class Weather:
    """What the server does to calls, whatever their text."""

    per_second: float = 0.0
    """Rate of the token bucket; 0 for none."""
    burst: int = 1
    """Size of the token bucket."""
    retry_after: str | None = "1"
    """What a limited call is told."""
    every: tuple[int, int, int] = (0, 0, 0)
    """(of how many, how many fail, with which status)"""
    chance: float = 0.0
    """Share of calls that fail with 500 at random."""
    cut_off: float = 0.0
    """Share of calls whose connection is closed in the middle of the body."""
    slow: float = 0.0
    """Share of calls that take longer than the judge's timeout."""
    seconds_per_1000: float = 0.0
    """Time that a call takes for each thousand characters of its text."""
    thoughts_per_char: float = 0.0
    """Tokens of thoughts for each character of the text, which count against the limit."""
    up_seconds: float = 0.0
    """Time between two restarts, at which connections are refused; 0 for no restarts."""
    down_seconds: float = 0.3
    longest: int = 10**9
    """Longest text in characters; others are refused by name."""


@dataclass
class Server:
    """An OpenAI-compatible server of its own event loop and thread; `with` starts and ends it."""

    weather: Weather = field(default_factory=Weather)
    seed: int = 0
    calls: int = 0
    limited: int = 0
    harmed: int = 0
    """Number of calls that failed because of their text."""

    def __enter__(self) -> Server:
        self._rng = random.Random(self.seed)
        self._tokens, self._filled_at = float(self.weather.burst), time.monotonic()
        self._down_until = 0.0
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def serve() -> None:
            self._stop = asyncio.Event()
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1000)
            self.port = server.sockets[0].getsockname()[1]
            self._started_at = time.monotonic()
            ready.set()
            await self._stop.wait()
            server.close()
            handlers = asyncio.all_tasks() - {asyncio.current_task()}
            for handler in handlers:
                handler.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)

        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(serve()))
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def judge(self, **settings: Any) -> LLM:
        return LLM(
            LLMConfig(
                model="any",
                base_url=f"http://127.0.0.1:{self.port}/v1",
                key="",
                timeout_seconds=settings.pop("timeout_seconds", 1.0),
                **settings,
            )
        )

    async def _connection(self, reader: Any, writer: Any) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
                asked = json.loads(await reader.readexactly(length))
                if not await self._answer(asked, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, asked: dict[str, Any], writer: Any) -> bool:
        """Write the answer; return whether the connection stays open."""
        weather, now = self.weather, time.monotonic()
        self.calls += 1
        text = TEXT.search(asked["messages"][1]["content"])[1]
        cycle = weather.up_seconds + weather.down_seconds
        restarts = weather.up_seconds and (now - self._started_at) % cycle > weather.up_seconds
        if restarts or now < self._down_until:
            return False
        if weather.per_second:
            filled = self._tokens + (now - self._filled_at) * weather.per_second
            self._tokens, self._filled_at = min(weather.burst, filled), now
            if self._tokens < 1:
                self.limited += 1
                return self._write(writer, 429, {"error": {"message": "Rate limit reached"}})
            self._tokens -= 1
        of, fail, status = weather.every
        if of and self.calls % of < fail:
            return self._write(writer, status, {"error": {"message": "no"}}, is_pause=status == 429)
        if self._rng.random() < weather.chance:
            return self._write(writer, 500, {"error": {"message": "internal"}}, is_pause=False)
        if (harm := self._harm(text, writer)) is not None:
            self.harmed += 1
            return harm
        await asyncio.sleep(weather.seconds_per_1000 * len(text) / 1000)
        if self._rng.random() < weather.slow:
            await asyncio.sleep(3)
        if self._rng.random() < weather.cut_off:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            return False
        if len(text) > weather.longest:
            message = "This model's maximum context length is 8192 tokens."
            return self._write(writer, 400, {"error": {"message": message}}, is_pause=False)
        limit = asked.get("max_tokens") or 10**9
        if weather.thoughts_per_char * len(text) >= limit:
            return self._write(writer, 200, _choice(None, "length"))
        return self._write(writer, 200, _choice(json.dumps({"score": RIGHT, "reason": "so"})))

    def _harm(self, text: str, writer: Any) -> bool | None:
        """Do what a hostile text makes a server do; None for an honest one."""
        if "please crash now" in text:
            self._down_until = time.monotonic() + 0.05
            return False
        if "answer without a grade" in text:
            return self._write(writer, 200, _choice("I would rather not."))
        if "something that is refused" in text:
            return self._write(writer, 200, _choice("", "content_filter"))
        return None

    def _write(self, writer: Any, status: int, body: Any, *, is_pause: bool = True) -> bool:
        data = json.dumps(body).encode()
        pause = self.weather.retry_after if status == 429 and is_pause else None
        more = f"Retry-After: {pause}\r\n" if pause else ""
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n{more}\r\n"
        writer.write(head.encode() + data)
        return True


def _choice(content: str | None, finish: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    return {**answered(""), "choices": [choice]}
