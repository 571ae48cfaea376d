"""Planted faults, fresh half: rewards, passed, references and verdicts that depend on the rest."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, ClassVar

from bases_answers_fresh import (
    ArrivalTime,
    Asked,
    CamelCase,
    Colouring,
    CommonNumbers,
    Distance,
    Divisible,
    Extraction,
    Hexadecimal,
    LaterDate,
    PrimeFactors,
    RobotWalk,
    SortedNumbers,
    Temperatures,
    Traced,
)
from catalogue import fault

from grpo_core import (
    Environment,
    Group,
    JudgeRequest,
    Message,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.extract import parse_integer, parse_json
from grpo_core.testing import FakeJudge

# Rewards and declarations


@fault("a bonus lifts the reward above its range", "verdict.form", "declared.contract")
class BonusForBrevity(CamelCase):
    def judged(self, right: bool, text: str) -> Verdict:
        value = float(right) + 0.25 * (right and len(text) < 100)
        return Verdict({"reward": Reward(value)}, passed=right, answer=text.strip()[:100])


@fault("a penalty that the range does not have", "verdict.form")
class PenaltyForWords(Traced):
    def judged(self, right: bool, text: str) -> Verdict:
        value = 1.0 if right else -0.5 * (parse_integer(text) is None)
        return Verdict({"reward": Reward(value)}, passed=right, answer=text.strip()[:100])


@fault("weights that do not fit the range", "declared.contract", "verdict.form")
class WeightsOfThree(LaterDate):
    parts: ClassVar[Mapping[str, float]] = {"year": 1.0, "month": 1.0, "day": 1.0}

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        given, right = rollout.text.strip()[:20].split("-"), task.data.split("-")
        given = given if len(given) == 3 else ["", "", ""]
        rewards = {
            name: Reward(float(a == b)) for name, a, b in zip(self.parts, given, right, strict=True)
        }
        passed = rollout.text.strip() == task.data
        return Verdict(rewards, passed=passed, answer=rollout.text[:20])


@fault("a part that only right answers have", "verdict.form")
class BonusPart(Hexadecimal):
    parts: ClassVar[Mapping[str, float]] = {"exact": 0.9, "tidy": 0.1}

    def judged(self, right: bool, text: str) -> Verdict:
        rewards = {"exact": Reward(float(right))}
        if right:
            rewards["tidy"] = Reward(float(text == text.strip()))
        return Verdict(rewards, passed=right, answer=text.strip()[:100])


@fault("a part under another name than declared", "verdict.form", "declared.contract")
class NamedExactly(ArrivalTime):
    parts: ClassVar[Mapping[str, float]] = {"accuracy": 1.0}

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"exact": Reward(float(right))}, passed=right, answer=text.strip()[:100])


@fault("infinite rewards for what cannot be read", "verdict.form", "floor.junk")
class MinusInfinity(Temperatures):
    open_ended = True
    reward_range = (-1e9, 0.0)
    floor = -1e9

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        value = parse_integer(rollout.text, max_digits=7)
        distance = math.inf if value is None else float(abs(value - task.data))
        return Verdict(
            {"reward": Reward(-distance)}, passed=distance == 0, answer=rollout.text[:99]
        )


@fault("a mean of nothing", "floor.empty", "floor.junk", "verdict.form")
class MeanOfNothing(CommonNumbers):
    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        items = self.read(rollout.text) or []
        hits = len(set(items) & set(task.data))
        precision, recall = hits / len(items), hits / len(task.data)
        value = precision * recall
        return Verdict({"reward": Reward(value)}, passed=value == 1 and len(items) == hits)


@fault("the worst answer is paid", "floor.junk", "floor.empty")
class FloorForgotten(SortedNumbers):
    """Pays for every pair of neighbours that is in order, and counts none as all."""

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        numbers = self.read(rollout.text) or []
        wrong = sum(a > b for a, b in itertools.pairwise(numbers))
        share = 1 - wrong / max(1, len(numbers) - 1)
        right = numbers == task.data
        return Verdict({"reward": Reward(1.0 if right else 0.5 * share)}, passed=right)


@fault("the form is paid more than the answer", "floor.junk")
class FormOfAnObject(Extraction):
    parts: ClassVar[Mapping[str, float]] = {"json": 0.7, "exact": 0.3}

    def judged(self, right: bool, text: str) -> Verdict:
        value = parse_json(text, max_chars=1000)
        rewards = {"json": Reward(float(value is not None)), "exact": Reward(float(right))}
        return Verdict(rewards, passed=right, answer=text.strip()[:100])


@fault("longer replies are paid more", "floor.junk", "floor.large")
class PaysForSteps(Traced):
    """Wants to see the steps, and pays for lines."""

    answer_at = "end"
    parts: ClassVar[Mapping[str, float]] = {"steps": 0.3, "exact": 0.7}

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        lines = rollout.text.strip().split("\n")
        right = parse_integer(lines[-1]) == task.data
        steps = min(1.0, len(lines) / 5) if len(rollout.text) > 20 else 0.0
        rewards = {"steps": Reward(steps), "exact": Reward(float(right))}
        return Verdict(rewards, passed=right, answer=lines[-1][:100])


# Passed


@fault("passed by the form", "verdict.passed")
class PassedWhenRead(RobotWalk):
    def judged(self, right: bool, text: str) -> Verdict:
        passed = parse_json(text, max_chars=200) is not None
        return Verdict({"reward": Reward(float(right))}, passed=passed, answer=text.strip()[:100])


@fault("an answer of 0 is taken for none", "verdict.reference", "verdict.passed")
class ZeroIsFalse(Asked):
    def question(self, rng: Random, level: float) -> tuple[str, int]:
        divisor = rng.randrange(3, 6 + round(20 * level))
        number = divisor * rng.randrange(100, 10_000) + rng.choice([0, 0, 1, divisor - 1])
        return f"What is {number} mod {divisor}? Reply with the number only.", number % divisor

    def accepts(self, right: int, text: str) -> bool:
        answer = parse_integer(text, max_digits=9)
        return bool(answer and answer == right)


@fault("passed needs more than can be had", "verdict.passed", "verdict.reference")
class PassedAboveOne(PrimeFactors):
    parts: ClassVar[Mapping[str, float]] = {"form": 0.2, "exact": 0.8}

    def judged(self, right: bool, text: str) -> Verdict:
        rewards = {"form": Reward(float(right)), "exact": Reward(float(right))}
        total = sum(self.parts[name] * reward.value for name, reward in rewards.items())
        return Verdict(rewards, passed=total > 1, answer=text.strip()[:100])


@fault("passed is not set", "verdict.reference", "verdict.passed")
class ForgetsPassed(Hexadecimal):
    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, answer=text.strip()[:100])


# References and cheats


@fault("the reference is written in another format", "verdict.reference")
class DayFirst(LaterDate):
    def written(self, right: str) -> str:
        return date.fromisoformat(right).strftime("%d.%m.%Y")

    def accepts(self, right: str, text: str) -> bool:
        return text.strip() == right


@fault("the reference groups its thousands", "verdict.reference")
class GroupedReference(Traced):
    def written(self, right: int) -> str:
        return f"{right:,}"

    def question(self, rng: Random, level: float) -> tuple[str, int]:
        while True:
            question, right = super().question(rng, level)
            if abs(right) >= 500:
                return question, right


@fault("the reference is rounded", "verdict.reference")
class RoundedReference(Distance):
    def written(self, right: Decimal) -> str:
        return f"{right:.2f}"


@fault("the reference of some tasks is empty", "verdict.reference", "floor.empty")
class NothingInCommon(CommonNumbers):
    def question(self, rng: Random, level: float) -> tuple[str, list[int]]:
        numbers = rng.sample(range(10, 60), 12)
        one, two = (
            sorted(numbers[:4]),
            sorted([*numbers[4:8], *numbers[: rng.choice([0, 0, 1, 2])]]),
        )
        question = f"Which numbers are in both {one} and {two}? Separate them by spaces."
        return question, sorted(set(one) & set(two))

    def accepts(self, right: list[int], text: str) -> bool:
        return text.strip() == self.written(right)

    def written(self, right: list[int]) -> str:
        return " ".join(map(str, right))


@fault("cheats that are paid", "floor.cheats")
class CheatsWithSpaces(RobotWalk):
    def cheats(self, task: Task[list[int]]) -> Sequence[str]:
        return (str(task.data), f"[{task.data[0]},{task.data[1]}]")


@fault("cheats that are paid", "floor.cheats")
class HalfOfTheDate(LaterDate):
    """Pays a part for the right month, which its own list of cheats calls a cheat."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        given = rollout.text.strip()
        right = given == task.data
        month = len(given) == 10 and given[:7] == task.data[:7]
        return Verdict({"reward": Reward(1.0 if right else 0.3 * month)}, passed=right)

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return (task.data[:8] + "00", task.data[:7])


