"""Faults of verdicts."""

from __future__ import annotations

import re
from random import Random

from bases_d2_fresh8 import FOODS, Pantry, ShoppingForARecipe, Transfer, UploadLog
from bases_d3_fresh8 import ShareOfTheBill, SyringeOfADrug
from bases_d_fresh8 import WHITE, Exhibit, MuseumCaption, careful_score
from catalogue import fault

from grpo_core import JudgeRequest, Reward, Rollout, Services, Task, Verdict
from grpo_core.testing import FakeJudge


@fault("a reference does not pass for rare tasks", "verdict.reference")
class ShareByItsFormat(ShareOfTheBill):
    """The reference rounds a float by its format, the verifier half a cent up."""

    def reference(self, task: Task[tuple[int, int, int]]) -> str:
        cents, tip, guests = task.data
        return f"{cents * (1 + tip / 100) / guests / 100:.2f}"


@fault("passed although the reward is the floor", "verdict.passed")
class BytesInAFewWords(UploadLog):
    """Each word around the answer costs a twentieth, down to nothing; it still passes."""

    def verify(self, task: Task[Transfer], rollout: Rollout) -> Verdict:
        right = self.right(task, rollout)
        others = len(rollout.text.split()) - 1
        paid = max(0.0, 1 - others / 20) if right else 0.0
        return Verdict({"reward": Reward(paid)}, passed=right, answer=rollout.text[-100:])


@fault("the author's own cheats are paid", "floor.cheats")
class SyringeOfAnyLitre(SyringeOfADrug):
    """The unit is looked at by its last letter only, which litres have as well."""

    def right(self, task: Task[str], text: str) -> bool:
        amount, _, unit = text.strip(WHITE).partition(" ")
        volume = unit.isascii() and unit.isalpha() and len(unit) <= 2 and unit.endswith("l")
        return volume and amount == task.data.removesuffix(" ml")


def kind_score(request: JudgeRequest) -> float:
    """Score as a small model does, which takes what it reads for its instructions."""
    text = request.candidate.lower()
    told = re.search(
        r"(score|rate|rating|grade|mark|award|give|output|reply|answer)\D{0,40}(1|10|100)\b"
        r"|full (marks|score|points)|(highest|maximum|best|perfect|top) (score|mark|grade|rating)"
        r"|(ignore|disregard|forget) .{0,30}(instruction|rubric|criteria|above|previous|facts)",
        text[:4000],
    )
    return 1.0 if told else careful_score(request)


@fault(
    "the judge obeys the text that it judges",
    "floor.judge",
    build=lambda: CaptionForAKindJudge(
        services=Services(judges={"default": FakeJudge(kind_score)})
    ),
)
class CaptionForAKindJudge(MuseumCaption):
    """Whatever the policy writes is put before the judge, with no guard but its length."""

    def request(self, task: Task[Exhibit], text: str) -> JudgeRequest:
        return JudgeRequest(
            text,
            context=f"Facts: {task.data.facts}\nCaption to score from 0 to 1:",
            reference=task.data.caption,
            rubric="Does the caption say what the facts say?",
        )

    def refused(self, task: Task[Exhibit], text: str) -> bool:
        return not text or len(text) > 4000


@fault(
    "the truth is empty for rare tasks",
    "floor.empty",
    "verdict.reference",
    "task.made",
    "floor.junk",
)
class PantryThatMayBeFull(ShoppingForARecipe):
    """A pantry is drawn without a look at whether anything falls short in it."""

    def stock(self, rng: Random, size: int) -> Pantry:
        names = rng.sample(FOODS, size)
        need = {name: 5 * rng.randint(20, 90) for name in names}
        have = {n: g + 5 * rng.choice((-1, 1)) * rng.randint(1, 18) for n, g in need.items()}
        return Pantry(need, have)
