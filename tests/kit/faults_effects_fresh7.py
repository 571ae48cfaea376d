"""Verifiers that leave something behind, reach out, or execute the reply."""

from __future__ import annotations

import csv
import decimal
import http.client
import re
import tempfile
import threading
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from bases_a2_fresh7 import (
    Bill,
    GrossTotal,
    Place,
    Sheet,
    SheetFormula,
    ShortestHike,
    Terrain,
    TransposedMelody,
)
from bases_a_fresh7 import LONGEST, WHITE, HerbariumSheet, Order, SuspensionDoses, verdict
from catalogue import fault

from grpo_core import Rollout, Services, Task, TaskKey, Verdict


@fault("judging appends to a log without end", "safety.files")
class MistakesForLater(HerbariumSheet):
    """Wrong replies are collected in a table, from which the author wants to learn later.

    Each wrong verdict of each run adds a row to the same file, which nobody ever empties.
    """

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        judged = super().verify(task, rollout)
        if not judged.passed:
            path = Path(tempfile.gettempdir()) / "herbarium_mistakes.csv"
            with path.open("a", newline="", encoding="utf-8", errors="replace") as file:
                row = (task.key.split, task.key.index, task.data, judged.answer)
                csv.writer(file).writerow(str(value).replace("\0", " ") for value in row)
        return judged


@fault("judging changes the state of the process", "safety.state")
class RoundsCommercially(GrossTotal):
    """Decimal numbers shall be rounded as merchants do, so the verifier sets the rounding.

    It is that of the whole thread, and stays so for whatever calculates there next.
    """

    def total(self, bill: Bill) -> int:
        decimal.getcontext().rounding = decimal.ROUND_HALF_UP
        net = sum(quantity * price for quantity, price in bill.lines)
        return int((Decimal(net) * (100 + bill.percent) / 100).to_integral_value())


@fault("judging leaves threads", "safety.processes")
class ForgetsAfterAWhile(TransposedMelody):
    """Verdicts are kept for a quarter of a minute, in case a reply is judged twice.

    A timer forgets each of them, so each verdict leaves a thread that waits.
    """

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self._known: dict[tuple[TaskKey, str], Verdict] = {}

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        asked = (task.key, rollout.text)
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = super().verify(task, rollout)
            timer = threading.Timer(15.0, self._known.pop, (asked, None))
            timer.daemon = True
            timer.start()
        return known


@fault("judging uses the network", "safety.network")
class AsksTheFormulary(SuspensionDoses):
    """The service of the formulary in the author's office knows the largest dose of the day.

    It is asked for each verdict, and where it does not answer the dose alone is judged.
    """

    def verify(self, task: Task[Order], rollout: Rollout) -> Verdict:
        dose, limit = self.dose_of(rollout.text), self.limit(task.data)
        right = dose == self.right_dose(task.data) and (limit is None or dose <= limit)
        return verdict(right, str(dose))

    def limit(self, order: Order) -> Decimal | None:
        """Return the largest dose that the service names, or None."""
        service = http.client.HTTPConnection("127.0.0.1", 8009, timeout=0.3)
        try:
            service.request("GET", f"/limits?kg={order.kilograms}")
            body = service.getresponse().read(20).decode("ascii", "replace")
        except (OSError, http.client.HTTPException):
            return None
        finally:
            service.close()
        return Decimal(body) if re.fullmatch(r"[0-9]{1,4}\.[0-9]", body, re.ASCII) else None


@fault("tasks are kept without end", "cost.memory")
class AtlasOfAllTerrains(ShortestHike):
    """The ways between all places are worked out once for each terrain, since groups share it.

    The tables are never given up, so memory grows with every task that was judged.
    """

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self._atlas: dict[TaskKey, dict[Place, dict[Place, str]]] = {}

    def length(self, task: Task[Terrain]) -> int:
        terrain, side = task.data, range(len(task.data.rows))
        if task.key not in self._atlas:
            self._atlas[task.key] = {
                (row, column): terrain.ways_from((row, column)) for row in side for column in side
            }
        return len(self._atlas[task.key][terrain.start][terrain.goal])


@fault("the reply is executed", "safety.eval")
class CalculatesTheFormula(SheetFormula):
    """The names of cells are replaced by their values, and Python calculates the rest.

    What stands between the cells may be any expression, which is then evaluated.
    """

    def verify(self, task: Task[Sheet], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        cells = dict(task.data.cells)
        used = Counter(re.findall(r"[A-F][1-4]", answer))
        right = False
        if answer.startswith("=") and len(answer) <= 120 and "**" not in answer:
            filled = re.sub(r"[A-F][1-4]", lambda m: str(cells.get(m[0], m[0])), answer[1:])
            try:
                right = eval(filled.strip()) == task.data.target and used == Counter(list(cells))
            except Exception:  # noqa: BLE001 - a formula may fail in any way
                right = False
        return verdict(bool(right), answer)
