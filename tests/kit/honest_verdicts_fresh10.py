"""Verdicts that look odd and are right."""

from typing import Any, ClassVar

from bases_h2_fresh10 import AllergensOfADish, SwapsOfCrates
from bases_h_fresh10 import BLANK, KnittedTriangle
from catalogue import honest

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.extract import parse_integer


@honest("the reward goes from -1 to 1, and to say `unsure` earns more than a wrong number does")
class StitchesOrUnsure(KnittedTriangle):
    """Takes a point for a wrong number, so that a policy that cannot count had better say so."""

    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    floor: ClassVar[float] = -1.0

    def question(self, cast: int, more: int, rows: int) -> str:
        return super().question(cast, more, rows) + (
            " A wrong reply costs a point; if you reply `unsure`, it costs half a point."
        )

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        right = parse_integer(rollout.text, max_digits=7) == task.data
        unsure = rollout.text.strip(BLANK) == "unsure"
        value = 1.0 if right else -0.5 if unsure else -1.0
        return Verdict({"reward": Reward(value)}, passed=right, answer=rollout.text[:40])


@honest("the weights add up to ten and not to one, as the range says; the order does not matter")
class AllergensInTenPoints(AllergensOfADish):
    """Marks a label as an inspector does, with up to ten points."""

    parts: ClassVar[dict[str, float]] = {"exact": 6.0, "overlap": 4.0}
    reward_range: ClassVar[tuple[float, float]] = (0.0, 10.0)


@honest("any plan that sorts passes; a shorter one is paid more, and the reference is the shortest")
class ShortPlansForCrates(SwapsOfCrates):
    """Pays a plan in full if no shorter one exists, and less for every swap too many."""

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        right = self.moved(task.data, rollout.text) == sorted(task.data)
        extra = len(rollout.text.strip(BLANK).split(" ")) - self.shortest(task.data)
        value: Any = max(0.5, 1 - 0.1 * extra) if right else 0.0
        return Verdict({"reward": Reward(value)}, passed=right, answer=rollout.text[:100])

    def shortest(self, row: list[int]) -> int:
        """Return the smallest number of swaps: places less the rounds in which they change."""
        goal, seen, rounds = sorted(row), set[int](), 0
        for place in range(len(row)):
            rounds += place not in seen
            while place not in seen:
                seen.add(place)
                place = goal.index(row[place])
        return len(row) - rounds
