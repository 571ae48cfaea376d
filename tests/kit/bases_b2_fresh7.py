"""Sound environments of one turn, one with a judge, on which faults are planted elsewhere."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, ClassVar

from bases_b_fresh7 import asks, clock, drawn_apart, paid, spoken

from grpo_core import (
    Environment,
    JudgeRequest,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import parse_json
from grpo_core.guards import Guards
from grpo_core.testing import FakeJudge


class LotSeries(Environment[str]):
    """Asks for a later number of a series of lots, whose numbers have five digits."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, str]:
            prefix = "".join(rng.sample("ABCDEFGHKLMNPRSTVW", 2))
            first = rng.randint(3, 899)
            step, later = (rng.randint(2, 9), 2) if key.level < 0.5 else (rng.randint(11, 89), 5)
            known = ", ".join(f"{prefix}-{first + step * place:05d}" for place in range(3))
            wanted = f"{prefix}-{first + step * (2 + later):05d}"
            return (
                f"Lots are numbered in equal steps: {known}. Which is {later} lots later?",
                wanted,
            )

        question, lot = drawn_apart(key, draw, lambda drawn: drawn[0])
        rule = " Reply with its full number, as it is printed on the label, and nothing else."
        return Task(key, asks(question + rule), lot)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


class SheetOfNumbers(Environment[dict[str, int]]):
    """Asks for some figures about measured numbers, as a JSON object.

    Each right figure pays the same share, and an object with other keys pays nothing.
    """

    max_new_tokens = 96
    figures: ClassVar[Sequence[str]] = (
        "sum",
        "smallest",
        "largest",
        "range",
        "odd",
        "even",
        "median",
    )

    def task(self, key: TaskKey) -> Task[dict[str, int]]:
        size, most = (5, 50) if key.level < 0.5 else (9, 500)

        def draw(rng: random.Random) -> tuple[list[int], list[str]]:
            numbers = [rng.randint(2, most) for _ in range(size)]
            return numbers, rng.sample(self.figures, rng.randint(4, 7))

        numbers, wanted = drawn_apart(key, draw, str)
        known = {
            "sum": sum(numbers),
            "smallest": min(numbers),
            "largest": max(numbers),
            "range": max(numbers) - min(numbers),
            "odd": sum(number % 2 for number in numbers),
            "even": sum(number % 2 == 0 for number in numbers),
            "median": int(median(numbers)),
        }
        question = (
            f"The readings are {', '.join(map(str, numbers))}. Reply with one JSON object and "
            f"nothing else; its keys are {', '.join(wanted)} (odd and even count the readings)."
        )
        return Task(key, asks(question), {figure: known[figure] for figure in wanted})

    def verify(self, task: Task[dict[str, int]], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        right = self.right_figures(answer, task.data)
        return self.pay(len(right), len(task.data), answer)

    def pay(self, right: int, wanted: int, answer: str) -> Verdict:
        """Return the verdict for so many right figures of so many."""
        return Verdict(
            {"reward": Reward(right / wanted)}, passed=right == wanted, answer=answer[:200]
        )

    def right_figures(self, answer: str, known: Mapping[str, int]) -> list[str]:
        """Return the keys whose figure is right; none if the keys are not those asked for."""
        parsed = parse_json(answer, max_chars=1000, max_depth=1)
        if parsed is None or not isinstance(parsed.value, dict) or set(parsed.value) != set(known):
            return []
        return [key for key, value in parsed.value.items() if _same_int(value, known[key])]

    def reference(self, task: Task[dict[str, int]]) -> str:
        return json.dumps(task.data)


def _same_int(value: Any, number: int) -> bool:
    return type(value) is int and value == number


class FailedRequests(Environment[str]):
    """Asks how long the failed requests in a log of a web server took together."""

    max_new_tokens = 16
    paths: ClassVar[Sequence[str]] = ("/cart", "/login", "/search", "/pay", "/items", "/help")

    def task(self, key: TaskKey) -> Task[str]:
        size = 5 + round(6 * key.level)

        def draw(rng: random.Random) -> tuple[list[str], int]:
            statuses = [500, 503, 200, *rng.choices((200, 204, 302, 404, 500, 502), k=size - 3)]
            rng.shuffle(statuses)
            lines, failed = [], 0
            for status in statuses:
                took = rng.randint(12, 480)
                failed += took if status >= 500 else 0
                lines.append(f"{rng.choice(self.paths)} {status} {took} ms")
            return lines, failed

        lines, failed = drawn_apart(key, draw, str)
        log = "\n".join(
            f"{stamp} GET {line}"
            for stamp, line in zip(self.stamps(key, len(lines)), lines, strict=True)
        )
        question = (
            f"{log}\nHow many milliseconds did the requests with a status of 500 or above take "
            "together? Reply with the number and the unit, as in 90 ms, and nothing else."
        )
        return Task(key, asks(question), f"{failed} ms")

    def stamps(self, key: TaskKey, count: int) -> list[str]:
        """Return the times at which the requests came in, in ascending order."""
        seconds = sorted(key.rng("stamps").sample(range(6 * 3600, 22 * 3600), count))
        return [f"{clock(second // 60)}:{second % 60:02d}" for second in seconds]

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


class CronCount(Environment[str]):
    """Asks how often a line of a crontab runs in a day."""

    max_new_tokens = 16
    jobs: ClassVar[Sequence[str]] = ("backup", "rotate", "mirror", "report", "cleanup", "poll")

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, int]:
            if rng.random() < 0.5:
                every = rng.choice((4, 5, 6, 10, 12, 15, 20))
                minutes, in_hour = f"*/{every}", 60 // every
            else:
                listed = sorted(rng.sample(range(60), rng.randint(2, 6)))
                minutes, in_hour = ",".join(map(str, listed)), len(listed)
            first = rng.randint(0, 11)
            last = first + rng.randint(2, 11)
            step = 1 if key.level < 0.5 else rng.randint(2, 3)
            hours = f"{first}-{last}" + (f"/{step}" if step > 1 else "")
            return f"{minutes} {hours} * * *", in_hour * len(range(first, last + 1, step))

        schedule, runs = drawn_apart(key, draw, lambda drawn: drawn[0])
        job = key.rng("job").choice(self.jobs)
        question = (
            f"{schedule} cd {self.folder(key)} && ./{job}.sh\n"
            "How many times a day does this line of a crontab run? Reply with the number alone."
        )
        return Task(key, asks(question), str(runs))

    def folder(self, key: TaskKey) -> str:
        """Return the folder that the line of the crontab names."""
        return f"/srv/{key.rng('folder').choice(('shop', 'wiki', 'mail', 'forum'))}"

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


