"""Says which datasets run an answer as Python to score it, and lets a sandbox run it instead.

Four of them call `eval` on an answer that is not the reference, and score the value. Their answers
are evaluated in the sandbox, as one expression that knows nothing of the task; what comes back is
plain data, which the library's own code scores outside. So a hostile answer can claim a value, as
any expression can, and neither the reference nor the score is where it runs.

Five others hand an answer to sympy's parser, which evaluates it as Python. What they score is an
expression of sympy and no plain data, and a score that is computed beside hostile code could be
forged there. They are refused unless the config accepts that answers run in the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from grpo_core import Limits, Outcome, Program, Sandbox

SANDBOXED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Datasets whose score_answer calls `eval` on an answer; a sandbox evaluates it."""
PARSED_BY_SYMPY = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Datasets whose score_answer calls sympy's parser on an answer, which executes it."""
EXECUTING = SANDBOXED | PARSED_BY_SYMPY

_SOURCE = '''
def evaluate(text):
    return plain(eval(text, {}), 20)

def plain(value, depth):
    """Return ranges, iterators and so on as lists, since only plain data leaves the sandbox."""
    kinds = (str, bytes, int, float, dict, set, frozenset, type(None))
    if depth == 0 or isinstance(value, kinds) or not hasattr(value, "__iter__"):
        return value
    items = [plain(item, depth - 1) for item in value]
    return tuple(items) if type(value) is tuple else items
'''
_LIMITS = Limits(cpu_seconds=2.0, wall_seconds=5.0)


class _NotEvaluatedError(Exception):
    """Stands for whatever an answer raised in the sandbox; the library catches every exception."""


def evaluated_text(dataset: Any, answer: str, entry: Mapping[str, Any]) -> tuple[str | None, Any]:
    """Score an answer without evaluating it.

    Returns:
        The text that score_answer would evaluate, or None if it evaluates nothing; and the score
        that the answer has if evaluating it fails.
    """
    texts: list[str] = []

    def refuse(text: str) -> Any:
        texts.append(text)
        raise _NotEvaluatedError

    score = _score_with(refuse, dataset, answer, entry)
    return (texts[0] if texts else None), score


def score_of_value(dataset: Any, answer: str, entry: Mapping[str, Any], value: Any) -> Any:
    """Return the score of an answer whose evaluation gave `value`."""
    return _score_with(lambda text: value, dataset, answer, entry)


async def evaluate(sandbox: Sandbox, text: str) -> Outcome:
    """Evaluate a text in a sandbox.

    Raises:
        RuntimeError: the sandbox could not run it, which is not the text's fault.
    """
    ((outcome,),) = await sandbox.run([Program(_SOURCE, "evaluate", [[text]], _LIMITS)])
    if outcome.status == "infra_error":
        raise RuntimeError(outcome.error)
    return outcome


def _score_with(
    evaluate: Callable[[str], Any], dataset: Any, answer: str, entry: Mapping[str, Any]
) -> Any:
    """Return what score_answer returns if `evaluate` stands in the place of the builtin `eval`."""
    published = type(dataset).score_answer
    scores = FunctionType(
        published.__code__,
        {**published.__globals__, "eval": evaluate},
        published.__name__,
        published.__defaults__,
        published.__closure__,
    )
    return scores(dataset, answer=answer, entry=entry)
