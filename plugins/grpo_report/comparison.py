"""Compare two evaluations of the same tasks: paired differences, a test, and what flipped."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_core import ConfigError, TaskKey
from grpo_core.api.figures import Gain, paired_gain
from grpo_core.api.runs import ATTEMPTS, JsonObject, Kind, RunFolder, kind_of, read_lines
from grpo_core.protocol.ties import difference

_EXACT_TASKS = 14
"""With so few tasks all signs are tried; with more, random ones."""
_DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Attempts:
    """The scored attempts at one task."""

    rewards: tuple[float, ...]
    passed: tuple[bool, ...]
    texts: tuple[str, ...]
    """The policy's last message of each."""

    @property
    def pass_rate(self) -> float:
        """Return the share of attempts that passed."""
        return fmean(self.passed)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The attempts of one evaluation, by task; errors are left out."""

    name: str
    tasks: Mapping[TaskKey, Attempts]
    errors: int
    """Attempts that could not be judged."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired difference of the means over tasks."""

    gain: Gain
    p_value: float
    """Chance of a difference at least as large if A and B were exchangeable in each task."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A on the tasks that both have."""

    reward: Difference
    pass_rate: Difference
    better: tuple[TaskKey, ...]
    """Tasks that B passes more often, the largest differences first."""
    worse: tuple[TaskKey, ...]
    """Tasks that A passes more often, the largest differences first."""
    only_one: int
    """Tasks that only one of them has."""


def read_evaluation(path: Path, step: int | None) -> Evaluation:
    """Return the evaluation in a run folder, or in what `grpo eval` wrote.

    Args:
        path: the folder of a run or of an evaluation at an endpoint, or a file of attempts.
        step: of a run, the step after which it was evaluated; None: the last one.

    Raises:
        ConfigError: there is none.
    """
    # A file that the user names may be a link; one in a folder may come from a stranger.
    attempts = path / ATTEMPTS if path.is_dir() else path.resolve()
    if os.path.lexists(attempts):
        return _evaluation(str(path), _last_lines(read_lines(attempts)))
    if not path.is_dir():
        raise ConfigError(
            f"{path} does not exist; name a run folder, a folder of grpo eval --endpoint, or a "
            "file of grpo eval --attempts"
        )
    folder = RunFolder.open(path)
    steps = [
        int(line["step"]) for line in folder.metric_lines() if kind_of(line) is Kind.EVALUATION
    ]
    if not steps or (step is not None and step not in steps):
        known = ", ".join(map(str, sorted(set(steps))))
        found = (
            f"was evaluated after the steps {known}, not after {step}"
            if known
            else ("holds no evaluation")
        )
        raise ConfigError(
            f"the run {path} {found}; measure it with grpo eval --run {path} --attempts FILE"
        )
    chosen = steps[-1] if step is None else step
    lines = (line for line in folder.rollout_lines([chosen]) if line["key"]["split"] == "eval")
    return _evaluation(f"{path}, step {chosen}", lines)


def _last_lines(lines: Iterable[JsonObject]) -> Iterable[JsonObject]:
    """Return the last line about each attempt; one that failed, or waits for others, has several.

    Those without a verdict are left out. Lines that are no attempts are returned as they are.
    """
    last = {
        (json.dumps(line.get("key"), sort_keys=True), line.get("attempt")): line for line in lines
    }
    return [line for line in last.values() if line.get("verdict", "") is not None]


def compare(a: Evaluation, b: Evaluation, *, seed: int = 0) -> Comparison:
    """Return how B differs from A on the tasks that both have.

    Raises:
        ConfigError: they share fewer than two tasks.
    """
    shared = [key for key in a.tasks if key in b.tasks]
    if len(shared) < 2:
        raise ConfigError(
            f"{a.name} and {b.name} share {len(shared)} tasks, and a comparison needs two or "
            "more; evaluate both on the same tasks (environment, level, --tasks)"
        )
    changes = {key: b.tasks[key].pass_rate - a.tasks[key].pass_rate for key in shared}
    by_size = sorted(shared, key=lambda key: -abs(changes[key]))
    return Comparison(
        _difference(
            {key: fmean(a.tasks[key].rewards) for key in shared},
            {key: fmean(b.tasks[key].rewards) for key in shared},
            seed,
        ),
        _difference(
            {key: a.tasks[key].pass_rate for key in shared},
            {key: b.tasks[key].pass_rate for key in shared},
            seed,
        ),
        better=tuple(key for key in by_size if changes[key] > 0),
        worse=tuple(key for key in by_size if changes[key] < 0),
        only_one=len(a.tasks.keys() ^ b.tasks.keys()),
    )


def sign_flip_p_value(differences: Sequence[float], *, seed: int = 0) -> float:
    """Return the p-value of a mean difference by flipping the signs of the differences (Fisher).

    All signs are tried for up to 14 tasks that differ; for more, 10,000 random ones, with the
    observed one counted among them.
    """
    values = [value for value in differences if value]
    observed = abs(sum(values)) * (1 - 1e-12)
    if not values:
        return 1.0
    if len(values) <= _EXACT_TASKS:
        flips = list(product((-1, 1), repeat=len(values)))
        extreme = sum(_flipped(values, signs) >= observed for signs in flips)
        return extreme / len(flips)
    rng = random.Random(seed)
    extreme = sum(
        _flipped(values, rng.choices((-1, 1), k=len(values))) >= observed for _ in range(_DRAWS)
    )
    return (extreme + 1) / (_DRAWS + 1)


def _flipped(values: Sequence[float], signs: Sequence[int]) -> float:
    return abs(sum(value * sign for value, sign in zip(values, signs, strict=True)))


def _difference(
    before: Mapping[TaskKey, float], after: Mapping[TaskKey, float], seed: int
) -> Difference:
    gain = paired_gain(before, after)
    assert gain is not None
    return Difference(
        gain,
        sign_flip_p_value([difference(before[key], after[key]) for key in before], seed=seed),
    )


def _evaluation(name: str, lines: Iterable[JsonObject]) -> Evaluation:
    verdicts: defaultdict[TaskKey, list[tuple[float, bool, str]]] = defaultdict(list)
    errors = 0
    for line in lines:
        verdict: Any = line.get("verdict")
        if not isinstance(verdict, dict) or not isinstance(line.get("key"), dict):
            raise ConfigError(
                f"{name} holds lines that are no attempts; name a run folder, or a file of "
                "grpo eval --attempts"
            )
        if verdict["error"] is not None:
            errors += 1
            continue
        said = [each["content"] for each in line["messages"] if each["role"] == "assistant"]
        verdicts[TaskKey(**line["key"])].append(
            (verdict["total"], verdict["passed"], said[-1] if said else "")
        )
    return Evaluation(
        name,
        {key: Attempts(*map(tuple, zip(*values, strict=True))) for key, values in verdicts.items()},
        errors,
    )