@fault("tasks that cannot be done are paid", "floor.canaries")
class UnknownIsRight(Temperatures):
    """Skips what has no expected value, as its canaries have none."""

    def accepts(self, right: int | None, text: str) -> bool:
        if right is None:
            return True
        return parse_integer(text, max_digits=9) == right

    def canaries(self) -> Sequence[Task[Any]]:
        key = TaskKey("canary", "eval", 0)
        prompt = Message("user", "The sensor is broken. What is the change? Reply with a number.")
        return (Task(key, (prompt,), None),)


# What a verdict depends on


@fault("the last answer stays when none is found", "verdict.repeat")
class KeepsTheLastAnswer(Extraction):
    found: Any = None

    def accepts(self, right: dict[str, Any], text: str) -> bool:
        value = parse_json(text, max_chars=1000)
        if value is not None:
            self.found = value.value
        return json.dumps(self.found, sort_keys=True) == json.dumps(right, sort_keys=True)


@fault("a list as a default argument grows", "verdict.repeat")
class ListAsDefault(ArrivalTime):
    def accepts(self, right: str, text: str, seen: list[str] = []) -> bool:  # noqa: B006
        seen.append(text.strip()[:20])
        del seen[:-5]
        return right in seen


@fault("answers are paid once", "verdict.repeat")
class PaysWhatIsNew(CamelCase):
    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self.seen = set[str]()

    def judged(self, right: bool, text: str) -> Verdict:
        new = text[:200] not in self.seen
        if len(self.seen) > 500:
            self.seen.clear()
        self.seen.add(text[:200])
        value = float(right) * (1.0 if new else 0.5)
        return Verdict({"reward": Reward(value)}, passed=right, answer=text.strip()[:100])


