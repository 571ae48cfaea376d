"""Arithmetic: (a op b) op c, answered in one <answer> block.

| level from | operands | operators | terms |
| 0.0        | 0..5     | + -       | 3     |
| 0.2        | 0..9     | + -       | 3     |
| 0.4        | 0..20    | + -       | 3     |
| 0.6        | 0..20    | + - *     | 3     |
| 0.8        | 0..50    | + - *     | 4     |
| 1.0        | 0..99    | + - *     | 5     |

An answer counts if `<answer>` and `</answer>` stand in the reply exactly once, hold one integer (an optional "-" and up to 12 ASCII
digits) and nothing but white space follows. Text before the block is free: a larger model may think first. Anything else gets 0; a
well-formed wrong answer gets 0.2, so that a model which has lost the format can find it again.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from grpo_core import Environment, Message, Rollout, Rubric, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer, xml_tag
from grpo_env_arithmetic import expressions
from grpo_env_arithmetic.expressions import (
    EXAMPLES,
    SHAPES,
    Problem,
    draw,
    draw_at,
    listed_held_out,
    shape_at,
)

_MAX_DIGITS = 12  # the largest value of any level has 10
_GOLDEN = (
    0.6180339887498949  # multiples of it, modulo 1, are spread evenly, however many one looks at
)


@dataclass(frozen=True, slots=True)
class Config:
    """shots: how many solved examples stand before the question. They show a small model the format and, more with each, what is asked
    of it: the fewer there are, the slower it learns. They are the same in every prompt, so they are computed once."""

    shots: Literal[0, 1, 2, 3, 4, 5, 6, 7, 8] = 8


class Arithmetic(Environment[Problem]):
    """Parts: format 0.2, close 0.2 (at most 1 away from the truth), exact 0.6."""

    Config = Config
    parts: ClassVar[Mapping[str, float]] = {"format": 0.2, "close": 0.2, "exact": 0.6}
    max_new_tokens = 16
    trusted = True

    def task(self, key: TaskKey) -> Task[Problem]:
        problem = _problem(key)
        return Task(
            key=key, prompt=(*_preamble(self.config.shots), _question(problem)), data=problem
        )

    def size(self, split: Literal["train", "eval"]) -> int | None:
        """Training tasks have no end. Held-out tasks are as many as level 0 has, and distinct up to level 0.4; above, drawn at random."""
        return None if split == "train" else len(listed_held_out(SHAPES[0]))

    def verify(self, task: Task[Problem], rollout: Rollout) -> Verdict:
        answer = _extract(rollout.text)
        return replace(_RUBRIC(task.data, answer), answer=None if answer is None else str(answer))

    def reference(self, task: Task[Problem]) -> str:
        return _block(task.data.answer)

    def cheats(self, task: Task[Problem]) -> Sequence[str]:
        """Replies that hold the right number somewhere and commit to none."""
        right = task.data.answer
        numbers = range(right - 10, right + 11)
        return (
            str(right),
            f"{task.data.expression} = {right}",
            _block(task.data.expression),
            _block(", ".join(map(str, numbers))),
            "".join(map(_block, numbers)),
            _block(f"{right} or {right + 1}"),
            _block(right) + _block(right),
            _block(right) + f" or {right + 1}",
            _block(_block(right)),
            f"<answer>{right}",
            f"{right}</answer>",
            _block(f"{right}.0"),
            _block(f"{right}e0"),
            _block(f"{'0' * 20}{right}"),
            _block("".join(chr(ord("０") + int(digit)) for digit in str(abs(right)))),
        )

    def fingerprint(self) -> str:
        return hashlib.sha256(
            (super().fingerprint() + inspect.getsource(expressions)).encode()
        ).hexdigest()[:16]


def _problem(key: TaskKey) -> Problem:
    shape = shape_at(key.level)
    if key.split == "eval" and (listed := listed_held_out(shape)):
        # One order per (env, seed, level): indices walk through it, so that no held-out task is asked twice.
        order = replace(key, index=0).rng("order").sample(range(len(listed)), len(listed))
        return listed[order[key.index % len(listed)]]
    if key.split == "eval":
        return draw(shape, key.rng(), held_out=True)
    # Few tasks make a step. Where their answers happen to be alike, the policy learns to say that number whatever is asked.
    shift = replace(key, index=0).rng("shift").random()
    return draw_at((shift + key.index * _GOLDEN) % 1, shape, key.rng(), held_out=False)


def _preamble(shots: int) -> list[Message]:
    """The part that all prompts share, in front, so that it can be computed once."""
    messages = [Message("system", "Answer the sum. Reply with <answer>N</answer>.")]
    for example in EXAMPLES[:shots]:
        messages += [_question(example), Message("assistant", _block(example.answer))]
    return messages


def _question(problem: Problem) -> Message:
    return Message("user", f"Calculate {problem.expression}.")


def _block(content: object) -> str:
    return f"<answer>{content}</answer>"


def _extract(text: str) -> int | None:
    block = xml_tag(text, tag="answer")
    if block is None or text[block.end :].strip():
        return None
    return parse_integer(block.content, max_digits=_MAX_DIGITS)


def _has_format(problem: Problem, answer: int | None) -> bool:
    return answer is not None


def _is_close(problem: Problem, answer: int | None) -> bool:
    return answer is not None and abs(answer - problem.answer) <= 1


def _is_exact(problem: Problem, answer: int | None) -> bool:
    return answer == problem.answer


_RUBRIC = Rubric(
    {"format": _has_format, "close": _is_close, "exact": _is_exact},
    weights=Arithmetic.parts,
    passed="exact",
)
