"""No bundled environment takes infinity, NaN or a number that overflows for the right one."""

import asyncio
import json
import re
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_core import Message, Rollout, TaskKey, reaches
from grpo_core.extract import finite_number, same_number
from grpo_core.plugins.environments import load_environment
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.scalars import as_float
from grpo_core.protocol.ties import same_reward
from grpo_core.rubric import reward_of
from grpo_env_dataset.answers import BadAnswerError, answers_of

from .answer_forms import ALL, FENCED, JSON, PROGRAMS, TAGGED
from .test_answer_forms import subject_of, verdicts_on

_WRITTEN = """
inf -inf +inf Infinity -Infinity infinity nan NaN -nan nan(0) ∞ 9e999 -9e999 1e400 1E+400
1e999999999 1e-999999999 9.9e99999 0x1p99999 1/0 0/0 -1/0 10**10**9 1e308*10 inf+infj nan+nanj
1e999j Decimal('Infinity') float('inf') Fraction(10**400) math.inf sNaN 1#INF 1.#QNAN
"""
_LONG = ("9" * 400, "9" * 5000, f"0.{'0' * 400}1", f"1{'0' * 4400}", f"1/{'9' * 400}")
SPELLINGS = (*_WRITTEN.split(), *_LONG)
"""How numbers that are not finite, or too large for a float, may be written."""
RETURNED = (
    *("float('inf')", "-float('inf')", "float('nan')", "1e999", "1e308 * 10", "10 ** 400"),
    "complex('nan')",
    "__import__('decimal').Decimal('Infinity')",
    "__import__('decimal').Decimal('1e999999999')",
    "__import__('fractions').Fraction(10 ** 400)",
)
"""What a program may return in place of a number."""
NOT_FINITE: tuple[Any, ...] = (
    *map(float, ("inf", "-inf", "nan")),
    *map(
        Decimal, ("Infinity", "-Infinity", "NaN", "sNaN", "1e999999999", "1e-999999999", "9" * 5000)
    ),
    *(10**10**4, Fraction(10**10**4), Fraction(1, 10**10**4), complex("inf"), 1j, True, "5", None),
    *(np.float64("inf"), np.float32("nan"), np.array(np.inf), np.array([5.0]), np.bool_(True)),
)


def answers(name: str, right: str) -> list[str]:
    """Return answers of an environment that consist of numbers that are not finite."""
    if name in TAGGED:
        return [f"<answer>{text}</answer>" for text in SPELLINGS]
    if name in PROGRAMS:
        entry = right.partition("def ")[2].partition("(")[0]
        return [f"```python\ndef {entry}(*_):\n    return {value}\n```" for value in RETURNED]
    if name == "sql":
        return [f"```sql\nSELECT {text}\n```" for text in SPELLINGS]
    if name == "terminal":
        return [f'```sh\necho "{text}"\n```' for text in SPELLINGS[:12]]
    if name == "besiege":
        root, *rest = json.loads(right)
        tree = json.dumps([root | {"order_id": "#"}, *rest])
        return [f"```json\n{tree}\n```".replace('"#"', text) for text in SPELLINGS]
    return [f"[{text}]" if name in JSON else text for text in SPELLINGS]


@pytest.mark.parametrize("name", ALL)
def test_a_number_that_is_not_finite_is_never_right(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    subject = subject_of(name, tmp_path, lambda: request.getfixturevalue("services"))
    texts = answers(name, subject.given.right)
    started = time.process_time()
    for text, verdict in zip(texts, asyncio.run(verdicts_on(subject, texts)), strict=True):
        assert not verdict.passed, text
        assert verdict.total < 1, text
    assert time.process_time() - started < 20
    assert len(texts) >= (10 if name in FENCED else 30)


@pytest.mark.parametrize("dataset", ["complex_arithmetic", "number_sorting", "basic_arithmetic"])
def test_no_dataset_of_numbers_pays_or_computes_what_is_not_finite(dataset: str) -> None:
    env = load_environment(PluginHost(), f"reasoning-gym/{dataset}", {"allow_faulty": True})
    task = env.task(TaskKey(f"reasoning-gym/{dataset}", "train", 0))
    reference = env.reference(task)
    texts = (*SPELLINGS[:20], "nanj", "NaN + nanj", "infi", "1e9999999", "3e999 - 6i", "1_0e400")
    hostile = [f"<answer>{text}</answer>" for text in texts]
    for text in (*hostile, re.sub(r"-?\d+(\.\d+)?", "NaN", reference)):
        verdict = env.verify(task, Rollout((Message("assistant", text),)))
        assert not verdict.passed, text
        assert verdict.rewards["reward"].value < 1, text
    assert env.verify(task, Rollout((Message("assistant", reference),))).passed


@pytest.mark.parametrize("value", NOT_FINITE, ids=range(len(NOT_FINITE)))
def test_what_is_not_a_finite_number_equals_nothing(value: Any) -> None:
    started = time.process_time()
    assert finite_number(value) is None
    for expected in (value, 5, 5.0, Decimal(5), float("inf"), 1):
        assert not same_number(value, expected)
        assert not same_number(value, expected, relative=0.5, absolute=1e300)
        assert not same_number(expected, value, relative=0.5, absolute=1e300)
    assert time.process_time() - started < 0.5


def test_finite_numbers_of_all_kinds_are_compared_exactly_or_within_a_tolerance() -> None:
    for value in (5, 5.0, Decimal("5.00"), Fraction(10, 2), np.float32(5), np.array(5)):
        assert same_number(value, 5)
        assert not same_number(value, 6)
        assert same_number(value, 5.4, absolute=0.5)
        assert same_number(value, 5.0001, relative=1e-4)
        assert not same_number(value, 5.01, relative=1e-4)
    assert same_number(-0.0, 0)
    assert same_number(Decimal("-0"), 0.0)
    assert same_number(10**400, 10**400)
    assert not same_number(10**400, 10**400 + 1)
    assert not same_number(1e308, -1e308, relative=0.99)
    assert not same_number(0.1, Decimal("0.1"))
    assert not same_number(1.7e308, 1, relative=0.99), "the tolerance is a share of the right one"
    for tolerance in ({"relative": 1.0}, {"relative": -0.1}, {"absolute": float("inf")}):
        with pytest.raises(ValueError, match="tolerances"):
            same_number(1, 1, **tolerance)


def test_rewards_that_are_not_finite_are_refused_and_reach_nothing() -> None:
    for value in (float("inf"), float("-inf"), float("nan"), 10**400, Fraction(-(10**400))):
        with pytest.raises(ValueError, match="return a finite number"):
            reward_of(value, function="'f'")
    assert not reaches(float("inf"))
    assert not same_reward(float("inf"), float("inf"))
    assert as_float(-(10**400)) == float("-inf")


def test_a_row_of_a_dataset_with_an_enormous_number_is_read_or_refused_at_once() -> None:
    started = time.process_time()
    assert answers_of({"a": 10**400}, field="a", pattern="") == (str(10**400),)
    for value, why in (
        (Decimal("1e999999999"), "thousands of digits"),
        (10**6000, "thousands of digits"),
        (Decimal("sNaN"), "is NaN"),
        (Decimal("-Infinity"), "is infinite"),
    ):
        with pytest.raises(BadAnswerError, match=why):
            answers_of({"a": value}, field="a", pattern="")
    assert time.process_time() - started < 0.5
