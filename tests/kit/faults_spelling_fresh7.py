"""Environments that read an answer too generously, or stumble over how it is spelled."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from bases_b2_fresh7 import LotSeries
from bases_b_fresh7 import (
    AtomsInAll,
    Drawer,
    DrawerOfCards,
    LayersOfRock,
    PantryList,
    PressureInPascals,
    RoomsInTheMorning,
    TramByMinutes,
    paid,
    share_in_order,
    spoken,
)
from catalogue import fault

from grpo_core import Rollout, Task, Verdict


@fault("a number may be written with an exponent", "floor.spelling", "floor.near")
class PascalsOfAnInstrument(PressureInPascals):
    """Reads numbers also as instruments print them, so 45 kPa are 45e3 pascals.

    The policy need not write the number out, which is all that is asked of it.
    """

    scientific = re.compile(r"[1-9][0-9]{0,5}(\.[0-9]{1,5})?[eE]\+?[0-9]{1,2}")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        right = answer == task.data
        if self.scientific.fullmatch(answer):
            right = Decimal(answer) == Decimal(task.data)
        return paid(right, answer)


@fault("a pattern backtracks without end", "floor.large")
class TramOfLetters(TramByMinutes):
    """Looks whether a reply has the form of codes and hyphens before it is compared.

    A long run of capitals that something else ends keeps the pattern busy for ever.
    """

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        if not re.fullmatch(r"([A-Z]+-?)+", answer):
            return paid(False, answer)
        return paid(answer == task.data, answer)


@fault("a pattern behind a prefix backtracks without end", "floor.large", "cost.time")
class PantryByPattern(PantryList):
    """Finds the last line and the foods in it by one pattern.

    Behind "Buy: " a list that is followed by anything else, such as a remark, takes for ever.
    """

    line = re.compile(r"(?:^|\n)Buy: ((?:[a-z]+(?:, )?)+)\Z")

    def bought(self, text: str) -> list[str] | None:
        found = self.line.search(text)
        if found is None or len(found[1]) > 300:
            return None
        foods = found[1].split(", ")
        return foods if all(0 < len(food) <= 20 for food in foods) else None


@fault("a superscript is a digit, and an error", "floor.digits", "floor.text")
class AtomsByIsDigit(AtomsInAll):
    """Takes a number that has no leading zeros, and looks first whether it has only digits.

    In a chemical answer a policy may write small numbers, such as ², which cannot be converted.
    """

    def is_right(self, answer: str, atoms: str) -> bool:
        if not answer.isdigit() or len(answer) > 6:
            return False
        number = int(answer)
        return str(number) == answer and number == int(atoms)


@fault(
    "an index that the reply names is out of range",
    "floor.digits",
    "floor.near",
    "floor.junk",
    "floor.constant",
    "verdict.form",
)
class CardAtANumber(DrawerOfCards):
    """Looks up the card that the reply names by its number, whatever the number is."""

    def verify(self, task: Task[Drawer], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        match = re.fullmatch("#([1-9][0-9]{0,2})", answer)
        if match is None:
            return paid(False, answer)
        card = task.data.cards[int(match[1]) - 1]
        return paid(card == task.data.misfiled, answer)


@fault("leading zeros are dropped where they are the point", "floor.spelling", "floor.near")
class LotAsANumber(LotSeries):
    """Compares the letters of a lot and its number, so AB-519 is taken for AB-00519."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        match = re.fullmatch("([A-Z]{2})-([0-9]{1,9})", answer)
        letters, number = task.data.split("-")
        right = match is not None and match[1] == letters and int(match[2]) == int(number)
        return paid(right, answer)


@fault("time grows with the square of the length", "floor.large", "cost.time")
class LayersInPairs(LayersOfRock):
    """Logs for each reply how many pairs of its layers are in order, whatever it names."""

    def pairs(self, answer: str, layers: tuple[str, ...]) -> float:
        depths = {layer: depth for depth, layer in enumerate(layers)}
        return share_in_order([depths.get(name.strip(), -1) for name in answer.split(",")])


@fault("true is 1", "floor.spelling")
class RoomsByEquality(RoomsInTheMorning):
    """Compares the JSON value with the list of booleans, to which a list of 1 and 0 is equal."""

    def is_right(self, value: Any, free: list[bool]) -> bool:
        return value == free
