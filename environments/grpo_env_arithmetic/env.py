"""Arithmetic: the policy computes (a op b) op c and answers in one <answer> block.

| level from | operands | operators | terms |
| 0.0        | 0..5     | + -       | 3     |
| 0.2        | 0..9     | + -       | 3     |
| 0.4        | 0..20    | + -       | 3     |
| 0.6        | 0..20    | + - *     | 3     |
| 0.8        | 0..50    | + - *     | 4     |
| 1.0        | 0..99    | + - *     | 5     |

A completion has the format if it contains `<answer>` and `</answer>` exactly once, with one integer
between them (an optional "-" and up to 12 ASCII digits), and nothing but white space follows. Text
before the block is free: a larger model may think first. Any other completion gets 0. A wrong
answer in the right format gets 0.2, so that a model that has lost the format can learn it again.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from grpo_core import Environment, Message, Rollout, Rubric, Task, TaskKey, Verdict
from grpo_core.extract import NoAnswer, find_tag, parse_integer, same_number
from grpo_env_arithmetic import expressions
from grpo_env_arithmetic.expressions import (
    EXAMPLES,
    SHAPES,
    ArithmeticProblem,
    draw_by_answer,
    draw_problem,
    listed_held_out,
    shape_at,
)

_MAX_DIGITS = 12  # the largest value of any level has 10
# Any number of successive multiples of the golden ratio, modulo 1, are spread evenly.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class ArithmeticConfig:
    """Settings of the environment."""

    shots: Literal[0, 1, 2, 3, 4, 5, 6, 7, 8] = 8
    """Number of solved examples before the question. They show a small model the format and the
    task: the fewer there are, the slower it learns. They are the same in every prompt, so the
    shared prefix is computed once."""


class Arithmetic(Environment[ArithmeticProblem]):
    """Parts: format 0.2, close 0.2 (at most 1 away from the truth), exact 0.6."""

    Config = ArithmeticConfig
    parts: ClassVar[Mapping[str, float]] = {"format": 0.2, "close": 0.2, "exact": 0.6}
    max_new_tokens = 16
    trusted = True

    def task(self, key: TaskKey) -> Task[ArithmeticProblem]:
        problem = _problem_for(key)
        return Task(
            key=key, prompt=(*_preamble(self.config.shots), _question(problem)), data=problem
        )

    def size(self, split: Literal["train", "eval"]) -> int | None:
        """Return None for training, whose tasks are unlimited, and for "eval" the number of tasks.

        That is the number of held-out expressions of level 0. Held-out tasks are distinct up to
        level 0.4; above, they are drawn at random.
        """
        return None if split == "train" else len(listed_held_out(SHAPES[0]))

    def verify(self, task: Task[ArithmeticProblem], rollout: Rollout) -> Verdict:
        answer = _parse_answer(rollout.text)
        given = None if isinstance(answer, NoAnswer) else str(answer)
        return replace(_RUBRIC(task.data, answer), answer=given)

    def reference(self, task: Task[ArithmeticProblem]) -> str:
        return _block(task.data.answer)

    def cheats(self, task: Task[ArithmeticProblem]) -> Sequence[str]:
        """Return completions that contain the right number but do not give it as the answer."""
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


def _problem_for(key: TaskKey) -> ArithmeticProblem:
    shape = shape_at(key.level)
    if key.split == "eval" and (listed := listed_held_out(shape)):
        # One order per (env, seed, level): indices walk through it, so no held-out task repeats.
        order = replace(key, index=0).rng("order").sample(range(len(listed)), len(listed))
        return listed[order[key.index % len(listed)]]
    if key.split == "eval":
        return draw_problem(shape, key.rng(), held_out=True)
    # A step has few tasks. If their answers happened to be similar, the policy would learn to
    # answer that number to every prompt; so the answers of successive tasks are spread evenly.
    shift = replace(key, index=0).rng("shift").random()
    return draw_by_answer((shift + key.index * _GOLDEN) % 1, shape, key.rng(), held_out=False)


def _preamble(shots: int) -> list[Message]:
    """Return the messages that begin every prompt, so that they can be computed once."""
    messages = [Message("system", "Answer the sum. Reply with <answer>N</answer>.")]
    for example in EXAMPLES[:shots]:
        messages += [_question(example), Message("assistant", _block(example.answer))]
    return messages


def _question(problem: ArithmeticProblem) -> Message:
    return Message("user", f"Calculate {problem.expression}.")


def _block(content: object) -> str:
    return f"<answer>{content}</answer>"


def _parse_answer(text: str) -> int | NoAnswer:
    block = find_tag(text, tag="answer")
    if isinstance(block, NoAnswer):
        return block
    if rest := text[block.end :].strip():
        return NoAnswer(f"text follows the answer: {rest!r:.60}")
    number = parse_integer(block.content, max_digits=_MAX_DIGITS)
    if number is None:
        return NoAnswer(f"the answer is not a whole number: {block.content.strip()!r:.60}")
    return number


def _has_format(problem: ArithmeticProblem, answer: int | NoAnswer) -> tuple[bool, str]:
    return (False, answer.reason) if isinstance(answer, NoAnswer) else (True, "")


def _is_close(problem: ArithmeticProblem, answer: int | NoAnswer) -> bool:
    return same_number(answer, problem.answer, absolute=1)


def _is_exact(problem: ArithmeticProblem, answer: int | NoAnswer) -> bool:
    return same_number(answer, problem.answer)


_RUBRIC = Rubric(
    {"format": _has_format, "close": _is_close, "exact": _is_exact},
    weights=Arithmetic.parts,
    passed="exact",
)
