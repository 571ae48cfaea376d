"""An honest design whose tools look odd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bases_c3_fresh8 import HerbariumDrawer, call, seeds_on
from catalogue import honest

from grpo_core import Message, Task
from grpo_core.protocol.tools import calls_of


def mixed_drawer(task: Task[dict[str, int]]) -> list[int]:
    """List the numbers of the sheets in the drawer, in the order in which they lie there."""
    numbers = [int(number) for number in task.data]
    task.key.rng("drawer").shuffle(numbers)
    return numbers


@honest(
    "The sheets come mixed and a call is refused after eleven: the key decides the order, and "
    "earlier calls are counted in the messages of the attempt, so each attempt hears the same."
)
class HerbariumWithACounter(HerbariumDrawer):
    """Answers eleven calls of an attempt, and refuses the others."""

    MOST = 11

    def tools(self) -> Sequence[Callable[..., object]]:
        return (mixed_drawer, seeds_on)

    async def reply(
        self, task: Task[dict[str, int]], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        answered = sum(message.role == "tool" for message in messages)
        results = await super().reply(task, messages)
        if results is None or not calls_of(messages[-1]):
            return None
        closed = Message("tool", "the herbarium has closed; reply with what you know")
        left = max(0, self.MOST - answered)
        return [*results[:left], *([closed] * len(results[left:]))]

    def reference(self, task: Task[dict[str, int]]) -> tuple[str, ...]:
        return call("mixed_drawer"), *super().reference(task)[1:]
