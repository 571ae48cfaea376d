"""Compose the strategies that are tried on an environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from grpo_kit.shortcuts.asked import SeenPrompt
from grpo_kit.shortcuts.commands import command_strategies
from grpo_kit.shortcuts.constants import constant_strategies
from grpo_kit.shortcuts.others import other_strategies
from grpo_kit.shortcuts.parts import part_strategies
from grpo_kit.shortcuts.programs import program_strategies
from grpo_kit.shortcuts.shape import ReferenceShape
from grpo_kit.shortcuts.strategy import Candidate, Strategy
from grpo_kit.shortcuts.turns import turn_strategies


def compose(
    shape: ReferenceShape,
    learned: Sequence[tuple[SeenPrompt, str]],
    prompts: Sequence[SeenPrompt],
    max_turns: int,
) -> list[Candidate]:
    """Return the answers of all strategies to some prompts.

    A strategy that answers nothing, or as an earlier one does, is left out.

    Args:
        shape: The shape of the references of other tasks.
        learned: What those tasks ask, each with its reference.
        prompts: The prompts to be answered.
        max_turns: The most turns of the policy.
    """
    return distinct(
        Candidate(strategy.name, strategy.kind, [strategy.answer(asked) for asked in prompts])
        for strategy in _strategies(shape, learned, max_turns)
    )


def _strategies(
    shape: ReferenceShape, learned: Sequence[tuple[SeenPrompt, str]], max_turns: int
) -> Iterator[Strategy]:
    return chain(
        constant_strategies(shape),
        part_strategies(shape),
        program_strategies(shape),
        command_strategies(shape),
        other_strategies(shape, learned),
        turn_strategies(shape, max_turns),
    )


def distinct(candidates: Iterator[Candidate] | Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that answer something, and otherwise than every earlier one."""
    by_answers: dict[tuple[str | None, ...], Candidate] = {}
    for candidate in candidates:
        if any(answer is not None for answer in candidate.answers):
            by_answers.setdefault(tuple(candidate.answers), candidate)
    return list(by_answers.values())
