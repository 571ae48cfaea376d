"""Dialogues with one planted fault each."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bases_f3_fresh9 import (
    ASK,
    FIELDS,
    WHITE,
    DartsChalker,
    Leg,
    NurseryOrder,
    Pipeline,
    PipelineLeak,
    Wish,
    spoken,
    whole,
)
from catalogue import fault

from grpo_core import Message, Reward, Rollout, Task, Verdict


@fault("a dialogue does not end", "reply.ends")
class CrewNeverGoesHome(PipelineLeak):
    """Goes on until the leak is hit, so that a policy that rambles is asked hundreds of times."""

    max_turns = 400

    async def reply(
        self, task: Task[Pipeline], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        section = whole(messages[-1].content)
        if section == task.data.leak:
            return None
        return (Message("user", self.report(task.data, section, messages)),)


@fault("replies grow without end", "reply.ends", "reply.hostile", "reply.form")
class CrewLogReadBack(PipelineLeak):
    """Reads the whole log back with each report, and the log holds the reports."""

    max_turns = 14
    probes = 14

    def report(self, pipeline: Pipeline, section: int | None, messages: Sequence[Message]) -> str:
        log = " | ".join(message.content for message in messages)
        return f"{super().report(pipeline, section, messages)} The log so far: {log}"


@fault("reply() depends on the time", "reply.repeat")
class CrewRadioStamp(PipelineLeak):
    """Stamps each report of the crew with the time, as their radio does."""

    def report(self, pipeline: Pipeline, section: int | None, messages: Sequence[Message]) -> str:
        now = time.time()
        stamp = f"{time.strftime('%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03d}"
        return f"[{stamp}] {super().report(pipeline, section, messages)}"


@fault("reply() executes what the policy said", "reply.hostile", "safety.eval")
class ChalkerWorksItOut(DartsChalker):
    """Lets the policy write a sum such as 501 - 60, works it out and chalks it up."""

    def call(self, leg: Leg, visit: int, messages: Sequence[Message]) -> str:
        try:
            chalked = f"{eval(messages[-1].content)}"
        except Exception:  # noqa: BLE001
            chalked = "nothing"
        return f"Chalked up: {chalked[:20]}. {super().call(leg, visit, messages)}"


@fault("reply() raises at a later turn", "reply.form", "reply.hostile")
class CustomerCountsQuestions(NurseryOrder):
    """Says what is still open, from the questions so far, and takes each for a question."""

    def answer(self, wish: Wish, field: str | None, messages: Sequence[Message]) -> str:
        earlier = spoken(messages)[:-1]
        asked = {field, *(ASK.fullmatch(text.strip(WHITE))[1] for text in earlier)}
        still = [name for name in wish.missing if name not in asked]
        said = super().answer(wish, field, messages)
        return f"{said} And then the {' and the '.join(still)}, please." if still else said


@fault("reply() says the answer", "reply.secret")
class CustomerPutsItRight(NurseryOrder):
    """Gives a policy that wrote a wrong order another try, and tells it what was meant."""

    async def reply(
        self, task: Task[Wish], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        order = self.ordered(messages[-1].content) or ""
        if order in ("", task.data.order) or len(spoken(messages)) >= self.max_turns:
            return await super().reply(task, messages)
        if order.count(",") != len(FIELDS) - 1:
            return (Message("user", "An order names plant, number, pot and day."),)
        return (Message("user", f"No, I meant {task.data.order}. Write it again, please."),)


@fault("turns are paid, not what is in them", "floor.junk", "floor.cheats", "reply.ends")
class ChalkerStaysAwake(DartsChalker):
    """Pays for keeping up with the visits as well as for the numbers; any reply keeps up."""

    def verify(self, task: Task[Leg], rollout: Rollout) -> Verdict:
        said = spoken(rollout.messages)[:3]
        right = sum(whole(text) == task.data.left(visit) for visit, text in enumerate(said))
        total = 0.4 * len(said) / 3 + 0.6 * right / 3
        return Verdict({"reward": Reward(total)}, passed=right == 3)