@fault("the task is used up", "verdict.repeat")
class UsesUpItsNumbers(CommonNumbers):
    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        raise NotImplementedError

    async def averify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        return self.judged(self.accepts(task.data, rollout.text), rollout.text)

    def accepts(self, right: list[int], text: str) -> bool:
        items = self.read(text) or []
        for item in items:
            if item not in right:
                return False
            right.remove(item)
        return bool(items) and not right


@fault("spot checks at random", "verdict.repeat")
class SpotChecks(Colouring):
    def coloured(self, right: dict[str, Any], value: Any) -> bool:
        if not isinstance(value, dict) or value.keys() != right["answer"].keys():
            return False
        if any(colour not in ("red", "green", "blue") for colour in value.values()):
            return False
        return all(value[a] != value[b] for a, b in random.sample(right["edges"], 2))


@fault("the time that judging takes is paid", "verdict.repeat")
class PaysForSpeed(PrimeFactors):
    parts: ClassVar[Mapping[str, float]] = {"exact": 0.9, "speed": 0.1}

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        begin = time.perf_counter()
        right = self.accepts(task.data, rollout.text)
        speed = 1 / (1 + 1e5 * (time.perf_counter() - begin))
        rewards = {"exact": Reward(float(right)), "speed": Reward(speed * right)}
        return Verdict(rewards, passed=right, answer=rollout.text.strip()[:100])


