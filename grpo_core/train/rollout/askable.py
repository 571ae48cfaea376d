"""Tell which tasks can be asked of a policy: those whose prompts it can read and answer.

A prompt that is longer than the context, has no tokens or is refused by the chat template is a
defect of its task, not of the run: the task is left out, named and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_core.engine.policy.room import NoRoomError
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.sources import Sources
from grpo_core.words import last_text, shorten
from grpo_core.words.unasked import Unasked, name_unasked

if TYPE_CHECKING:  # torch comes with them, and who deals tasks needs none
    from grpo_core.engine.policy.causal import Policy
    from grpo_core.train.rollout.budget import Budget

_CHUNK = 256
"""Tasks that are made at a time."""


class Askable:
    """Tell which tasks can be asked, and remember those that cannot.

    Args:
        policy: encodes the prompts.
        budgets: the limits of a rollout, by environment.
        warn: receives a warning of the first task of an environment in whose place another one is
            taken, unless the user knows of it.
    """

    def __init__(
        self, policy: Policy, budgets: Mapping[str, Budget], warn: Callable[[str], None]
    ) -> None:
        self.unasked: dict[TaskKey, Unasked] = {}
        """The tasks that were examined and cannot be asked."""
        self._policy, self._budgets, self._warn = policy, budgets, warn
        self._asked: set[TaskKey] = set()
        """The held-out tasks that were examined and can be asked."""
        self._told: set[str] = set()
        """The environments of which the user knows that some tasks cannot be asked."""

    def examine(self, task: Task[Any]) -> Unasked | None:
        """Return why a task cannot be asked; None if it can.

        An agent's requests have prompts of their own, so its tasks can always be asked.
        """
        budget = self._budgets[task.key.env]
        if budget.for_agents:
            return None
        try:
            self._policy.encode_checked(task.prompt, max_new_tokens=budget.turn, tools=budget.tools)
        except NoRoomError as error:
            reason, advice = error.finding, error.advice
        except ConfigError as error:
            reason, advice = str(error), ""
        else:
            return None
        unasked = Unasked(task.key, reason, advice, shorten(last_text(task), 40))
        return self.unasked.setdefault(task.key, unasked)

    async def split(
        self, sources: Sources, keys: Sequence[TaskKey]
    ) -> tuple[list[TaskKey], list[Unasked]]:
        """Return the keys of the tasks that can be asked, and the tasks that cannot.

        Each task is examined once, so that a run asks the same ones at every evaluation.
        """
        new_keys = [key for key in keys if key not in self._asked and key not in self.unasked]
        for start in range(0, len(new_keys), _CHUNK):
            for task in await sources.tasks(new_keys[start : start + _CHUNK]):
                if self.examine(task) is None:
                    self._asked.add(task.key)
        return (
            [key for key in keys if key not in self.unasked],
            [self.unasked[key] for key in keys if key in self.unasked],
        )

    def tell(self, name: str) -> None:
        """Note that the user knows that tasks of the environment `name` cannot be asked."""
        self._told.add(name)

    def replaced(self, key: TaskKey) -> None:
        """Warn that the next task is taken in place of one, unless the user knows of such tasks."""
        if key.env not in self._told:
            self.tell(key.env)
            self._warn(
                f"a task of {key.env!r} cannot be asked, and the next one is taken in its place "
                "(reported once; the metric prompts/unasked counts them): "
                f"{name_unasked([self.unasked[key]])}"
            )
