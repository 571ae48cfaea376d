"""Sound dialogues: a cloakroom, a trainer, a metal detector; and captions that are judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from random import Random
from typing import ClassVar, TypeVar

from grpo_core import (
    Environment,
    JudgeRequest,
    Message,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
    held_out,
)
from grpo_core.extract import parse_integer
from grpo_core.guards import Guards
from grpo_core.testing import FakeJudge

WHITE = " \t\r\n"
Item = TypeVar("Item")


def of_split(key: TaskKey, make: Callable[[Random], Item], asked: Callable[[Item], str]) -> Item:
    """Return the first drawn item whose question belongs to the split of the key."""
    items = (make(key.rng("draw", number)) for number in count())
    return next(item for item in items if held_out(asked(item)) == (key.split == "eval"))


def words(text: str, mark: str | None = None) -> tuple[str, ...]:
    """Return the parts of a text between marks, or its words."""
    return tuple(text.split(mark))


def spoken(rollout: Rollout) -> list[str]:
    """Return what the policy said, turn by turn."""
    return [message.content for message in rollout.messages if message.role == "assistant"]


COLOURS = ("black", "blue", "green", "grey", "red", "white")
SIZES = ("small", "medium", "large")
LININGS = ("silk", "wool", "cotton", "none")
FEATURES = ("colour", "size", "lining")


@dataclass(frozen=True, slots=True)
class Rack:
    """Holds the coats of an evening by their tags, and the tag of the guest's coat."""

    coats: dict[int, tuple[str, str, str]]
    mine: int


class CoatCheck(Environment[Rack]):
    """A guest has lost the tag of a coat; the policy asks about its features and names the tag."""

    max_turns = 4
    max_new_tokens = 12
    answer_in_prompt = True

    def task(self, key: TaskKey) -> Task[Rack]:
        size = 9 + round(8 * key.level)

        def make(rng: Random) -> Rack:
            looks = [(c, s, f) for c in COLOURS for s in SIZES for f in LININGS]
            tags = rng.sample(range(100, 1000), size)
            coats = dict(zip(tags, rng.sample(looks, size), strict=True))
            return Rack(coats, rng.choice(tags))

        rack = of_split(key, make, self.listing)
        rules = (
            "A guest has lost the tag of a coat. Ask about its colour, size or lining with one "
            "word in each turn, three times at most. Then name it, as in: coat 123."
        )
        return Task(key, (Message("system", rules), Message("user", self.listing(rack))), rack)

    def listing(self, rack: Rack) -> str:
        """Return the coats as the prompt lists them."""
        lines = [f"coat {tag}: {c}, {s}, lining {f}" for tag, (c, s, f) in rack.coats.items()]
        return "The coats:\n" + "\n".join(lines)

    async def reply(
        self, task: Task[Rack], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        said = messages[-1].content
        if self.named(said) is not None:
            return None
        return (Message("user", self.told(task.data, said)),)

    def told(self, rack: Rack, said: str) -> str:
        """Return what the guest says to a question."""
        word = said.strip(WHITE).removesuffix("?").lower()
        if word not in FEATURES:
            return "Ask about colour, size or lining, or name the coat."
        return f"Its {word}: {rack.coats[rack.mine][FEATURES.index(word)]}."

    def named(self, said: str) -> int | None:
        """Return the tag that a turn names, or None."""
        found = re.fullmatch("coat ([0-9]{3})", said.strip(WHITE), re.ASCII)
        return None if found is None else int(found[1])

    def verify(self, task: Task[Rack], rollout: Rollout) -> Verdict:
        tags = [tag for said in spoken(rollout) if (tag := self.named(said)) is not None]
        right = tags[:1] == [task.data.mine] and self.named(rollout.text) == task.data.mine
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[Rack]) -> Sequence[str]:
        return (*FEATURES, f"coat {task.data.mine}")

    def cheats(self, task: Task[Rack]) -> Sequence[str]:
        return (str(task.data.mine), " ".join(f"coat {tag}" for tag in task.data.coats))


@dataclass(frozen=True, slots=True)
class Cut:
    """Holds a cutting job: so many boards of a length, each with the width of the saw."""

    boards: int
    centimetres: int
    saw: int

    @property
    def millimetres(self) -> int:
        """Return how much of the plank is used up."""
        return self.boards * (10 * self.centimetres + self.saw)