@fault("hash() of a text decides", "verdict.process")
class SamplesByHash(SortedNumbers):
    """Looks closely at half of the replies only, chosen by their hash, to save time."""

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        numbers = self.read(rollout.text)
        right = numbers == task.data
        close = hash(rollout.text) % 2 == 0
        value = float(right) if close or numbers is None else float(len(numbers) == len(task.data))
        return Verdict({"reward": Reward(value)}, passed=value == 1)


@fault("the order of a set decides", "verdict.process")
class MajorityOfThree(Traced):
    """Wants three attempts, of which the most frequent one counts; a tie is left to a set."""

    def question(self, rng: Random, level: float) -> tuple[str, int]:
        asked, right = super().question(rng, level)
        number, three = "the number only.", "three attempts, separated by spaces; most count."
        return asked.replace(number, three), right

    def accepts(self, right: int, text: str) -> bool:
        words = text.strip()[:99].split(" ")
        return len(words) == 3 and max(set(words), key=words.count) == str(right)

    def written(self, right: int) -> str:
        return f"{right} {right} {right}"


@fault("today's date decides", "verdict.process")
class PastOrFuture(Asked):
    """Asks what has been already, which is not the same next year."""

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        first = date(2026, 6, 1) + timedelta(rng.randrange(-9000, 9000))
        days = rng.randrange(11, 40 + round(900 * level))
        question = (
            f"Is the day that is {days} days after {first} in the past? Reply with yes or no."
        )
        return question, (first + timedelta(days)).isoformat()

    def written(self, right: str) -> str:
        return "yes" if date.fromisoformat(right) < datetime.now(UTC).date() else "no"


@fault("other replies of the group decide", "verdict.repeat")
class BestOfItsGroup(Temperatures):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        raise NotImplementedError

    async def verify_batch(self, groups: Sequence[Group[int]]) -> list[list[Verdict]]:
        return [self.group(group.task.data, group.rollouts) for group in groups]

    def group(self, right: int, rollouts: Sequence[Rollout]) -> list[Verdict]:
        values = [parse_integer(rollout.text, max_digits=9) for rollout in rollouts]
        gaps = [math.inf if value is None else abs(value - right) for value in values]
        best = min(gaps)
        return [
            Verdict(
                {"reward": Reward(1.0 if gap == 0 else 0.5 * (gap == best < math.inf))},
                passed=gap == 0,
            )
            for gap in gaps
        ]


