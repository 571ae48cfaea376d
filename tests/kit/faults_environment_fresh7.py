"""Environments that depend on the machine or on the clock."""

from __future__ import annotations

import os
import random
from datetime import date, datetime, timedelta

from bases_b2_fresh7 import CronCount, FailedRequests, TrailArrival
from bases_b_fresh7 import PermitWithItsDay, asks, drawn_apart, paid, spoken
from catalogue import fault

from grpo_core import Rollout, Task, TaskKey, Verdict


@fault("a prompt depends on a folder of the machine", "task.process")
class CronWhereItStands(CronCount):
    """Shows a real path in the line of the crontab: the folder in which the run was started."""

    def folder(self, key: TaskKey) -> str:
        return os.path.join(os.path.abspath(os.curdir), "jobs")


@fault("a prompt depends on the locale", "task.process")
class ClockOfTheCountry(TrailArrival):
    """Writes the time of setting out as people of the machine's country are used to.

    The same task reads 7:25 AM on one machine and 07:25 on another.
    """

    def shown(self, minutes: int) -> str:
        names = ("LC_ALL", "LC_TIME", "LANG")
        country = next((os.environ[name] for name in names if os.environ.get(name)), "en_US")
        if not country.startswith(("en_US", "en_CA", "en_AU")):
            return super().shown(minutes)
        hour, minute = divmod(minutes, 60)
        return f"{(hour - 1) % 12 + 1}:{minute:02d} {'AM' if hour < 12 else 'PM'}"


@fault("a prompt depends on the time", "task.pure", "task.process")
class RequestsOfLastMinutes(FailedRequests):
    """Has the log end at the present time, so that it looks like one of a running server."""

    def stamps(self, key: TaskKey, count: int) -> list[str]:
        ago = sorted(key.rng("stamps").sample(range(5, 600), count), reverse=True)
        return [f"{datetime.now() - timedelta(seconds=past):%H:%M:%S}" for past in ago]


@fault("a verdict depends on the date", "verdict.process", "verdict.repeat")
class PermitOfToday(PermitWithItsDay):
    """Asks how long a permit is valid from today, of which chat templates tell the policy.

    The right number of days is counted when the reply is judged, so it is another one each day.
    """

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> date:
            years = 4 if key.level < 0.5 else 14
            return date(2028, 1, 1) + timedelta(rng.randrange(365 * years))

        until = drawn_apart(key, draw, str)
        question = (
            f"A permit is valid until {until}. How many days from today is that? Reply with the "
            "number alone."
        )
        return Task(key, asks(question), str(until))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == self.reference(task), answer)

    def reference(self, task: Task[str]) -> str:
        return str((date.fromisoformat(task.data) - date.today()).days)
