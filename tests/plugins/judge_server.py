"""A simulated endpoint for judges: a token bucket, bursts, slow and cut answers, restarts; and texts that do it harm."""

import random
import re
import threading
import time
from dataclasses import dataclass
from typing import Any

from .endpoint import Endpoint, Reply, broken_off, choice, closed, failed, good

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


class Server(Endpoint):
    """An endpoint with a weather, which hostile texts do harm."""

    def __init__(self, weather: Weather) -> None:
        super().__init__()
        self.weather, self.reply = weather, self._answer
        self._rng, self._lock, self._calls = random.Random(0), threading.Lock(), 0
        self._started_at = self._filled_at = time.monotonic()
        self._tokens, self._down_until = float(weather.burst), 0.0

    def _answer(self, asked: dict[str, Any]) -> Reply:
        weather, rng = self.weather, self._rng
        text = TEXT.search(asked["messages"][1]["content"])[1]
        with self._lock:
            if reply := self._refused():
                return reply
        if "please crash now" in text:
            self._down_until = time.monotonic() + 0.05
            return closed
        if "answer without a grade" in text:
            return choice("I would rather not.")
        if "something that is refused" in text:
            return choice("", "content_filter")
        time.sleep(weather.seconds_per_1000 * len(text) / 1000)
        if rng.random() < weather.slow:
            time.sleep(3)
        if rng.random() < weather.cut_off:
            return broken_off
        if len(text) > weather.longest:
            return failed(400, "This model's maximum context length is 8192 tokens.")
        if weather.thoughts_per_char * len(text) >= (asked.get("max_tokens") or 10**9):
            return choice(None, "length")
        return choice(good(RIGHT))

    def _refused(self) -> Reply | None:
        """What a call gets in place of an answer, whatever its text."""
        weather, now = self.weather, time.monotonic()
        self._calls += 1
        pause = {"Retry-After": weather.retry_after} if weather.retry_after else {}
        cycle = weather.up_seconds + weather.down_seconds
        restarts = weather.up_seconds and (now - self._started_at) % cycle > weather.up_seconds
        if restarts or now < self._down_until:
            return closed
        if weather.per_second:
            filled = self._tokens + (now - self._filled_at) * weather.per_second
            self._tokens, self._filled_at = min(weather.burst, filled), now
            if self._tokens < 1:
                return *failed(429, "Rate limit reached"), pause
            self._tokens -= 1
        of, fail, status = weather.every
        if of and self._calls % of < fail:
            return *failed(status, "no"), pause if status == 429 else {}
        return failed(500, "internal") if self._rng.random() < weather.chance else None