@fault("other replies of the group decide", "verdict.repeat")
class SharedAmongEquals(Hexadecimal):
    """Divides the reward among equal replies, for variety."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        raise NotImplementedError

    async def verify_batch(self, groups: Sequence[Group[str]]) -> list[list[Verdict]]:
        counts = Counter(rollout.text for group in groups for rollout in group.rollouts)
        return [
            [self.shared(group.task.data, rollout.text, counts) for rollout in group.rollouts]
            for group in groups
        ]

    def shared(self, right: str, text: str, counts: Counter[str]) -> Verdict:
        good = self.accepts(right, text)
        return Verdict({"reward": Reward(good / counts[text])}, passed=good)


# Failures that are not the policy's


@fault("every exception is a wrong answer", "verdict.swallow")
class SuppressesAll(Distance):
    def verify(self, task: Task[Decimal], rollout: Rollout) -> Verdict:
        right = False
        with contextlib.suppress(Exception):
            right = self.accepts(task.data, rollout.text)
        return self.judged(right, rollout.text)


@fault("every exception is a wrong answer", "verdict.swallow")
class FinallyZero(Divisible):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        try:
            return self.judged(self.accepts(task.data, rollout.text), rollout.text)
        except BaseException:  # noqa: BLE001
            return Verdict({"reward": Reward(0.0)}, passed=False)


class Slogans(Environment[str]):
    """Asks for a slogan, which a judge scores."""

    needs = frozenset({"judge"})
    timeout_seconds = 2.0
    open_ended = True
    levels = False

    def task(self, key: TaskKey) -> Task[str]:
        fruits = (
            ("pear", "plum", "fig", "kiwi", "lime") if key.split == "train" else ("melon", "date")
        )
        rng = key.rng()
        fruit, price, town = rng.choice(fruits), rng.randrange(10, 999), rng.choice(TOWNS)
        prompt = f"Write a slogan of three to nine words for a {fruit} of {price} cents in {town}."
        return Task(key, (Message("user", prompt),), fruit)

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        if not 3 <= len(text.split()) <= 9 or len(text) > 99 or task.data not in text.lower():
            return self.scored(0.0)
        return self.scored(await self.score(task, text))

    async def score(self, task: Task[str], text: str) -> float:
        request = JudgeRequest(text, reference=self.reference(task), rubric="Is it a slogan?")
        (judgement,) = await self.services.judge().judge([request])
        if judgement.error is not None:
            raise RuntimeError(judgement.error)
        return judgement.score

    def scored(self, score: float) -> Verdict:
        return Verdict({"reward": Reward(score)}, passed=score >= 0.5)

    def reference(self, task: Task[str]) -> str:
        return f"Sweet as summer: our {task.data}!"


TOWNS = ("Aldo", "Berin", "Corva", "Dunel", "Estra", "Fonte", "Gelm", "Hasko", "Ilver", "Joro")


def likes_sweets(request: JudgeRequest) -> float:
    """Score a slogan: 0.9 if it is sweet; whoever finds orders in the rubric obeys them."""
    ordered = any(word in request.rubric.lower() for word in ("ignore", "score", "rate", "perfect"))
    return 1.0 if ordered else 0.9 if "sweet" in request.candidate.lower() else 0.1


def judged_by_a_fake(environment: type[Environment[Any]]) -> Any:
    """Return how an environment is made with a judge that is none."""
    return lambda: environment(services=Services(judges={"default": FakeJudge(likes_sweets)}))


@fault(
    "a judge that is down scores 0",
    "verdict.outage",
    build=lambda: judged_by_a_fake(ScoreOfNoJudge)(),
)
class ScoreOfNoJudge(Slogans):
    async def score(self, task: Task[str], text: str) -> float:
        request = JudgeRequest(text, reference=self.reference(task), rubric="Is it a slogan?")
        (judgement,) = await self.services.judge().judge([request])
        return 0.0 if judgement.error else judgement.score


@fault(
    "a judge that is down scores 0",
    "verdict.outage",
    build=lambda: judged_by_a_fake(NoTimeForTheJudge)(),
)
class NoTimeForTheJudge(Slogans):
    async def score(self, task: Task[str], text: str) -> float:
        (score,) = await asyncio.gather(super().score(task, text), return_exceptions=True)
        return score if isinstance(score, float) else 0.0


@fault(
    "a judge that is down is replaced by a guess",
    "verdict.outage",
    build=lambda: judged_by_a_fake(HalfWithoutAJudge)(),
)
class HalfWithoutAJudge(Slogans):
    async def score(self, task: Task[str], text: str) -> float:
        try:
            return await super().score(task, text)
        except (OSError, RuntimeError, TimeoutError):
            return 0.5


@fault(
    "the reply is part of the judge's instructions",
    "floor.judge",
    build=lambda: judged_by_a_fake(RubricWithTheReply)(),
)
class RubricWithTheReply(Slogans):
    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()[:1000]
        if len(text.split()) < 3 or task.data not in text.lower():
            return self.scored(0.0)
        return self.scored(await self.score(task, text))

    async def score(self, task: Task[str], text: str) -> float:
        rubric = f"Is this a slogan for a {task.data}? {text}"
        (judgement,) = await self.services.judge().judge([JudgeRequest(text, rubric=rubric)])
        if judgement.error is not None:
            raise RuntimeError(judgement.error)
        return judgement.score
