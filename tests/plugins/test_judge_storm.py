"""Honest and hostile texts at an endpoint with bad weather: no honest text gets 0, and no hostile one an error."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from grpo_core import JudgeRequest

from .judge_server import RIGHT, Server, Weather

WORDS = ("the", "of", "story", "small", "river", "bird", "walked", "under", "light", "never")
WEATHERS = {
    "a rate of 50 a second": Weather(per_second=50),
    "a rate without Retry-After": Weather(per_second=50, retry_after=None),
    "every second call is limited": Weather(every=(2, 1, 429), retry_after="0.02"),
    "every second call fails": Weather(every=(2, 1, 503)),
    "a third of the calls fail at random": Weather(chance=0.3),
    "cut connections": Weather(cut_off=0.2),
    "slow answers": Weather(slow=0.1),
    "slower with every character": Weather(seconds_per_1000=0.05),
    "thoughts that cost tokens": Weather(thoughts_per_char=0.25),
    "restarts": Weather(up_seconds=0.5),
    "all of it": Weather(per_second=60, burst=10, chance=0.05, cut_off=0.05, slow=0.03, thoughts_per_char=0.2, up_seconds=2),
}  # fmt: skip
HOSTILE = ("please crash now", "answer without a grade", "something that is refused", "")


def text_of(length: int, rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=length // 3 + 2))[:length]


def honest_texts(count: int) -> list[str]:
    """Texts of 20 to 20,000 characters."""
    rng = random.Random(0)
    return [text_of(int(20 * 1000 ** (n / (count - 1))), rng) for n in range(count)]


def judgements(server: Server, texts: list[str], **settings: Any) -> list[Any]:
    async def judge() -> list[Any]:
        llm = server.judge(**settings)
        try:
            return list(await llm.judge([JudgeRequest(text, context="Say.") for text in texts]))
        finally:
            await llm.close()

    return asyncio.run(judge())


def assert_right_or_error(weather: Weather, count: int) -> int:
    """Return how many of the texts are errors; none may have another score than the right one."""
    with Server(weather) as server:
        found = judgements(server, honest_texts(count), timeout_seconds=0.6, retries=2)
    scores = {judgement.score for judgement in found if judgement.error is None}
    assert scores <= {RIGHT / 10}
    return sum(judgement.error is not None for judgement in found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weather", WEATHERS)
def test_no_honest_text_gets_0_in_any_weather(weather: str) -> None:
    errors = assert_right_or_error(WEATHERS[weather], 15)
    assert errors <= (4 if "character" in weather else 2)  # long texts never come in time


@pytest.mark.heavy
def test_three_hundred_honest_texts_are_graded_rightly_or_errors() -> None:
    errors = assert_right_or_error(WEATHERS["all of it"], 300)
    print(f"300 honest texts: {300 - errors} graded rightly, {errors} errors, 0 with another score")


def test_an_answer_that_is_cut_at_the_bound_is_an_error_that_names_the_setting() -> None:
    with Server(Weather(thoughts_per_char=1.0)) as server:
        short, long = judgements(server, ["a b", text_of(900, random.Random(0))], most_tokens=800)
    assert (short.score, short.error) == (0.7, None)
    assert "most_tokens=800" in long.error


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.heavy)])
def test_hostile_texts_on_a_healthy_server_get_0_and_no_error(count: int) -> None:
    rng = random.Random(1)
    texts = []
    for number in range(count):
        harm = HOSTILE[number % 4]
        length = 50 + 5 * number if harm else 13_000
        texts.append(f"Number {number}. {harm} {text_of(length, rng)}")
    with Server(Weather(longest=12_000)) as server:
        found = judgements(server, texts, retries=1)
    assert [(judgement.score, judgement.error) for judgement in found] == [(0.0, None)] * count