@dataclass(frozen=True, slots=True)
class Hike:
    """Holds a hike: when it starts and how long it takes, in minutes."""

    start: int
    takes: int


class TrailArrival(Environment[Hike]):
    """Asks when a hiker arrives, by the rule of fifteen minutes a kilometre."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[Hike]:
        def draw(rng: random.Random) -> tuple[str, Hike]:
            kilometres, ascent = rng.randint(3, 11), 100 * rng.randint(1, 6)
            rest = 0 if key.level < 0.5 else rng.choice((25, 35, 40, 50))
            start = 5 * rng.randint(66, 126)
            facts = f"{kilometres} km long and climbs {ascent} m; you rest for {rest} minutes"
            return facts, Hike(start, 15 * kilometres + ascent // 10 + rest)

        facts, hike = drawn_apart(key, draw, lambda drawn: f"{drawn[0]} {drawn[1].start}")
        question = (
            f"You set out at {self.shown(hike.start)} on a trail that is {facts}. A kilometre "
            "takes 15 minutes, and each 100 m of climbing 10 minutes more. When do you arrive? "
            "Reply with the time alone, in four digits with a colon, as in 23:59."
        )
        return Task(key, asks(question), hike)

    def shown(self, minutes: int) -> str:
        """Return how the prompt writes a time of the day."""
        return clock(minutes)

    def verify(self, task: Task[Hike], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == clock(task.data.start + task.data.takes), answer)

    def reference(self, task: Task[Hike]) -> str:
        return clock(task.data.start + task.data.takes)


@dataclass(frozen=True, slots=True)
class Scene:
    """Holds what a picture shows."""

    animal: str
    doing: str
    place: str

    @property
    def facts(self) -> tuple[str, str, str]:
        """Return all that is shown."""
        return self.animal, self.doing, self.place


_LISTED_ANIMALS = "badger beaver fox hare hedgehog heron kestrel lynx otter owl squirrel swan"
_ANIMALS = _LISTED_ANIMALS.split()
_LISTED_DEEDS = "asleep, drinking, feeding, hiding, resting, running, turning round, waiting"
_DEEDS = _LISTED_DEEDS.split(", ")
_LISTED_PLACES = """
    under an oak, beside a canal, on a frozen pond, near a barn, in tall grass, behind a fence,
    on a mossy wall, at the edge of a wood
