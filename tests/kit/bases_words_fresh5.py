"""Sound environments of the fifth fresh part whose answers are code, names and sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bases_fresh5 import BLANK, Sheet, shown

from grpo_core import JudgeRequest, Reward, Rollout, Task, Verdict
from grpo_core.protocol.environment import Services
from grpo_core.testing import FakeJudge
from grpo_env_dataset.env import Config

ROWS = Path(__file__).with_name("rows_fresh5.jsonl")
REWARDS = Path(__file__).with_name("rewards_fresh5.py")
TITLES = [
    f"{first} {second}"
    for first in ("Amber", "Broken", "Distant", "Hollow", "Paper", "Silver", "Velvet")
    for second in ("Harbour", "Lantern", "Orchard", "Mirror", "Sparrow", "Winter")
]
WORDS = (
    *("account", "batch", "border", "cache", "filter", "header", "index", "layout", "margin"),
    *("number", "offset", "page", "query", "render", "session", "table", "token", "update"),
)


class Playlist(Sheet):
    """Which songs are long? The answer is a list of titles."""

    fewest = 2
    highest = 370

    def draw(self, rng: random.Random, level: float) -> Any:
        count = 5 + round(6 * level)
        lengths = rng.sample(range(121, 420), count)
        songs = tuple(zip(rng.sample(TITLES, count), lengths, strict=True))
        limit = rng.randint(200, self.highest)
        return (songs, limit) if self.fewest <= len(longer(songs, limit)) < count else None

    def wording(self, facts: Any) -> str:
        songs, limit = facts
        told = "\n".join(f"{title} {s // 60}:{s % 60:02d}" for title, s in songs)
        return (
            f"{told}\nWhich of these songs are longer than {limit // 60}:{limit % 60:02d}? Reply "
            "with the titles only, the longest first, with commas between them."
        )

    def solution(self, facts: Any) -> Any:
        return ", ".join(longer(*facts))


def longer(songs: tuple[tuple[str, int], ...], limit: int) -> list[str]:
    """Return the titles of the songs above a limit, the longest first."""
    return [title for title, s in sorted(songs, key=lambda song: -song[1]) if s > limit]


class Signature(Sheet):
    """Write the head of a function as Python has it. The answer is a line of code."""

    def draw(self, rng: random.Random, level: float) -> Any:
        return tuple(tuple(rng.sample(WORDS, size)) for size in (3, *[2] * (2 + round(3 * level))))

    def wording(self, facts: Any) -> str:
        name, *others = (words[0] + "".join(map(str.capitalize, words[1:])) for words in facts)
        return (
            f"Write the head of the function {name}({', '.join(others)}) in Python, with all names "
            "in snake case. Reply with that line only, as in: def read_file(file_name, max_size):"
        )

    def solution(self, facts: Any) -> Any:
        name, *others = ("_".join(words) for words in facts)
        return f"def {name}({', '.join(others)}):"


class Filters(Sheet):
    """Simplify a condition. The answer is a condition on x alone."""

    def draw(self, rng: random.Random, level: float) -> Any:
        factor = rng.choice((-1, 1)) * rng.randint(2, 9 + round(30 * level))
        return factor, rng.randint(-99, 99), rng.randint(5, 95), rng.choice((">=", "<="))

    def wording(self, facts: Any) -> str:
        factor, added, edge, sign = facts
        turned = sign if factor > 0 else {">=": "<=", "<=": ">="}[sign]
        plus = "-" if added < 0 else "+"
        return (
            f"Simplify this condition on whole numbers: {factor} * x {plus} {abs(added)} {turned} "
            f"{factor * edge + added}. Reply with the new condition only, x on its left, as in: "
            "x >= 700"
        )

    def solution(self, facts: Any) -> Any:
        _, _, edge, sign = facts
        return f"x {sign} {edge}"


class Patterns(Sheet):
    """Which pattern selects some files of a folder? Any pattern that does is right."""

    def draw(self, rng: random.Random, level: float) -> Any:
        count = 3 + round(3 * level)
        begin, other = rng.sample([a + b + c for a in "bdgkmst" for b in "aeo" for c in "lnr"], 2)
        end, wrong = rng.sample(("csv", "log", "png", "txt", "xml"), 2)
        numbers = rng.sample(range(100, 1000), 2 * count + 4)
        wanted = [f"{begin}{number}.{end}" for number in numbers[:count]]
        unwanted = [
            *(f"{begin}{numbers[-1]}.{wrong}", f"{begin}{numbers[-2]}.{end}.{wrong}"),
            *(f"{other}{numbers[-3]}.{end}", f"{other}{begin}{numbers[-4]}.{end}"),
            *(f"{other}{number}.{wrong}" for number in numbers[count : 2 * count - 1]),
        ]
        return tuple(rng.sample(wanted, count)), tuple(rng.sample(unwanted, len(unwanted)))

    def wording(self, facts: Any) -> str:
        wanted, unwanted = facts
        return (
            f"Write one pattern for the shell, with * for any characters, that selects "
            f"{', '.join(wanted)} and does not select {', '.join(unwanted)}. Reply with the "
            "pattern only, in at most 12 characters."
        )

    def solution(self, facts: Any) -> Any:
        return facts

    def read(self, text: str) -> Any:
        said = text.strip(BLANK)
        return said if re.fullmatch(r"[a-z0-9*.]{1,12}", said) else None

    def same(self, truth: Any, answer: Any) -> bool:
        wanted, unwanted = truth
        return all(fnmatchcase(name, answer) for name in wanted) and not any(
            fnmatchcase(name, answer) for name in unwanted
        )

    def wrapped(self, truth: Any) -> str:
        name, _, end = truth[0][0].partition(".")
        return f"{name[:3]}*.{end}"


class Delay(Sheet):
    """How late is a train? A judge compares a sentence with the right one."""

    needs = frozenset({"judge"})

    def draw(self, rng: random.Random, level: float) -> Any:
        changes = tuple(rng.randint(3, 29) for _ in range(3 + round(4 * level)))
        signs = (1, *(rng.choice((-1, 1)) for _ in changes[1:]))
        late = sum(sign * minutes for sign, minutes in zip(signs, changes, strict=True))
        return (rng.randint(100, 999), changes, signs) if late > 5 else None

    def wording(self, facts: Any) -> str:
        number, changes, signs = facts
        told = ", then ".join(
            f"{'loses' if sign > 0 else 'makes up'} {minutes} minutes"
            for sign, minutes in zip(signs, changes, strict=True)
        )
        return (
            f"Train {number} leaves on time, {told}. Tell the passengers in one sentence how late "
            "it is now."
        )

    def solution(self, facts: Any) -> Any:
        number, changes, signs = facts
        late = sum(sign * minutes for sign, minutes in zip(signs, changes, strict=True))
        return f"Train {number} is now {late} minutes late."

    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = rollout.text.strip(BLANK)
        score = 0.0
        if 0 < len(answer) <= 1000:
            (judgement,) = await self.services.judge().judge([self.request(task, answer)])
            if judgement.error is not None:
                raise RuntimeError(f"there is no score: {judgement.error}")
            score = judgement.score
        return Verdict({"reward": Reward(score)}, passed=score >= 1, answer=shown(answer))

    def request(self, task: Task[Any], answer: str) -> JudgeRequest:
        return JudgeRequest(
            answer, reference=task.data, rubric="Do both sentences say the same to passengers?"
        )


def same_news(request: JudgeRequest) -> float:
    """Return 1 if the candidate is the right sentence, but for case and the full stop."""
    one, two = (
        text.strip().rstrip(".").casefold() for text in (request.candidate, request.reference or "")
    )
    return float(one == two)


def judged_by(environment: type[Sheet], score: Callable[[JudgeRequest], float]) -> Sheet:
    """Return the environment with a judge."""
    return environment(services=Services(judges={"default": FakeJudge(score)}))


def settings5(reward: str = "number", **others: Any) -> Config:
    """Return the settings for the rows of this part; `reward` may name a function of it."""
    own = reward not in ("exact", "number")
    plain = {"system": "Reply with the answer only.", "tag": ""} if own else {}
    return Config(
        path=str(ROWS), reward=f"{REWARDS}:{reward}" if own else reward, **{**plain, **others}
    )
