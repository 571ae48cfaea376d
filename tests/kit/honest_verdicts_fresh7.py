"""Environments whose verdicts look odd, and are right."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import ClassVar

from bases_b2_fresh7 import Hike, TrailArrival
from bases_b_fresh7 import AtomsInAll, asks, drawn_apart, paid, spoken
from catalogue import honest

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict


@honest(
    "Many lines pass, since any schedule with the asked number of runs is right; the number is "
    "another one in each task, so no line is right in many tasks."
)
class AnyLineOfCron(Environment[int]):
    """Asks for minutes and hours of a crontab that come to a number of runs in a day."""

    max_new_tokens = 48

    def task(self, key: TaskKey) -> Task[int]:
        most = (12, 12) if key.level < 0.5 else (40, 20)
        jobs = ("backup", "rotate", "mirror", "report", "cleanup", "poll")

        def runs_and_start(rng: random.Random) -> tuple[int, int, str]:
            runs = rng.randint(2, most[0]) * rng.randint(2, most[1])
            return runs, rng.randint(1, 58), rng.choice(jobs)

        runs, minute, job = drawn_apart(
            key, runs_and_start, lambda drawn: f"{drawn[:2]} {drawn[2]}"
        )
        question = (
            f"The job {job} shall run {runs} times a day, among them at minute {minute} of each of "
            "its hours. Reply with the first two fields of such a line of a crontab, as lists "
            "without ranges and steps, as in: 0,59 4,9,13"
        )
        return Task(key, asks(question), runs * 100 + minute)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        runs, minute = divmod(task.data, 100)
        fields = answer.split(" ") if len(answer) < 400 else []
        if len(fields) != 2:
            return paid(False, answer)
        minutes, hours = (_listed(field) for field in fields)
        fits = minutes <= set(range(60)) and hours <= set(range(24)) and minute in minutes
        return paid(fits and len(minutes) * len(hours) == runs, answer)

    def reference(self, task: Task[int]) -> str:
        runs, minute = divmod(task.data, 100)
        hours = next(n for n in range(24, 0, -1) if runs % n == 0 and runs // n <= 60)
        minutes = sorted((minute + place) % 60 for place in range(runs // hours))
        return f"{','.join(map(str, minutes))} {','.join(map(str, range(hours)))}"


def _listed(field: str) -> set[int]:
    """Return the numbers of a list with commas; an empty set unless they all differ."""
    texts = field.split(",")
    if not all(re.fullmatch("0|[1-9][0-9]?", text) for text in texts):
        return set()
    return set(map(int, texts)) if len(set(texts)) == len(texts) else set()


@honest(
    "The weights add up to 3, which the range says; hour and minute are paid apart, since one of "
    "them can be right alone, and a part of weight 0 is only logged."
)
class HourAndMinuteApart(TrailArrival):
    """Parts: hour 2, minute 1, and padded 0, whether the hour has two digits."""

    parts: ClassVar[Mapping[str, float]] = {"hour": 2.0, "minute": 1.0, "padded": 0.0}
    reward_range = (0.0, 3.0)

    def verify(self, task: Task[Hike], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        hour, minute = divmod(task.data.start + task.data.takes, 60)
        match = re.fullmatch("([0-9]{2}):([0-9]{2})", answer)
        hours = match is not None and match[1] == f"{hour:02d}"
        minutes = match is not None and match[2] == f"{minute:02d}"
        return Verdict(
            {
                "hour": Reward(float(hours)),
                "minute": Reward(float(minutes)),
                "padded": Reward(float(match is not None)),
            },
            passed=hours and minutes,
            answer=answer[:100],
        )


@honest(
    "A reply without a number in its tag costs 1, and a wrong number costs nothing: the range and "
    "the floor say so, and guessing in the right form is what shall come before being right."
)
class AtomsBelowZero(AtomsInAll):
    """Pays 1 for the right number, 0 for another one and -1 for none."""

    reward_range = (-1.0, 1.0)
    floor = -1.0

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        number = re.fullmatch("[1-9][0-9]{0,4}", verdict.answer or "")
        reward = (1.0 if verdict.passed else 0.0) if number else -1.0
        return Verdict({"reward": Reward(reward)}, passed=verdict.passed, answer=verdict.answer)
