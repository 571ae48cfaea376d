"""Tools that see a task's data, and rightly so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from bases_a3_fresh7 import call
from bases_a_fresh7 import verdict, wanted
from catalogue import honest
from pydantic import Field

from grpo_core import Environment, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer


@dataclass(frozen=True, slots=True)
class Lake:
    """Holds the temperatures of a lake in tenths of a degree, by depth from 1 m."""

    tenths: tuple[int, ...]
    limit: int

    @property
    def depth(self) -> int:
        """Return the least depth that is colder than the limit."""
        return next(d for d, tenths in enumerate(self.tenths, 1) if tenths < self.limit)


def thermometer(
    depth: Annotated[int, Field(description="the depth in whole metres", ge=1, le=120)],
    task: Task[Lake],
) -> str:
    """Return the temperature of the lake at a depth, in degrees."""
    tenths = task.data.tenths[depth - 1]
    return f"{tenths // 10}.{tenths % 10} degrees"


@honest(
    "the thermometer reads the hidden lake and the prompt does not tell it, but one call shows "
    "one depth, and eight calls find the answer, as it never grows warmer further down"
)
class ColdBelow(Environment[Lake]):
    """Asks from which depth a lake is colder than a limit; a tool measures at one depth."""

    levels = False
    max_turns: ClassVar[int] = 9
    max_new_tokens = 96

    def task(self, key: TaskKey) -> Task[Lake]:
        rng = key.rng()
        while True:
            profile, tenths = [], rng.randint(170, 240)
            layer = rng.randint(8, 100)
            for depth in range(1, 121):
                tenths -= rng.randint(4, 9) if 0 <= depth - layer < 12 else rng.randint(0, 1)
                profile.append(max(tenths, 40))
            limit = profile[layer + rng.randint(0, 11)] + 1
            station = rng.randrange(10_000, 100_000)
            if limit > 41 and wanted(f"{station} {limit} {profile[:40]}", key):
                break
        text = (
            f"At station {station} of a lake the water is never warmer further down. What is the "
            f"least depth, in whole metres from 1 to 120, at which it is colder than "
            f"{limit // 10}.{limit % 10} degrees? The thermometer measures at one depth for each "
            "call. At last reply with the depth in digits and nothing else."
        )
        return Task(key, (Message("user", text),), Lake(tuple(profile), limit))

    def tools(self) -> Sequence[Callable[..., object]]:
        return (thermometer,)

    def verify(self, task: Task[Lake], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=3)
        return verdict(answer == task.data.depth, rollout.text)

    def reference(self, task: Task[Lake]) -> Sequence[str]:
        low, high, turns = 1, 120, []
        while low < high:
            middle = (low + high) // 2
            turns.append(call("thermometer", depth=middle))
            if task.data.tenths[middle - 1] < task.data.limit:
                high = middle
            else:
                low = middle + 1
        return (*turns, str(low))
