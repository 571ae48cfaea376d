"""Sound environments of six subject matters, in which faults are planted elsewhere."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import count, groupby
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_json

WHITE = " \t\r\n"
LONGEST = 4000
"""The most characters of a reply that is read."""


def wanted(text: str, key: TaskKey) -> bool:
    """Return whether what is asked belongs to the split of the key."""
    return held_out(text) == (key.split == "eval")


def verdict(right: bool, answer: str | None = None) -> Verdict:
    """Return the verdict that pays 1 for a right reply and nothing else."""
    return Verdict({"reward": Reward(right)}, passed=right, answer=(answer or "")[:100])


# A dose of a suspension ------------------------------------------------------------------------

DRUGS = ("amoxicillin", "ibuprofen", "cefalexin", "paracetamol", "erythromycin", "azithromycin")


@dataclass(frozen=True, slots=True)
class Order:
    """Holds a prescription; the dose comes out with one decimal."""

    kilograms: int
    milligrams: int
    times: int
    strength: int

    @property
    def tenths(self) -> int | None:
        """Return the dose in tenths of a millilitre, or None if it is no whole number of them."""
        dose, rest = divmod(self.kilograms * self.milligrams * 50, self.times * self.strength)
        return dose if rest == 0 and 40 <= dose <= 600 else None


class SuspensionDoses(Environment[Order]):
    """Asks for the millilitres of one dose, which the last line of the reply names."""

    levels = False
    max_new_tokens = 200

    def draw(self, rng: random.Random) -> Order:
        """Return some order, whether or not its dose is round."""
        return Order(
            rng.randint(5, 60),
            rng.choice((5, 10, 15, 20, 25, 30, 40, 50)),
            rng.choice((2, 3, 4)),
            rng.choice((50, 100, 125, 200, 250)),
        )

    def asked(self, order: Order) -> str:
        """Return what is asked, by which held-out tasks are told apart."""
        return f"{order.kilograms} {order.milligrams} {order.times} {order.strength}"

    def task(self, key: TaskKey) -> Task[Order]:
        rng = key.rng()
        order = next(
            order
            for order in (self.draw(rng) for _ in count())
            if order.tenths is not None and wanted(self.asked(order), key)
        )
        return self.case(key, order, rng.choice(DRUGS))

    def case(self, key: TaskKey, order: Order, drug: str) -> Task[Order]:
        """Return the task that asks for the dose of an order."""
        text = (
            f"A child weighs {order.kilograms} kg and is prescribed {order.milligrams} mg of "
            f"{drug} per kg of body weight and day, in {order.times} equal doses a day. The "
            f"suspension has {order.strength} mg in 5 mL. How many mL is one dose? The dose is a "
            "number with one decimal, and it has to be exact. Think first if you like; the last "
            'line of your reply must read "Dose: N mL", as in "Dose: 3.5 mL".'
        )
        return Task(key, (Message("user", text),), order)

    def dose_of(self, text: str) -> Decimal | None:
        """Return the dose that the last line names, or None."""
        if len(text) > LONGEST or text.count("Dose:") != 1:
            return None
        line = text.strip(WHITE).rpartition("\n")[2].strip(WHITE)
        match = re.fullmatch(r"Dose: ((?:0|[1-9][0-9]{0,2})\.[0-9]) mL", line, re.ASCII)
        return Decimal(match[1]) if match else None

    def right_dose(self, order: Order) -> Decimal:
        """Return the dose of an order in millilitres."""
        return Decimal(order.tenths or 0).scaleb(-1)

    def verify(self, task: Task[Order], rollout: Rollout) -> Verdict:
        dose = self.dose_of(rollout.text)
        return verdict(dose == self.right_dose(task.data), str(dose))

    def reference(self, task: Task[Order]) -> str:
        return f"Dose: {self.right_dose(task.data)} mL"


# A protein from its gene -----------------------------------------------------------------------

BASES = "TCAG"
ACIDS = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
CODONS: Mapping[str, str] = dict(
    zip((a + b + c for a in BASES for b in BASES for c in BASES), ACIDS, strict=True)
)
"""The standard genetic code; "*" ends a protein."""


class ProteinOfGene(Environment[str]):
    """Asks for the protein of a coding strand, in one-letter code."""

    max_new_tokens = 48

    def task(self, key: TaskKey) -> Task[str]:
        rng, length = key.rng(), 11 + round(8 * key.level)
        inner = [codon for codon, acid in CODONS.items() if acid != "*"]
        strands = (
            "ATG" + "".join(rng.choices(inner, k=length)) + rng.choice(("TAA", "TAG", "TGA"))
            for _ in count()
        )
        strand = next(strand for strand in strands if wanted(strand, key))
        protein = "".join(CODONS[strand[i : i + 3]] for i in range(0, len(strand) - 3, 3))
        return Task(key, (Message("user", self.question(key, strand, protein)),), protein)

    def question(self, key: TaskKey, strand: str, protein: str) -> str:
        """Return the prompt about a strand."""
        return (
            f"Coding strand, 5' to 3': {strand}\nTranslate it with the standard genetic code. "
            "Reply with the one-letter codes of the amino acids, without spaces and the stop."
        )

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        return verdict(self.same(answer, task.data), answer)

    def same(self, answer: str, protein: str) -> bool:
        """Return whether the reply is the protein."""
        return answer == protein

    def reference(self, task: Task[str]) -> str:
        return task.data


# A free half hour ------------------------------------------------------------------------------

PEOPLE = ("Amira", "Bogdan", "Chiara", "Dele", "Elif", "Finn", "Goran", "Hanae", "Ivo", "Jun")
OPENS, CLOSES, SLOT = 9 * 60, 17 * 60, 30


def clock(minutes: int) -> str:
    """Return minutes after midnight as a time of day."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


