"""Tasks that cannot be made, sent, told apart or solved, or that tell what they ask."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bases_a2_fresh7 import PeopleBelow, TransposedMelody
from bases_a3_fresh7 import MoreGuests
from bases_a_fresh7 import (
    DRUGS,
    EntityIdentifiers,
    Order,
    ProteinOfGene,
    SuspensionDoses,
    VoteCount,
    wanted,
)
from catalogue import fault

from grpo_core import Services, Task, TaskKey


@fault("a task cannot be made", "task.made")
class OneOfSixOrders(SuspensionDoses):
    """Six round orders are drawn, and the first that belongs to the split is asked.

    Of six orders one is usually a training order, but often none is held out, and `next` raises.
    """

    def task(self, key: TaskKey) -> Task[Order]:
        rng = key.rng()
        orders: list[Order] = []
        while len(orders) < 6:
            order = self.draw(rng)
            if order.tenths is not None:
                orders.append(order)
        order = next(order for order in orders if wanted(self.asked(order), key))
        return self.case(key, order, rng.choice(DRUGS))


@fault("a task cannot be sent to another process", "task.pickle")
class CountsUnderGlass(VoteCount):
    """All attempts share a task's data, so the author makes the counts read-only.

    A mapping proxy cannot be pickled, so no worker gets the task.
    """

    def kept(self, counts: dict[str, int]) -> Mapping[str, int]:
        return MappingProxyType(counts)


@fault("a task depends on what was asked before", "task.pure")
class NumbersOfStaff(PeopleBelow):
    """People get staff numbers instead of names, in the order in which they are first met.

    The numbers are kept, so the same key has other ones when other tasks came before.
    """

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self._numbers: dict[str, str] = {}

    def shown(self, name: str) -> str:
        return self._numbers.setdefault(name, f"E{len(self._numbers) + 101}")


@fault("held-out tasks are paraphrased training tasks", "task.split")
class GuestsInOtherWords(MoreGuests):
    """Questions are held out by their text, so that no text is in both splits.

    The same amounts are asked in four wordings, and one may be held out while the others train.
    """

    def asked(self, content: str, question: str) -> str:
        return question


@fault("seed and index are added up", "task.seed")
class StreamFromItsSeed(EntityIdentifiers):
    """All runs read one stream of identifiers, and the seed says at which number they begin.

    So the task of seed 1 and index 0 is that of seed 0 and index 1.
    """

    def generator(self, key: TaskKey) -> random.Random:
        number = key.seed + key.index
        return TaskKey(key.env, key.split, number, 0, key.level).rng("identifier")


@fault("the prompt holds the answer", "task.secret")
class RecordOfTheGene(ProteinOfGene):
    """The strand is shown as the data base has it, a record with features.

    One of the features is the translation that is asked for.
    """

    def question(self, key: TaskKey, strand: str, protein: str) -> str:
        accession = f"XM_{key.rng('accession').randrange(10**6):06}"
        record = (
            f"LOCUS       {accession}  {len(strand)} bp  mRNA\n"
            f"     CDS             1..{len(strand)}\n"
            f'                     /translation="{protein}"\n'
            f"ORIGIN\n        1 {strand.lower()}\n//"
        )
        return f"{record}\n{super().question(key, strand, protein)}"


@fault("what decides the answer is not in the prompt", "task.ambiguous")
class ThirdOrThird(TransposedMelody):
    """The prompt names intervals as musicians do in a hurry: a third, a sixth.

    Whether a minor or a major one is meant is drawn, and decides the answer.
    """

    def named(self, interval: str) -> str:
        return f"a {interval.split()[-1]}"
