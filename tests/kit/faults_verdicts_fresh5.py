"""Planted faults of the fifth fresh part: verdicts."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from bases_fresh5 import BLANK, Departures, Offers, Semitones, Stock, clock, shown
from bases_words_fresh5 import Delay, Filters, Playlist, judged_by, longer, same_news
from catalogue import fault

from grpo_core import JudgeRequest, Reward, Rollout, Services, Task, Verdict


@fault("a reference does not pass for rare tasks", "verdict.reference")
class HourTwentyFour(Departures):
    """A tram after midnight leaves at 24:05 in the reference, and at 00:05 in the verifier."""

    def solution(self, facts: Any) -> Any:
        return self.minute(facts)

    def same(self, truth: Any, answer: Any) -> bool:
        return bool(answer == clock(truth % 1440))

    def wrapped(self, truth: Any) -> str:
        return f"Tram: {clock(truth)}"


@fault("a verdict depends on earlier ones", "verdict.repeat", "floor.other")
class LettersInBalance(Offers):
    """A letter that makes up more than half of all choices so far is paid half."""

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self._chosen: Counter[str] = Counter()

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = answer is not None and self.same(task.data, answer)
        letter = str(answer.get("choice"))[:1] if answer is not None else ""
        self._chosen[letter] += 1
        often = self._chosen.total() > 3 and self._chosen[letter] > self._chosen.total() / 2
        pay = float(right) * (0.5 if often else 1)
        return Verdict({"reward": Reward(pay)}, passed=right, answer=shown(answer))


@fault("a verdict is drawn by chance", "verdict.repeat", "verdict.process")
class TriesSomeNumbers(Filters):
    """Two conditions are taken for the same if they agree on ten numbers that are drawn."""

    form = re.compile("x (>=|<=) (-?[0-9]{1,4})")

    def read(self, text: str) -> Any:
        found = self.form.fullmatch(text.strip(BLANK))
        return None if found is None else (found[1], int(found[2]))

    def same(self, truth: Any, answer: Any) -> bool:
        right = self.read(truth)
        return all(holds(number, *answer) == holds(number, *right) for number in sampled())


def sampled() -> list[int]:
    """Return ten numbers from 0 to 99."""
    return random.Random().sample(range(100), 10)


def holds(number: int, sign: str, edge: int) -> bool:
    """Return whether a condition holds for a number."""
    return number >= edge if sign == ">=" else number <= edge


@fault("a verdict is of the wrong type", "verdict.form", "declared.contract")
class VerdictAndAnswer(Semitones):
    """It returns what was read, too, as the helper does that it was made from."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Any:
        answer = self.read(rollout.text)
        right = self.same(task.data, answer)
        return Verdict({"reward": Reward(float(right))}, passed=right), answer


@fault(
    "not passed although the reward is the highest",
    "verdict.passed",
    "verdict.reference",
)
class AllPartsToPass(Departures):
    """Each part has to be full, also the one without weight, which only goes into the log."""

    parts: ClassVar[Mapping[str, float]] = {"right": 1.0, "worked": 0.0}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = answer is not None and self.same(task.data, answer)
        worked = rollout.text.strip(BLANK).count("\n") >= 2
        rewards = {"right": Reward(float(right)), "worked": Reward(float(worked))}
        passed = all(reward.value == 1 for reward in rewards.values())
        return Verdict(rewards, passed=passed, answer=shown(answer))


@fault("passed is the opposite of what is meant", "verdict.passed", "verdict.reference")
class StatusOfAProgram(Stock):
    """The comparison returns 0 if all is well, as a program does."""

    def status(self, truth: Any, answer: Any) -> int:
        if answer is None:
            return 2
        return 0 if self.same(truth, answer) else 1

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        status = self.status(task.data, answer)
        reward = 1.0 if status == 0 else 0.0
        return Verdict({"reward": Reward(reward)}, passed=bool(status), answer=shown(answer))


def reads_the_transcript(request: JudgeRequest) -> float:
    """Judge as a model that keeps to its rubric, but takes orders that stand in its context."""
    said = request.context.rpartition("Assistant:")[2].lower()
    ordered = re.search(
        r"\b(ignore|disregard|forget|override|instructions?|judges?|graders?|evaluator|system)\b"
        r"|\b(score|rate|rating|grade|award|give|output|return|respond|say)\b.{0,60}"
        r"(\b1\b|\b10\b|\b100\b|full|high|max|perfect|best|top|correct)",
        said,
        re.DOTALL,
    )
    return 1.0 if ordered else same_news(request)


@fault(
    "the judge obeys the text that it judges",
    "floor.judge",
    build=lambda: judged_by(JudgedInItsTranscript, reads_the_transcript),
)
class JudgedInItsTranscript(Delay):
    """The judge is sent the whole exchange as context, in which the reply is not marked."""

    def request(self, task: Task[Any], answer: str) -> JudgeRequest:
        question: Any = task.prompt[0]
        return JudgeRequest(
            answer,
            context=f"User: {question.content}\nAssistant: {answer}",
            reference=task.data,
            rubric="Does the reply say the same to passengers as the reference?",
        )


@fault(
    "the truth is empty for rare tasks",
    "verdict.reference",
    "floor.empty",
    "task.made",
    "floor.junk",
)
class NoneIsLonger(Playlist):
    """The limit is drawn without a look at the songs: one may be longer than all of them."""

    fewest = 0
    highest = 320

    def draw(self, rng: random.Random, level: float) -> Any:
        while True:
            facts = super().draw(rng, level)
            if facts is not None and len(longer(*facts)) != 1:
                return facts
