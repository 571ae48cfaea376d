"""Sound environments of the fourth fresh part whose answers are words, codes and sentences."""

from __future__ import annotations

import posixpath
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from bases_fresh4 import SPACE, JsonPuzzle, Puzzle

from grpo_core import JudgeRequest, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_integer
from grpo_core.protocol.environment import Services
from grpo_core.testing import FakeJudge
from grpo_env_dataset.env import Config

ROWS = Path(__file__).with_name("rows_fresh4.jsonl")
REWARDS = Path(__file__).with_name("rewards_fresh4.py")


def coined(rng: random.Random, syllables: int) -> str:
    """Return a word that no language has."""
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(syllables))


class Cipher(Puzzle):
    """Shift each letter of a word in the alphabet. The answer is a word."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        return coined(rng, 3 + round(3 * level)), rng.choice((-1, 1)) * rng.randint(1, 9)

    def asked(self, word: str, places: int) -> str:
        way = "forward" if places > 0 else "back"
        return (
            f"Shift each letter of {word!r} by {abs(places)} {way} in the alphabet, in which a "
            "follows z. Reply with the new word only."
        )

    def solved(self, word: str, places: int) -> str:
        return "".join(
            ascii_lowercase[(ascii_lowercase.index(letter) + places) % 26] for letter in word
        )


class Route(Puzzle):
    """Where does a path lead? The answer is a path without detours."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        parts = [""]
        while len(parts) < 6 + round(6 * level):
            folder = f"{coined(rng, 2)}{rng.randint(2, 98)}"
            parts.append(".." if len(parts) > 2 and rng.random() < 0.3 else folder)
        path = "/".join([*parts, f"{coined(rng, 2)}{rng.randint(2, 98)}.txt"])
        fine = ".." in parts and posixpath.normpath(path).count("/") > 2
        return (path,) if fine else ()

    def asked(self, path: str) -> str:
        return (
            f"Write this path without any '..', so that it names the same file: {path} . "
            "Reply with the path only."
        )

    def solved(self, path: str) -> str:
        return posixpath.normpath(path)


class Ticket(Puzzle):
    """Which number has the last ticket? The answer is a code of six digits, zeros included."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        return rng.randint(12, 9000), tuple(
            rng.randint(12, 400) for _ in range(2 + round(3 * level))
        )

    def asked(self, last: int, sold: tuple[int, ...]) -> str:
        told = ", then ".join(map(str, sold))
        return (
            f"Tickets have numbers of six digits. The last one had the number {last:06d}; now "
            f"{told} more are sold. Which number has the last one now? Reply with it only, as it "
            "is printed."
        )

    def solved(self, last: int, sold: tuple[int, ...]) -> str:
        return f"{last + sum(sold):06d}"


VERBS = (
    *("habl", "cant", "trabaj", "camin", "mir", "compr", "bail", "viaj", "nad", "estudi"),
    *("llam", "cocin", "lav", "ayud", "termin", "esper", "dibuj", "escuch", "prepar", "contest"),
)
PERSONS = {
    "yo, ahora": "o",
    "él, ayer": "ó",
    "yo, ayer": "é",
    "que él, ahora": "e",
    "ellos, mañana": "arán",
    "nosotros, mañana": "aremos",
    "él, mañana": "ará",
}


class Verbs(Puzzle):
    """Put Spanish verbs into their forms, of which some differ in an accent only."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        verbs = rng.sample(VERBS, 2 + round(3 * level))
        return (tuple((verb, rng.choice(list(PERSONS))) for verb in verbs),)

    def asked(self, verbs: tuple[tuple[str, str], ...]) -> str:
        told = "; ".join(f"{verb}ar ({person})" for verb, person in verbs)
        return (
            f"Conjugate, with ayer = pretérito and mañana = futuro: {told}. Reply with the forms "
            "only, without pronouns, as in: pasé, pasa"
        )

    def solved(self, verbs: tuple[tuple[str, str], ...]) -> str:
        return ", ".join(verb + PERSONS[person] for verb, person in verbs)


