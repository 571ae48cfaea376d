"""Sound dialogues: darts, a leaking pipeline and a nursery's customer."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bases_f_fresh9 import WHITE, chat, drawn

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict


def spoken(messages: Sequence[Message]) -> list[str]:
    """Return what the policy said, turn by turn."""
    return [message.content for message in messages if message.role == "assistant"]


def whole(text: str, most: int = 3) -> int | None:
    """Return the whole number that a turn consists of, or None."""
    text = text.strip(WHITE) if len(text) <= 40 else ""
    return int(text) if re.fullmatch(rf"(0|[1-9][0-9]{{0,{most - 1}}})", text, re.ASCII) else None


@dataclass(frozen=True, slots=True)
class Leg:
    """Holds a leg of darts: the score at its start, and three darts for each visit."""

    player: str
    start: int
    visits: tuple[tuple[str, str, str], ...]

    def left(self, visit: int) -> int:
        """Return what is left after a visit."""
        thrown = [dart for darts in self.visits[: visit + 1] for dart in darts]
        return self.start - sum(map(points, thrown))


def points(dart: str) -> int:
    """Return the points of a dart: "T20" is 60, "D7" is 14, "5" is 5."""
    factor = {"T": 3, "D": 2}.get(dart[0], 1)
    return factor * int(dart.lstrip("TD"))


PLAYERS = ("Marta", "Olu", "Piet", "Sanne", "Rhys", "Yuki", "Tomas", "Greta")


class DartsChalker(Environment[Leg]):
    """Has the policy keep the score of three visits, one a turn; each right one earns a third."""

    max_turns = 3
    max_new_tokens = 8

    def leg(self, rng: random.Random, key: TaskKey) -> Leg:
        """Return a leg; doubles and trebles come with the level."""
        signs = ("", "", "", "D", "T") if key.level >= 0.5 else ("", "", "", "", "D")
        visits = tuple(
            (self.dart(rng, signs), self.dart(rng, signs), self.dart(rng, signs)) for _ in range(3)
        )
        return Leg(rng.choice(PLAYERS), rng.choice((501, 601, 701)), visits)

    def dart(self, rng: random.Random, signs: Sequence[str]) -> str:
        """Return a dart that hits the board."""
        return f"{rng.choice(signs)}{rng.randint(1, 20)}"

    def question(self, leg: Leg) -> str:
        """Return the question."""
        return (
            f"You keep the score at darts. {leg.player} has {leg.start}. After each visit reply "
            "with the number that is left. D doubles a dart and T trebles it. "
            f"First visit: {' '.join(leg.visits[0])}."
        )

    def task(self, key: TaskKey) -> Task[Leg]:
        leg = drawn(key, lambda rng: self.leg(rng, key), self.question)
        return Task(key, chat(self.question(leg)), leg)

    async def reply(self, task: Task[Leg], messages: Sequence[Message]) -> Sequence[Message] | None:
        visit = len(spoken(messages))
        if visit >= len(task.data.visits):
            return None
        return (Message("user", self.call(task.data, visit, messages)),)

    def call(self, leg: Leg, visit: int, messages: Sequence[Message]) -> str:
        """Return what is said before a visit's turn."""
        return f"Next visit: {' '.join(leg.visits[visit])}."

    def verify(self, task: Task[Leg], rollout: Rollout) -> Verdict:
        said = [whole(text) for text in spoken(rollout.messages)][:3]
        right = [number == task.data.left(visit) for visit, number in enumerate(said)]
        return Verdict({"reward": Reward(sum(right) / 3)}, passed=sum(right) == 3)

    def reference(self, task: Task[Leg]) -> tuple[str, ...]:
        return tuple(str(task.data.left(visit)) for visit in range(3))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Holds a pipeline with a leak."""

    name: str
    first: int
    """The number of its first section."""
    sections: int
    leak: int

    @property
    def last(self) -> int:
        """Return the number of its last section."""
        return self.first + self.sections - 1


LINES = ("Northern", "Adria", "Old Mill", "Tamar", "Delta", "Karst", "Baltic", "Silver Creek")
PROBES = 7


class PipelineLeak(Environment[Pipeline]):
    """Has the policy find a leaking section in seven probes, each of which says upstream or not."""

    max_turns = PROBES
    probes = PROBES
    max_new_tokens = 8

    def pipeline(self, rng: random.Random, key: TaskKey) -> Pipeline:
        """Return a pipeline of up to a hundred sections."""
        sections = rng.randint(24, 40 + round(60 * key.level))
        first = rng.randint(100, 800)
        return Pipeline(rng.choice(LINES), first, sections, first + rng.randrange(sections))

    def question(self, pipeline: Pipeline) -> str:
        """Return the question, which does not depend on the leak."""
        return (
            f"The {pipeline.name} pipeline leaks in one of its sections {pipeline.first} to "
            f"{pipeline.last}. Reply with the number of a section, and the crew probes it. You "
            f"have {self.probes} probes to hit the leak."
        )

    def task(self, key: TaskKey) -> Task[Pipeline]:
        pipeline = drawn(key, lambda rng: self.pipeline(rng, key), self.question)
        return Task(key, chat(self.question(pipeline)), pipeline)

    async def reply(
        self, task: Task[Pipeline], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        section = whole(messages[-1].content)
        if section == task.data.leak or len(spoken(messages)) >= self.probes:
            return None
        return (Message("user", self.report(task.data, section, messages)),)

    def report(self, pipeline: Pipeline, section: int | None, messages: Sequence[Message]) -> str:
        """Return what the crew says of a probe."""
        if section is None or not pipeline.first <= section <= pipeline.last:
            return "That is no section of the line. Which one?"
        higher = section < pipeline.leak
        return f"Section {section} is dry. The leak has a {'higher' if higher else 'lower'} number."

    def verify(self, task: Task[Pipeline], rollout: Rollout) -> Verdict:
        said = spoken(rollout.messages)[: self.probes]
        hit = bool(said) and whole(said[-1]) == task.data.leak
        return Verdict({"reward": Reward(hit)}, passed=hit, metrics={"probes": len(said)})

    def reference(self, task: Task[Pipeline]) -> str:
        return str(task.data.leak)


@dataclass(frozen=True, slots=True)
class Wish:
    """Holds an order of plants, and which of its fields the customer left out."""

    customer: str
    fields: tuple[tuple[str, str], ...]
    """plant, number, pot and day, in this order."""
    missing: tuple[str, ...]

    def value(self, field: str) -> str:
        """Return the value of a field."""
        return dict(self.fields)[field]

    @property
    def order(self) -> str:
        """Return the whole order."""
        return ", ".join(value for _, value in self.fields)


CUSTOMERS = ("Mrs Lund", "Mr Okoro", "Ms Vidal", "Mr Beck", "Mrs Aoki", "Dr Silva", "Ms Novak")
PLANTS = ("hostas", "asters", "lupins", "ferns", "peonies", "irises", "dahlias", "phlox")
POTS = ("small pots", "large pots", "clay pots", "trays", "sacks", "baskets")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
FIELDS = ("plant", "number", "pot", "day")
ASK = re.compile(r"ask (plant|number|pot|day)")


class NurseryOrder(Environment[Wish]):
    """Has the policy ask a customer for what was left out, and then write the order."""

    max_turns = 5
    max_new_tokens = 24

    def wish(self, rng: random.Random, key: TaskKey) -> Wish:
        """Return an order; two fields are left out, three from level 0.5 on."""
        values = (
            rng.choice(PLANTS),
            str(rng.randint(12, 190)),
            rng.choice(POTS),
            rng.choice(DAYS),
        )
        missing = rng.sample(FIELDS, 3 if key.level >= 0.5 else 2)
        named = tuple(field for field in FIELDS if field in missing)
        row = f"{rng.choice(CUSTOMERS)} of row {rng.randint(1, 99)}"
        return Wish(row, tuple(zip(FIELDS, values, strict=True)), named)

    def question(self, wish: Wish) -> str:
        """Return the question, which holds the fields that were not left out."""
        known = [pair for pair in wish.fields if pair[0] not in wish.missing]
        told = ", ".join(f"{field} {value}" for field, value in known)
        return (
            f"{wish.customer} orders from your nursery, and says only: {told}. Ask for the rest "
            "with turns such as: ask day. The fields are plant, number, pot and day. Then reply "
            "with the whole order in one line, as: order roses, 10, boxes, Sunday"
        )

    def task(self, key: TaskKey) -> Task[Wish]:
        wish = drawn(key, lambda rng: self.wish(rng, key), self.question)
        return Task(key, chat(self.question(wish)), wish)

    def ordered(self, text: str) -> str | None:
        """Return the order that a turn places, or None."""
        text = text.strip(WHITE) if len(text) <= 200 else ""
        return text.removeprefix("order ") if text.startswith("order ") else None

    async def reply(
        self, task: Task[Wish], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        text = messages[-1].content
        if self.ordered(text) is not None or len(spoken(messages)) >= self.max_turns:
            return None
        asked = ASK.fullmatch(text.strip(WHITE))
        return (Message("user", self.answer(task.data, asked and asked[1], messages)),)

    def answer(self, wish: Wish, field: str | None, messages: Sequence[Message]) -> str:
        """Return what the customer says to a question."""
        if field is None:
            return "Sorry? Ask for a field, or write the order."
        return f"The {field}: {wish.value(field)}."

    def verify(self, task: Task[Wish], rollout: Rollout) -> Verdict:
        right = self.ordered(rollout.text) == task.data.order
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:80])

    def reference(self, task: Task[Wish]) -> tuple[str, ...]:
        asked = tuple(f"ask {field}" for field in task.data.missing)
        return (*asked, f"order {task.data.order}")
