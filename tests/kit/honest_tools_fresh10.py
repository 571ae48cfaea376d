"""An environment whose tool looks at the answer, and tells no more than it should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bases_g3_fresh10 import call_text, tag_number
from bases_g_fresh10 import chat, judged, wanted
from catalogue import honest

from grpo_core import Environment, Rollout, Task, TaskKey, Verdict


@dataclass(frozen=True)
class Ground:
    """Holds the first depth at which there is rock, in centimetres."""

    rock: int


def drill(depth: int, task: Task[Ground]) -> str:
    """Drill down to a depth in centimetres, and return what the drill brings up from there."""
    return "rock" if depth >= task.data.rock else "clay"


@honest("The tool compares with the answer: drilling is how the policy has to find the depth.")
class DepthOfTheRock(Environment[Ground]):
    """Asks at which depth the rock begins; each drilling only says whether it is reached."""

    max_turns = 10
    max_new_tokens = 160
    rules = (
        "Above the rock is clay. Drill with the tool to find the smallest depth with rock, a whole "
        "number of centimetres. End with <depth>N</depth>."
    )

    def task(self, key: TaskKey) -> Task[Ground]:
        rng = key.rng()
        while True:
            top = 200 if key.level < 0.5 else 2000
            field = rng.choice(("North", "South", "East", "West"))
            site = f"{field} field, hole {rng.randint(1, 9999)}"
            rock = rng.randint(20, top)
            if wanted(key, site):
                question = f"{site}: the rock begins between 20 and {top} cm. Where exactly?"
                return chat(key, self.rules, question, Ground(rock))

    def tools(self) -> Sequence[Callable[..., object]]:
        return [drill]

    def verify(self, task: Task[Ground], rollout: Rollout) -> Verdict:
        given = tag_number(rollout.text, "depth")
        return judged(given == str(task.data.rock), given)

    def reference(self, task: Task[Ground]) -> Sequence[str]:
        rock = task.data.rock
        calls = call_text("drill", depth=rock - 1) + call_text("drill", depth=rock)
        return (calls, f"<depth>{rock}</depth>")