class OddRow(Puzzle):
    """Which row of a table does not add up? The answer is the number of a row."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        rows = []
        for _ in range(12 + round(8 * level)):
            one, two = rng.randint(11, 99 + round(900 * level)), rng.randint(11, 99)
            rows.append((one, two, one + two))
        at = rng.randrange(len(rows))
        one, two, total = rows[at]
        rows[at] = one, two, total + rng.choice((-10, -2, -1, 1, 2, 10))
        return (tuple(rows),)

    def asked(self, rows: tuple[tuple[int, int, int], ...]) -> str:
        told = "\n".join(f"{n}: {one} + {two} = {sum_}" for n, (one, two, sum_) in enumerate(rows))
        return f"{told}\nOne row does not add up. Reply with the number of that row only."

    def solved(self, rows: tuple[tuple[int, int, int], ...]) -> int:
        return next(n for n, (one, two, total) in enumerate(rows) if one + two != total)

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=9)


class Repaired(JsonPuzzle):
    """Correct the one wrong number of a list. The answer is the whole list, as JSON."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        first, step = rng.randint(11, 300), rng.randint(12, 60 + round(400 * level))
        count = 6 + round(4 * level)
        at = rng.randrange(1, count - 1)
        return first, step, count, at, rng.choice((-9, -5, -3, 3, 5, 9))

    def asked(self, first: int, step: int, count: int, at: int, off: int) -> str:
        numbers = [first + step * n + (off if n == at else 0) for n in range(count)]
        return (
            f"One number of this list is wrong, as the steps should all be the same: {numbers}. "
            "Reply with the corrected list, as JSON."
        )

    def solved(self, first: int, step: int, count: int, at: int, off: int) -> Any:
        return [first + step * n for n in range(count)]


@cache
def stations() -> Mapping[str, list[tuple[str, int, int]]]:
    """Return different weather stations, with their heights and their years, for each split."""
    rng = random.Random("stations")
    names = sorted({coined(rng, 3).capitalize() for _ in range(900)})
    rows = [(name, rng.randint(20, 2900), rng.randint(1880, 1990)) for name in names]
    rng.shuffle(rows)
    return {
        "train": [row for row in rows if not held_out(row[0])],
        "eval": [row for row in rows if held_out(row[0])],
    }


class Stations(Puzzle):
    """A list with an end: how high would a station's balloon be?"""

    levels = False

    def size(self, split: str) -> int | None:
        return len(stations()[split])

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return stations()[key.split][key.index]

    def asked(self, name: str, height: int, year: int) -> str:
        return (
            f"The weather station {name}, founded in {year}, stands {height} m above the sea. Its "
            f"balloon hangs {year} m above it. How many metres above the sea is the balloon? "
            "Reply with the number only."
        )

    def solved(self, name: str, height: int, year: int) -> int:
        return height + year

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=9)


class Opening(Puzzle):
    """When does a museum close? A judge compares a sentence with the truth."""

    needs = frozenset({"judge"})
    max_new_tokens = 100

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        hours = tuple(rng.randint(15, 90) for _ in range(3 + round(4 * level)))
        return rng.randrange(8 * 60, 12 * 60), hours

    def asked(self, opens: int, tours: tuple[int, ...]) -> str:
        told = ", ".join(map(str, tours))
        return (
            f"A museum opens at {clock(opens)}. Its tours take {told} minutes, one after the "
            "other, and then it closes. Say in one sentence when it closes."
        )

    def solved(self, opens: int, tours: tuple[int, ...]) -> str:
        return f"The museum closes at {clock(opens + sum(tours))}."

    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = rollout.text.strip(SPACE)[:300]
        score = await self.score(task, answer) if answer else 0.0
        return Verdict({"reward": Reward(score)}, passed=score >= 1, answer=answer[:100])

    async def score(self, task: Task[Any], answer: str) -> float:
        request = JudgeRequest(answer, rubric="Do both say the same?", reference=task.data)
        (judgement,) = await self.services.judge().judge([request])
        if judgement.error is not None:
            raise RuntimeError(f"the judge gave no score: {judgement.error}")
        return judgement.score


def clock(minutes: int) -> str:
    """Return a time of day, such as "07:05"."""
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def with_judge(environment: type[Puzzle]) -> Puzzle:
    """Return the environment with a judge that compares the times of two sentences."""
    return environment(services=Services(judges={"default": FakeJudge(same_sentence)}))


def same_sentence(request: JudgeRequest) -> float:
    """Return 1 if both sentences are the same, but for case and the full stop."""
    one, two = (
        text.strip().rstrip(".").lower() for text in (request.candidate, request.reference or "")
    )
    return float(one == two)


def settings4(reward: str = "exact", **others: Any) -> Config:
    """Return the settings for the rows of this part; `reward` may name a function of it."""
    own = reward not in ("exact", "number")
    plain = {"system": "Reply with the answer only.", "tag": ""} if own else {}
    return Config(
        path=str(ROWS), reward=f"{REWARDS}:{reward}" if own else reward, **{**plain, **others}
    )
