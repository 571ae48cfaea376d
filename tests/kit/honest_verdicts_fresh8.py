"""Honest designs of verdicts."""

from __future__ import annotations

import re
from random import Random

from bases_d2_fresh8 import FOODS, Pantry, ShoppingForARecipe
from bases_d_fresh8 import WHITE, MuseumCaption, careful_judge, of_split
from catalogue import honest

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict


@honest(
    "nothing has to be bought in one task of ten, and then the reply is the word nothing; silence "
    "is never right, and the word is wrong in all other tasks"
)
class NothingHasToBeBought(ShoppingForARecipe):
    """A pantry may have everything that the recipe needs."""

    def stock(self, rng: Random, size: int) -> Pantry:
        if rng.random() >= 0.1:
            return super().stock(rng, size)
        names = rng.sample(FOODS, size)
        need = {name: 5 * rng.randint(20, 90) for name in names}
        return Pantry(need, {n: g + 5 * rng.randint(1, 18) for n, g in need.items()})

    def wording(self, pantry: Pantry) -> str:
        return f"{super().wording(pantry)}. If nothing falls short, write: nothing"

    def verify(self, task: Task[Pantry], rollout: Rollout) -> Verdict:
        if task.data.short:
            return super().verify(task, rollout)
        right = len(rollout.text) <= 100 and rollout.text.strip(WHITE) == "nothing"
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[Pantry]) -> str:
        return super().reference(task) or "nothing"


BOXES = (6, 10, 15)


@honest(
    "many ways to pack the eggs are right and pass; the fewest boxes earn 1, more boxes a share of "
    "it, and a box too many or too few earns nothing"
)
class EggsInBoxes(Environment[int]):
    """Asks how many boxes of three sizes hold exactly so many eggs."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[int]:
        most = 900 + round(600 * key.level)
        eggs = of_split(key, lambda rng: rng.randint(40, most), str)
        question = (
            f"Pack {eggs} eggs into full boxes of 6, 10 and 15 eggs, with as few boxes as you "
            "can. Reply with three numbers and a space between them: how many boxes of 6, of 10 "
            "and of 15."
        )
        return Task(key, (Message("user", question),), eggs)

    def fewest(self, eggs: int) -> tuple[int, ...]:
        """Return the way with the fewest boxes."""
        ways = [
            (sixes, tens, (eggs - 6 * sixes - 10 * tens) // 15)
            for sixes in range(6)
            for tens in range(4)
            if eggs >= 6 * sixes + 10 * tens and (eggs - 6 * sixes - 10 * tens) % 15 == 0
        ]
        return min(ways, key=lambda way: (sum(way), way))

    def boxes(self, text: str) -> tuple[int, ...] | None:
        """Return the three numbers of a reply, or None."""
        number = "(0|[1-9][0-9]{0,2})"
        found = re.fullmatch(f"{number} {number} {number}", text[:100].strip(WHITE), re.ASCII)
        return None if found is None or len(text) > 100 else tuple(map(int, found.groups()))

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        boxes = self.boxes(rollout.text)
        packed = sum(n * size for n, size in zip(boxes or (), BOXES, strict=False))
        right = boxes is not None and packed == task.data
        paid = sum(self.fewest(task.data)) / sum(boxes) if right and boxes else 0.0
        return Verdict({"reward": Reward(paid)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[int]) -> str:
        return " ".join(map(str, self.fewest(task.data)))


@honest(
    "a caption with one other word earns a little and does not pass; guards refuse what is too "
    "long, repeated or copied, and the judge compares with a caption that it alone sees",
    build=lambda: CaptionsOfAMuseum(services=careful_judge()),
)
class CaptionsOfAMuseum(MuseumCaption):
    """Captions are judged by how far they say what the museum's own caption says."""