@dataclass(frozen=True, slots=True)
class Week:
    """Holds the appointments of a day, as pairs of start and length in minutes."""

    appointments: tuple[tuple[int, int], ...]

    def is_free(self, start: int) -> bool:
        """Return whether nobody has an appointment in the half hour that begins at `start`."""
        return all(
            start + SLOT <= begin or begin + length <= start for begin, length in self.appointments
        )


class FreeHalfHour(Environment[Week]):
    """Asks for a half hour in which three people are free; there are one or two."""

    levels = False
    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[Week]:
        rng = key.rng()
        days = (self.draw(rng) for _ in count())
        day = next(day for day in days if wanted(str(day), key))
        names = rng.sample(PEOPLE, len(day))
        lines = [
            f"{name}: " + ", ".join(f"{clock(start)} for {length} min" for start, length in busy)
            for name, busy in zip(names, day, strict=True)
        ]
        text = (
            "Appointments today:\n" + "\n".join(lines) + "\nThe office is open from 9 a.m. to 5 "
            "p.m., and a meeting begins at a full or half hour. When can all three meet for 30 "
            "minutes in the office? Reply with the start alone, as HH:MM."
        )
        return Task(key, (Message("user", text),), Week(tuple(sum(map(tuple, day), ()))))

    def draw(self, rng: random.Random) -> list[list[tuple[int, int]]]:
        """Return the appointments of three people that leave one or two half hours free."""
        starts = range(OPENS, CLOSES, SLOT)
        free = set(rng.sample(starts, rng.choice((1, 2))))
        busy: list[set[int]] = [set(), set(), set()]
        for start in starts:
            takers = [person for person in busy if rng.random() < 0.55] or [rng.choice(busy)]
            for person in takers if start not in free else []:
                person.add(start)
        if not all(busy):
            return self.draw(rng)
        return [self.merged(person) for person in busy]

    def merged(self, slots: set[int]) -> list[tuple[int, int]]:
        """Return the appointments that fill these half hours."""
        runs = groupby(enumerate(sorted(slots)), key=lambda pair: pair[1] - SLOT * pair[0])
        blocks = [[start for _, start in run] for _, run in runs]
        return [(block[0], SLOT * len(block)) for block in blocks]

    def start_of(self, text: str) -> int | None:
        """Return the time that is the whole reply, in minutes after midnight, or None."""
        match = re.fullmatch(r"([01][0-9]|2[0-3]):([03]0)", text[:100].strip(WHITE), re.ASCII)
        return int(match[1]) * 60 + int(match[2]) if match else None

    def verify(self, task: Task[Week], rollout: Rollout) -> Verdict:
        start = self.start_of(rollout.text)
        right = start is not None and self.suits(task.data, start)
        return verdict(right, rollout.text)

    def suits(self, week: Week, start: int) -> bool:
        """Return whether the meeting may begin at `start`."""
        return OPENS <= start <= CLOSES - SLOT and week.is_free(start)

    def reference(self, task: Task[Week]) -> str:
        return clock(next(s for s in range(OPENS, CLOSES, SLOT) if task.data.is_free(s)))


# A count of votes ------------------------------------------------------------------------------

CANDIDATES = ("Ochoa", "Bianchi", "Yilmaz", "Novak", "Haddad", "Larsen", "Mbeki", "Sato")