"""
_PLACES = _LISTED_PLACES.strip().split(",")


class AltTextOfAScene(Environment[Scene]):
    """Asks for the alternative text of a picture; a judge scores it by three criteria."""

    needs = frozenset({"judge"})
    open_ended = True
    levels = False
    max_new_tokens = 48
    criteria: ClassVar[Sequence[str]] = (
        "It says what the picture shows and nothing else.",
        "It is one plain sentence.",
        "It does not speak of a picture.",
    )

    def task(self, key: TaskKey) -> Task[Scene]:
        def draw(rng: random.Random) -> Scene:
            places = [" ".join(place.split()) for place in _PLACES]
            return Scene(rng.choice(_ANIMALS), rng.choice(_DEEDS), rng.choice(places))

        scene = drawn_apart(key, draw, lambda drawn: " ".join(drawn.facts))
        question = (
            f"Animal: {scene.animal}. What it does: {scene.doing}. Where: {scene.place}. Write "
            "the alternative text of this picture: one plain sentence that begins with A or An."
        )
        return Task(key, asks(question), scene)

    async def averify(self, task: Task[Scene], rollout: Rollout) -> Verdict:
        text, reference = spoken(rollout), self.reference(task)
        context = "; ".join(task.data.facts)
        fault = Guards().fault(text, reference=reference, context=context)
        if fault is not None or re.fullmatch(r"An? [a-z ]+\.", text) is None:
            return Verdict({"reward": Reward(0.0, note=fault or "no sentence")}, answer=text[:200])
        requests = [
            JudgeRequest(text, context=context, reference=reference, rubric=rubric)
            for rubric in self.criteria
        ]
        score = await self.score(requests)
        return Verdict({"reward": Reward(score)}, passed=score >= 0.8, answer=text[:200])

    async def score(self, requests: Sequence[JudgeRequest]) -> float:
        """Return the mean of the judge's scores."""
        judgements = await self.services.judge().judge(requests)
        errors = [judgement.error for judgement in judgements if judgement.error is not None]
        if errors:
            raise RuntimeError(f"the judge gave no score: {errors[0]}")
        return fmean(judgement.score for judgement in judgements)

    def reference(self, task: Task[Scene]) -> str:
        article = "An" if task.data.animal[0] in "aeiou" else "A"
        return f"{article} {task.data.animal} is {task.data.doing} {task.data.place}."


def scene_judge() -> Services:
    """Return a judge that wants the facts of the context and hardly any other words."""

    def score(request: JudgeRequest) -> float:
        words = request.candidate.rstrip(".").split()
        facts = request.context.split("; ")
        known = sum(f" {fact} " in f" {' '.join(words)} " for fact in facts)
        extra = len(words) - len(" ".join(facts).split())
        return known / len(facts) if 1 < extra <= 5 and "is" in words else 0.0

    return Services(judges={"default": FakeJudge(score)})
