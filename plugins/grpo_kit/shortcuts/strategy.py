"""Define a strategy: a cheap way of answering, and the answers that it gives to some tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_kit.shortcuts.asked import SeenPrompt

Kind = Literal["constant", "prompt", "others", "program", "mistake"]
"""What a strategy answers with.

constant: the same answer always. prompt: a part or a count of the prompt. others: what references
of other tasks say. program: a short program, query or command. mistake: the task's own reference
with one mistake in it.
"""
Answer = Callable[[SeenPrompt], str | None]
"""Returns the answer to a prompt, turns joined by `join_turns`; None where it has none."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A function from the prompt to an answer, which a policy could learn."""

    name: str
    kind: Kind
    answer: Answer


@dataclass(frozen=True, slots=True)
class Candidate:
    """The answers of a strategy, or of a mistake, to the tasks on which it is measured."""

    name: str
    kind: Kind
    answers: Sequence[str | None]
    """The answer to each task; None where the strategy has none."""
    declared: bool = False
    """Whether the environment itself names it as an answer that must not pass."""
