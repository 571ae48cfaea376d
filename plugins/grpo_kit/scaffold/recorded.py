"""Attempts by agents that were played in one process and are judged in another one.

The second process has no policy, so it gets each attempt with the rollout that came of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_core import GrpoError, Rollout, Task
from grpo_core.api.calls import decode, encode

UNSEEN = "grpokitunseen"
"""A word that no other answer holds; what the policy says stands in a recorded attempt for it."""

Address = tuple[str, int, float]
"""Split, index and level of a task, which name it in the messages to the second process."""


def address(task: Task[Any]) -> Address:
    """Return what names a task in the messages to the second process."""
    return task.key.split, task.key.index, task.key.level


def packed(played: Sequence[tuple[Task[Any], str, Rollout]]) -> list[list[Any]]:
    """Return attempts with their rollouts as JSON data."""
    return [
        [address(task), text, {"error": rollout.error} if rollout.error else encode(rollout)]
        for task, text, rollout in played
    ]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Holds attempts with their rollouts."""

    fields: Mapping[tuple[Address, str], Any] = field(default_factory=dict)
    """Each rollout, as JSON data."""

    @classmethod
    def unpack(cls, data: Sequence[Sequence[Any]]) -> Recorded:
        """Return the attempts that `packed` made JSON data of."""
        return cls({(_address(place), text): rollout for place, text, rollout in data})

    def rollout(self, task: Task[Any], text: str) -> Rollout:
        """Return the rollout of an attempt.

        Raises:
            GrpoError: the agent failed in it, or it is not here.
        """
        return _rollout(self.fields.get((address(task), text), {"error": "it was not recorded"}))

    def rollout_of_unseen(self, text: str) -> Rollout:
        """Return a rollout in which the policy says a text of letters, digits and spaces.

        It is the attempt with UNSEEN, with the text in the place of that word.

        Raises:
            GrpoError: there is none.
        """
        found = [fields for (_, said), fields in self.fields.items() if UNSEEN in said]
        return _rollout(
            json.loads(json.dumps(found[0]).replace(UNSEEN, text))
            if found
            else {"error": "it was not recorded"}
        )


def _rollout(fields: Any) -> Rollout:
    if "error" in fields:
        raise GrpoError(fields["error"])
    rollout: Rollout = decode(fields)
    return rollout


def _address(place: Sequence[Any]) -> Address:
    split, index, level = place
    return split, index, level
