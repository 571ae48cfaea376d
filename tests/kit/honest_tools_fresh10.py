"""An environment whose tool looks at the answer, and tells no more than it should."""

import random
from collections.abc import Callable, Sequence

from bases_g3_fresh10 import call_text
from bases_g_fresh10 import Draft, Tagged
from catalogue import honest

from grpo_core import Task


def drill(depth: int, task: Task[int]) -> str:
    """Drill down to a depth in centimetres, and return what the drill brings up from there."""
    return "rock" if depth >= task.data else "clay"


@honest("The tool compares with the answer: drilling is how the policy has to find the depth.")
class DepthOfTheRock(Tagged):
    """Asks at which depth the rock begins; each drilling only says whether it is reached."""

    max_turns = 10
    max_new_tokens = 160
    rules = (
        "Above the rock is clay. Drill with the tool to find the smallest depth with rock, a whole "
        "number of centimetres. End with <depth>N</depth>."
    )
    tag = "depth"
    shown = 20

    def draw(self, rng: random.Random, level: float) -> Draft:
        top = 200 if level < 0.5 else 2000
        field = rng.choice(("North", "South", "East", "West"))
        site = f"{field} field, hole {rng.randint(1, 9999)}"
        rock = rng.randint(20, top)
        question = f"{site}: the rock begins between 20 and {top} cm. Where exactly?"
        return Draft(question, rock, site)

    def tools(self) -> Sequence[Callable[..., object]]:
        return [drill]

    def reference(self, task: Task[int]) -> Sequence[str]:
        calls = call_text("drill", depth=task.data - 1) + call_text("drill", depth=task.data)
        return (calls, super().reference(task))
