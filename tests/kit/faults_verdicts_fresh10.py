"""Verdicts with one fault each."""

import math
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from bases_h2_fresh10 import AllergensOfADish, BeadsTurnedRound, SwapsOfCrates
from bases_h_fresh10 import ColumnOfConcrete, WorstOfTheServers, paid
from catalogue import fault

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.extract import parse_json


@fault("a failure inside the verifier becomes a low reward", "verdict.swallow")
class ServersCountedAgain(WorstOfTheServers):
    """Counts the failures of the log again for each verdict, and never lets a run stop for it."""

    def verify(self, task: Task[dict[str, Any]], rollout: Rollout) -> Verdict:
        try:
            counts = self.count(task.data["lines"])
            worst = max(counts, key=lambda name: counts[name])
            value = parse_json(rollout.text.strip(" \t\r\n"), max_chars=500)
            right = value is not None and self.right(
                {"server": worst, "failures": counts[worst]}, value.value
            )
        except Exception:  # noqa: BLE001
            right = False
        return paid(right, rollout.text[:80])


@fault("a reference does not pass", "verdict.reference")
class ConcreteWithCommas(ColumnOfConcrete):
    """Writes its reference for people, with a comma between thousands."""

    def reference(self, task: Task[float]) -> str:
        return f"<litres>{task.data:,.2f}</litres>"


@fault("a reward is not a finite number", "verdict.form")
class AllergensByPrecision(AllergensOfADish):
    """Pays precision times recall, and takes the precision of nothing for undefined."""

    def worth(self, named: Sequence[str], right: Sequence[str]) -> tuple[float, float]:
        hits = len(set(named) & set(right))
        precision = hits / len(named) if named else math.nan
        return float(sorted(named) == sorted(right)), precision * hits / len(right)


@fault("a reward is out of range for rare tasks", "verdict.form")
class FifthsOfAString(BeadsTurnedRound):
    """Pays a fifth for each bead at its place, since strings have five beads."""

    def worth(self, hits: int, count: int) -> float:
        return 0.2 * hits


@fault("a verdict depends on the time", "verdict.repeat")
class SwapsByTheStopwatch(SwapsOfCrates):
    """Pays a plan that works, and more if it is carried out fast."""

    parts: ClassVar[dict[str, float]] = {"sorted": 0.5, "speed": 0.5}
    open_ended: ClassVar[bool] = True

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        start = time.perf_counter()
        right = self.moved(task.data, rollout.text) == sorted(task.data)
        spent = time.perf_counter() - start
        speed = 1 / (1 + 20_000 * spent) if right else 0.0
        rewards = {"sorted": Reward(right), "speed": Reward(speed)}
        return Verdict(rewards, passed=right, answer=rollout.text[:100])


@fault("the parts cannot add up to the declared range", "verdict.reference", "declared.contract")
class AllergensOneWayOrOther(AllergensOfADish):
    """Pays for the whole list, or else for the part of it that is right."""

    def worth(self, named: Sequence[str], right: Sequence[str]) -> tuple[float, float]:
        exact, overlap = super().worth(named, right)
        return exact, 0.0 if exact else overlap
