"""The expressions of each level, and the rule that decides which of them are held out.

The split belongs to an expression and not to a key: a hash of the text decides it once for all
levels, seeds and indices, so no held-out expression is ever trained on, at any level.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo_core import ConfigError

_EVAL_SHARE = 0.4  # leaves more than 300 of the 864 expressions of level 0 for evaluation
_CANDIDATES = 32  # problems that `draw_by_answer` chooses from
_LISTABLE = 5_000  # spaces up to this size are listed, so that held-out tasks are distinct
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


@dataclass(frozen=True, slots=True)
class ArithmeticProblem:
    """An expression and its value, which only the verifier knows."""

    expression: str
    """The expression as it is printed in the prompt."""
    answer: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The expressions that a level draws from: operands joined from left to right by operators."""

    from_level: float
    """Lowest level that uses this shape."""
    largest: int
    """Operands are in 0..largest."""
    operators: str
    """The operators to choose from, one character each."""
    terms: int
    """Number of operands."""

    def space(self) -> int:
        """Return the number of expressions of this shape."""
        return int((self.largest + 1) ** self.terms * len(self.operators) ** (self.terms - 1))


SHAPES = (
    Shape(0.0, 5, "+-", 3),
    Shape(0.2, 9, "+-", 3),
    Shape(0.4, 20, "+-", 3),
    Shape(0.6, 20, "+-*", 3),
    Shape(0.8, 50, "+-*", 4),
    Shape(1.0, 99, "+-*", 5),
)
# The solved examples of every prompt; they are never asked, neither in training nor held out.
EXAMPLES = (
    ArithmeticProblem("(2 - 3) - 4", -5),
    ArithmeticProblem("(1 + 5) - 2", 4),
    ArithmeticProblem("(4 - 1) - 2", 1),
    ArithmeticProblem("(2 - 3) + 0", -1),
    ArithmeticProblem("(3 + 4) + 1", 8),
    ArithmeticProblem("(5 - 0) + 3", 8),
    ArithmeticProblem("(0 + 2) - 5", -3),
    ArithmeticProblem("(1 + 1) + 1", 3),
)
_EXAMPLE_TEXTS = frozenset(example.expression for example in EXAMPLES)


def shape_at(level: float) -> Shape:
    """Return the hardest shape that starts at or below `level`.

    Raises:
        ConfigError: The level is outside 0..1.
    """
    if not 0 <= level <= 1:
        raise ConfigError(f"level {level:g} is outside 0..1; 0 is the easiest")
    return [shape for shape in SHAPES if shape.from_level <= level][-1]


def draw_problem(shape: Shape, rng: random.Random, *, held_out: bool) -> ArithmeticProblem:
    """Draw a random problem of the shape, from the held-out ones or from the others."""
    while True:
        operands = [rng.randrange(shape.largest + 1) for _ in range(shape.terms)]
        signs = [rng.choice(shape.operators) for _ in operands[1:]]
        text = _written(operands, signs)
        if text not in _EXAMPLE_TEXTS and is_held_out(text) == held_out:
            return ArithmeticProblem(text, _value(operands, signs))


def draw_by_answer(
    place: float, shape: Shape, rng: random.Random, *, held_out: bool
) -> ArithmeticProblem:
    """Draw several random problems, sort them by answer, and return the one at `place`.

    With evenly spread places this has the distribution of `draw_problem`, but the answers of
    successive problems are spread evenly, too.

    Args:
        place: Position in the sorted list, from 0 to below 1.
    """
    candidates = sorted(
        (draw_problem(shape, rng, held_out=held_out) for _ in range(_CANDIDATES)),
        key=lambda problem: problem.answer,
    )
    return candidates[int(place * _CANDIDATES)]


@functools.cache
def listed_held_out(shape: Shape) -> tuple[ArithmeticProblem, ...]:
    """Return every held-out problem of the shape in a fixed order, or () if they are too many."""
    if shape.space() > _LISTABLE:
        return ()
    operands = itertools.product(range(shape.largest + 1), repeat=shape.terms)
    signs = list(itertools.product(shape.operators, repeat=shape.terms - 1))
    return tuple(
        ArithmeticProblem(text, _value(o, s))
        for o in operands
        for s in signs
        if (text := _written(o, s)) not in _EXAMPLE_TEXTS and is_held_out(text)
    )


@functools.lru_cache(maxsize=_LISTABLE)
def is_held_out(expression: str) -> bool:
    """Return whether a hash of the expression's text puts it among the held-out tasks."""
    digest = hashlib.sha256(expression.encode()).digest()
    return int.from_bytes(digest[:8], "big") < _EVAL_SHARE * 2**64


def _written(operands: Sequence[int], signs: Sequence[str]) -> str:
    text = f"{operands[0]} {signs[0]} {operands[1]}"
    for sign, operand in zip(signs[1:], operands[2:], strict=True):
        text = f"({text}) {sign} {operand}"
    return text


def _value(operands: Sequence[int], signs: Sequence[str]) -> int:
    value = operands[0]
    for sign, operand in zip(signs, operands[1:], strict=True):
        value = _OPERATORS[sign](value, operand)
    return value
