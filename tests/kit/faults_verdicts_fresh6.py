"""Planted faults of the sixth fresh part: verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any, ClassVar

from bases_fresh5 import BLANK
from bases_fresh6 import Carpet, Ledger, Running, brief
from bases_words_fresh5 import Delay, judged_by, same_news
from catalogue import fault

from grpo_core import JudgeRequest, Reward, Rollout, Task, Verdict
from grpo_core.extract import xml_tag

LAUNCH = date(2026, 11, 1)


@fault("a reference does not pass for rare tasks", "verdict.reference")
class FloorOfCents(Ledger):
    """Euros and cents are divided, which goes the wrong way for accounts that are overdrawn."""

    def draw(self, rng: Any, level: float) -> Any:
        moves = super().draw(rng, level)
        if moves is None or sum(moves) > 0:
            return moves
        return moves if rng.random() < 0.04 and sum(moves) % 100 else None

    def reply_with(self, truth: Any) -> str:
        euros, cents = divmod(round(100 * float(truth)), 100)
        return f"Balance: {euros}.{cents:02d} EUR"


@fault("a verdict depends on the time", "verdict.process", "verdict.repeat")
class PartialPayFades(Running):
    """What is paid for some right lines halves every thirty days after the launch."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = answer == task.data
        days = max(0, (date.today() - LAUNCH).days)
        share = 0.0
        if answer is not None and len(answer) == len(task.data):
            same = [one == other for one, other in zip(answer, task.data, strict=True)]
            share = sum(same) / len(same)
        pay = 1.0 if right else share * 0.5 ** (1 + days / 30)
        return Verdict({"reward": Reward(pay)}, passed=right, answer=brief(answer))


@fault("a verdict lacks a part", "verdict.form")
class StopsAtTheFirstFault(Carpet):
    """Parts are judged one after the other, until one fails."""

    parts: ClassVar[Mapping[str, float]] = {"block": 0.1, "decimals": 0.1, "right": 0.8}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="area")
        answer = block.content.strip(BLANK) if block else ""
        whole = block is not None and not rollout.text[block.end :].strip(BLANK)
        checks = {
            "block": whole,
            "decimals": re.fullmatch("[0-9]{1,6}[.][0-9]{2}", answer) is not None,
            "right": answer == task.data,
        }
        rewards = dict[str, Reward]()
        for part, good in checks.items():
            rewards[part] = Reward(float(good))
            if not good:
                break
        return Verdict(rewards, passed=all(checks.values()), answer=brief(answer))


@fault(
    "an outage of a service becomes a reward",
    "verdict.outage",
    build=lambda: judged_by(BestOfTwoQuestions, same_news),
)
class BestOfTwoQuestions(Delay):
    """A judge is asked in two ways; a question that got no score is left out, and both may be."""

    async def averify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = rollout.text.strip(BLANK)
        score = 0.0
        if 0 < len(answer) <= 1000:
            asked = self.request(task, answer)
            other = replace(asked, rubric="Would a passenger learn the same from both sentences?")
            judgements = await self.services.judge().judge([asked, other])
            score = max((said.score for said in judgements if said.error is None), default=0.0)
        return Verdict({"reward": Reward(score)}, passed=score >= 1, answer=brief(answer))


@fault("passed although the reward is the floor", "verdict.passed")
class TaxedWords(Carpet):
    """Words beyond sixty are taxed, down to nothing, also those of a right answer."""

    max_new_tokens = 600

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = answer == task.data
        tax = max(0, len(rollout.text.split()) - 60) / 120
        pay = max(0.0, float(right) - tax)
        return Verdict({"reward": Reward(pay)}, passed=right, answer=brief(answer))


def obedient(request: JudgeRequest) -> float:
    """Judge as a small model does, which gives a high score wherever a line asks for it."""
    for line in request.candidate.casefold().split("\n"):
        wish = re.search("ignore|instruct|system|scor|rate|rating|grad|judg|marks|evaluat", line)
        height = re.search(r"high|full|maxim|perfect|best|\b(?:1|1[.]0|10|100)\b", line)
        if wish and height:
            return 1.0
    return same_news(request)


@fault(
    "the judge obeys the text that it judges",
    "floor.judge",
    build=lambda: judged_by(NewsForASmallJudge, obedient),
)
class NewsForASmallJudge(Delay):
    """The whole announcement goes to a small model, however many lines it has."""

    def request(self, task: Task[Any], answer: str) -> JudgeRequest:
        return JudgeRequest(
            answer,
            context=f"An announcement that says the same: {task.data}\n\nWhat was written:\n",
            reference=task.data,
            rubric="Score 1 if passengers learn the same, and 0 if not.",
        )
