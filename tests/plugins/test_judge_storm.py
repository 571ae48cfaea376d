"""Honest and hostile texts at an endpoint with bad weather: no honest text gets 0, and no hostile one an error."""

import random
from pathlib import Path

import pytest

from grpo_core import Verdict
from grpo_core.config.overrides import build_config
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.trainer import Trainer

from ..commandline import words
from ..train.tiny import save_tiny
from .endpoint import judged
from .judge_server import RIGHT, Server, Weather

WORDS = words("the of story small river bird walked under light never old stone green told quiet")
WEATHERS = {
    "a rate of 50 a second": Weather(per_second=50),
    "bursts of 30": Weather(per_second=50, burst=30),
    "a rate without Retry-After": Weather(per_second=50, retry_after=None),
    "every second call is limited": Weather(every=(2, 1, 429), retry_after="0.02"),
    "two of three calls fail": Weather(every=(3, 2, 503)),
    "every second call fails": Weather(every=(2, 1, 503)),
    "a third of the calls fail at random": Weather(chance=0.3),
    "cut connections": Weather(cut_off=0.2),
    "slow answers": Weather(slow=0.1),
    "slower with every character": Weather(seconds_per_1000=0.05),
    "thoughts that cost tokens": Weather(thoughts_per_char=0.25),
    "restarts": Weather(up_seconds=0.5),
    "all of it": Weather(
        per_second=60,
        burst=10,
        chance=0.05,
        cut_off=0.05,
        slow=0.03,
        thoughts_per_char=0.2,
        up_seconds=2,
    ),
}
HOSTILE = ("please crash now", "answer without a grade", "something that is refused", "")


def text_of(length: int, rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=length // 3 + 2))[:length]


def honest_texts(count: int) -> list[str]:
    """Texts of 20 to 20,000 characters."""
    rng = random.Random(0)
    return [text_of(int(20 * 1000 ** (n / (count - 1))), rng) for n in range(count)]


def assert_right_or_error(weather: Weather, count: int) -> int:
    """Return how many of the texts are errors; none may have another score than the right one."""
    with Server(weather) as server:
        found = judged(server.judge(timeout_seconds=0.6, retries=2), *honest_texts(count))
    scores = {judgement.score for judgement in found if judgement.error is None}
    assert scores <= {RIGHT / 10}
    return sum(judgement.error is not None for judgement in found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weather", WEATHERS)
def test_no_honest_text_gets_0_in_any_weather(weather: str) -> None:
    errors = assert_right_or_error(WEATHERS[weather], 40)
    assert errors <= (8 if "character" in weather else 4)  # long texts never come in time


@pytest.mark.heavy
def test_three_hundred_honest_texts_are_graded_rightly_or_errors() -> None:
    errors = assert_right_or_error(WEATHERS["all of it"], 300)
    print(f"300 honest texts: {300 - errors} graded rightly, {errors} errors, 0 with another score")


def test_an_answer_that_is_cut_at_the_bound_is_an_error_that_names_the_setting() -> None:
    with Server(Weather(thoughts_per_char=1.0)) as server:
        judge = server.judge(most_tokens=800, timeout_seconds=1.0)
        short, long = judged(judge, "a b", text_of(900, random.Random(0)))
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
        found = judged(server.judge(retries=1, timeout_seconds=1.0), *texts)
    assert [(judgement.score, judgement.error) for judgement in found] == [(0.0, None)] * count


ENVIRONMENT = """
from grpo_core import Environment, JudgeRequest, Message, Reward, Task, Verdict

class Poems(Environment[str]):
    needs = frozenset({"judge"})
    max_new_tokens = 6
    parts = {"poem": 1.0}

    def task(self, key):
        return Task(key, (Message("user", f"Write line {key.index}."),), "")

    async def averify(self, task, rollout):
        (judgement,) = await self.services.judge().judge([JudgeRequest("A poem: " + rollout.text)])
        if judgement.error:
            return Verdict.failed(judgement.error)
        return Verdict({"poem": Reward(judgement.score)})

    def reference(self, task):
        return "a line"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weather", "errors"),
    [
        (Weather(per_second=8, burst=1), 0.0),
        (Weather(thoughts_per_char=10_000), 1.0),
    ],
    ids=["a rate limit", "a judge that never ends its thoughts"],
)
def test_a_run_reports_errors_and_never_pays_0(
    tmp_path: Path, weather: Weather, errors: float
) -> None:
    model = save_tiny(tmp_path / "model")
    (tmp_path / "poems.py").write_text(ENVIRONMENT)
    with Server(weather) as server:
        settings = {"model": "any", "base_url": server.url, "key": "", "most_tokens": 400}
        layer = {
            "environment": f"{tmp_path / 'poems.py'}:Poems", "steps": 3, "prompts_per_step": 2,
            "group_size": 4, "model": {"name": str(model)},
            "judges": {"default": {"name": "llm", "settings": settings}},
            "eval": {"tasks": 0}, "verify": {"max_error_rate": 1.0},
        }  # fmt: skip
        Trainer(build_config([layer]), folder=RunFolder(tmp_path / "run")).run()
    rates = [line["verify/error_rate"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert rates == [errors] * 3
    lines = RunFolder(tmp_path / "run").rollout_lines()
    verdicts = [Verdict.from_json(line["verdict"]) for line in lines]
    assert len(verdicts) == 3 * 2 * 4
    assert all("most_tokens=400" in verdict.error for verdict in verdicts if verdict.error)
    paid = {verdict.total for verdict in verdicts if not verdict.error}
    assert paid == (set() if errors else {RIGHT / 10})