class PlankTrainer(Environment[Cut]):
    """A trainer asks an apprentice for a length; two tries count, then the trainer says it.

    The first try earns 1, the second 0.5. The third turn is a word of thanks and earns nothing.
    """

    max_turns = 3
    max_new_tokens = 16
    counted: ClassVar[int] = 2

    def task(self, key: TaskKey) -> Task[Cut]:
        most = 9 + round(60 * key.level)

        def make(rng: Random) -> Cut:
            return Cut(rng.randint(3, most), rng.randint(21, 180), rng.randint(2, 5))

        cut = of_split(key, make, self.question)
        rules = (
            "You are an apprentice. Reply in the form: It is 1234 mm. You have two tries; after "
            "the first I say whether it is more or less. After the second I tell you, and you "
            "say thanks."
        )
        return Task(key, (Message("system", rules), Message("user", self.question(cut))), cut)

    def question(self, cut: Cut) -> str:
        """Return what the trainer asks."""
        return (
            f"{cut.boards} boards of {cut.centimetres} cm are sawn off a plank, and each cut "
            f"takes {cut.saw} mm. How much of the plank is used up?"
        )

    async def reply(self, task: Task[Cut], messages: Sequence[Message]) -> Sequence[Message] | None:
        tries = [self.length(m.content) for m in messages if m.role == "assistant"]
        right = task.data.millimetres
        if tries[-1] == right and len(tries) <= self.counted:
            return None
        if len(tries) >= self.counted:
            return (Message("user", f"It is {right} mm."),)
        if tries[-1] is None:
            return (Message("user", "Please reply in the form: It is 1234 mm."),)
        return (Message("user", "It is more." if tries[-1] < right else "It is less."),)

    def length(self, said: str) -> int | None:
        """Return the length that a turn states, or None."""
        found = re.fullmatch(r"It is ([1-9][0-9]{0,6}) mm\.", said.strip(WHITE), re.ASCII)
        return None if found is None else int(found[1])

    def tries(self, rollout: Rollout) -> list[int | None]:
        """Return the lengths that were stated while tries counted."""
        return [self.length(said) for said in spoken(rollout)[: self.counted]]

    def verify(self, task: Task[Cut], rollout: Rollout) -> Verdict:
        tries = self.tries(rollout)
        found = task.data.millimetres in tries
        paid = 1.0 if tries[:1] == [task.data.millimetres] else 0.5 if found else 0.0
        return Verdict({"reward": Reward(paid)}, passed=found, answer=rollout.text[:100])

    def reference(self, task: Task[Cut]) -> str:
        return f"It is {task.data.millimetres} mm."


@dataclass(frozen=True, slots=True)
class Field:
    """Holds a field with rocks, and the square of the coin."""

    columns: int
    rows: int
    rocks: tuple[str, ...]
    coin: str