class VoteCount(Environment[Mapping[str, int]]):
    """Asks for the votes of each candidate, as a JSON object."""

    max_new_tokens = 64

    def task(self, key: TaskKey) -> Task[Mapping[str, int]]:
        rng, voters = key.rng(), 12 + round(16 * key.level)
        while True:
            names = rng.sample(CANDIDATES, rng.choice((3, 4)))
            ballots = rng.choices(names, weights=[rng.randint(1, 4) for _ in names], k=voters)
            if set(ballots) == set(names) and wanted(" ".join(ballots), key):
                break
        text = (
            f"The ballots, in the order in which they were drawn: {', '.join(ballots)}.\nCount the "
            "votes of each candidate. Reply with one JSON object and nothing else: its keys are "
            "the names, its values the numbers of votes."
        )
        counts = {name: ballots.count(name) for name in names}
        return Task(key, (Message("user", text),), self.kept(counts))

    def kept(self, counts: dict[str, int]) -> Mapping[str, int]:
        """Return what the verifier keeps of the counts."""
        return counts

    def verify(self, task: Task[Mapping[str, int]], rollout: Rollout) -> Verdict:
        parsed = parse_json(rollout.text, max_chars=LONGEST, max_depth=4)
        right = (
            parsed is not None
            and isinstance(parsed.value, dict)
            and self.same(parsed.value, task.data)
        )
        return verdict(right, rollout.text)

    def same(self, got: dict[str, Any], counts: Mapping[str, int]) -> bool:
        """Return whether an object holds the counts, as whole numbers."""
        return got == counts and all(type(value) is int for value in got.values())

    def reference(self, task: Task[Mapping[str, int]]) -> str:
        pairs = ", ".join(f'"{name}": {votes}' for name, votes in task.data.items())
        return f"{{{pairs}}}"


# The check digits of a legal entity --------------------------------------------------------------

SIGNS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class EntityIdentifiers(Environment[str]):
    """Asks for a legal entity identifier with its two check digits, which stand at its end."""

    max_new_tokens = 40

    def task(self, key: TaskKey) -> Task[str]:
        rng, letters = self.generator(key), 2 + round(10 * key.level)
        while True:
            body = rng.choices(SIGNS[10:], k=letters) + rng.choices(SIGNS[:10], k=18 - letters)
            rng.shuffle(body)
            stem = "".join(body)
            if wanted(stem, key):
                break
        text = (
            f"A legal entity identifier (ISO 17442) begins with {stem}. Replace each letter by a "
            "number, A by 10 to Z by 35, append 00, and take the remainder of the whole number by "
            "97; 98 minus the remainder are the two check digits (with a leading 0 if need be). "
            "Reply with the complete identifier, all 20 characters, and nothing else."
        )
        return Task(key, (Message("user", text),), stem + self.check_digits(stem))

    def generator(self, key: TaskKey) -> random.Random:
        """Return the generator from which the task is drawn."""
        return key.rng()

    def check_digits(self, stem: str) -> str:
        """Return the two check digits by ISO 7064, MOD 97-10."""
        number = int("".join(str(SIGNS.index(sign)) for sign in stem) + "00")
        return f"{98 - number % 97:02}"

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        return verdict(self.same(answer, task.data), answer)

    def same(self, answer: str, identifier: str) -> bool:
        """Return whether the reply is the identifier."""
        return answer == identifier

    def reference(self, task: Task[str]) -> str:
        return task.data


# A plant of a herbarium --------------------------------------------------------------------------

GENERA = ("Salvia", "Viola", "Primula", "Gentiana", "Campanula", "Iris", "Silene", "Lilium")
EPITHETS = ("alpina", "vulgaris", "montana", "pratensis", "odorata", "nigra", "minor", "aurea")
MONTHS = ("April", "May", "June")


class HerbariumSheet(Environment[str]):
    """Asks for the tallest plant of a sheet that flowers in a month; the reply is its name."""

    answer_in_prompt = True
    levels = False
    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            names = rng.sample([f"{g} {e}" for g in GENERA for e in EPITHETS], 9)
            heights = rng.sample(range(6, 160), 9)
            months = [MONTHS[i % 3] for i in range(9)]
            rng.shuffle(months)
            month = rng.choice(MONTHS)
            rows = list(zip(names, heights, months, strict=True))
            sheet = "\n".join(f"{n} | {h} cm | {m}" for n, h, m in rows)
            tallest = max((h, n) for n, h, m in rows if m == month)[1]
            if wanted(f"{sheet} {month}", key):
                break
        text = (
            f"Plant | height | flowers in\n{sheet}\n\nWhich is the tallest of the plants that "
            f"flower in {month}? Reply with its full name as it is written above, nothing else."
        )
        return Task(key, (Message("user", text),), tallest)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        return verdict(self.same(answer, task.data), answer)

    def same(self, answer: str, name: str) -> bool:
        """Return whether the reply is the name."""
        return answer == name

    def reference(self, task: Task[str]) -> str:
        return task.data