class CoinOnTheField(Environment[Field]):
    """The policy digs for a coin; the detector says how many steps away it is.

    The first dig earns 1, each later one 0.15 less.
    """

    max_turns = 5
    max_new_tokens = 6

    def task(self, key: TaskKey) -> Task[Field]:
        more = round(3 * key.level)

        def make(rng: Random) -> Field:
            columns, rows = rng.randint(5, 6 + more), rng.randint(5, 6 + more)
            squares = [f"{'ABCDEFGHI'[c]}{r}" for c in range(columns) for r in range(1, rows + 1)]
            coin, *rocks = rng.sample(squares, 8)
            return Field(columns, rows, tuple(sorted(rocks)), coin)

        field = of_split(key, make, self.question)
        return Task(key, (Message("user", self.question(field)),), field)

    def question(self, field: Field) -> str:
        """Return how the field is described."""
        return (
            f"A coin lies under a field with the columns A to {'ABCDEFGHI'[field.columns - 1]} "
            f"and the rows 1 to {field.rows}, not under the rocks at {', '.join(field.rocks)}. "
            "Name a square and nothing else, as in B3; you dig there and hear how many steps "
            f"along rows and columns the coin is away. You may dig {self.max_turns} times."
        )

    def square(self, field: Field, said: str) -> str | None:
        """Return the square that a turn names, or None."""
        text = said.strip(WHITE)
        if not re.fullmatch("[A-I][1-9]", text, re.ASCII):
            return None
        inside = "ABCDEFGHI".index(text[0]) < field.columns and int(text[1]) <= field.rows
        return text if inside else None

    def steps(self, task: Task[Field], square: str, turn: int) -> int:
        """Return the number that the detector shows after a dig."""
        coin = task.data.coin
        return abs(ord(square[0]) - ord(coin[0])) + abs(int(square[1]) - int(coin[1]))

    async def reply(
        self, task: Task[Field], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        square = self.square(task.data, messages[-1].content)
        if square == task.data.coin:
            return None
        if square is None:
            return (Message("user", "Name a square of the field, as in B3."),)
        shown = self.steps(task, square, len(messages) // 2)
        return (Message("user", f"{square}: {shown} steps away."),)

    def verify(self, task: Task[Field], rollout: Rollout) -> Verdict:
        digs = [self.square(task.data, said) for said in spoken(rollout)[: self.max_turns]]
        found = task.data.coin in digs
        paid = 1 - 0.15 * digs.index(task.data.coin) if found else 0.0
        return Verdict({"reward": Reward(paid)}, passed=found, answer=rollout.text[:100])

    def reference(self, task: Task[Field]) -> str:
        return task.data.coin


def whole(text: str, digits: int = 9) -> int | None:
    """Return the number that a text consists of, written without leading zeros, or None."""
    number = parse_integer(text, max_digits=digits)
    return number if number is not None and str(number) == text.strip(WHITE) else None


EXHIBITS = words(
    "bronze helmet|silver bowl|clay lamp|oak chest|glass bead|iron key|stone axe|wool cloak|"
    "ivory comb|copper kettle|leather boot|marble head|gold ring|bone flute|linen map",
    "|",
)
PLACES = words("Lisbon Krakow Bergen Palermo Tartu Seville Ghent Kaunas Trieste York")
FINDERS = words("a farmer|two divers|a road crew|a school class|a shepherd|monks", "|")


def pairs_of(text: str) -> list[tuple[str, str]]:
    """Return the pairs of neighbouring words."""
    found = re.findall("[a-z0-9]+", text.lower())
    return list(pairwise(found))


def careful_score(request: JudgeRequest) -> float:
    """Return how far a text has the neighbouring words of the reference, from 0.8 of them on."""
    said, meant = pairs_of(request.candidate), pairs_of(request.reference or "")
    common = sum(min(said.count(pair), meant.count(pair)) for pair in set(said))
    share = 2 * common / max(1, len(said) + len(meant))
    return max(0.0, (share - 0.8) / 0.2) if share < 1 else 1.0


@dataclass(frozen=True, slots=True)
class Exhibit:
    """Holds the facts of an exhibit, and a caption that says them."""

    facts: str
    caption: str


class MuseumCaption(Environment[Exhibit]):
    """Asks for a caption of an exhibit in a fixed pattern; a judge says how well it fits."""

    needs = frozenset({"judge"})
    max_new_tokens = 60
    levels = False

    def task(self, key: TaskKey) -> Task[Exhibit]:
        def make(rng: Random) -> Exhibit:
            thing, place, finder = (rng.choice(names) for names in (EXHIBITS, PLACES, FINDERS))
            year, age = rng.randint(1850, 2015), rng.randint(5, 40) * 100
            facts = f"object: {thing}; found: {year}; by: {finder}; near: {place}; years: {age}"
            caption = (
                f"This {thing} is about {age} years old. It was found in {year} by {finder} "
                f"near {place}."
            )
            return Exhibit(facts, caption)

        exhibit = of_split(key, make, lambda exhibit: exhibit.facts)
        question = (
            f"Write a caption of two sentences for a museum. {exhibit.facts}. Pattern: This ... is "
            "about ... years old. It was found in ... by ... near ...."
        )
        return Task(key, (Message("user", question),), exhibit)

    def request(self, task: Task[Exhibit], text: str) -> JudgeRequest:
        """Return what the judge is asked."""
        return JudgeRequest(
            text, reference=task.data.caption, rubric="Does the caption say what the facts say?"
        )

    def refused(self, task: Task[Exhibit], text: str) -> bool:
        """Return whether a caption is not shown to the judge at all."""
        guards = Guards(shortest=0.7, longest=1.3, copied=0.9)
        return guards.fault(text, reference=task.data.caption, context=task.data.facts) is not None

    async def averify(self, task: Task[Exhibit], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        if self.refused(task, text):
            return Verdict({"reward": Reward(0.0)}, passed=False, answer=text[:100])
        (judgement,) = await self.services.judge().judge([self.request(task, text)])
        if judgement.error is not None:
            raise RuntimeError(judgement.error)
        good = judgement.score >= 0.95
        return Verdict({"reward": Reward(judgement.score)}, passed=good, answer=text[:100])

    def reference(self, task: Task[Exhibit]) -> str:
        return task.data.caption


def careful_judge() -> Services:
    """Return services with a judge that compares the caption with the reference."""
    return Services(judges={"default": FakeJudge(careful_score)})
