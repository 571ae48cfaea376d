"""The bridge to TRL without TRL: how its trainer calls reward functions, the keys in the rows, and that verdicts are those of a run."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_core import GrpoError, Message, Rollout, RunStoppedError, TaskKey, UserError, Verdict
from grpo_core.bridges.trl import (
    OpenEnvironment,
    RewardFunction,
    dataset,
    opened,
    reward_functions,
    rollout_func,
    task_keys,
)
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import MissingExtraError
from grpo_core.verify.sources import Sources

HERE = Path(__file__).parent
SPELLING = f"{HERE / 'spelling.py'}:Spelling"
TALKING = f"{HERE / 'spelling.py'}:Talking"
ALL_MAY_FAIL = {"verify": {"max_error_rate": 1.0, "retries": 0}}


@pytest.fixture(scope="module")
def spelling() -> Iterator[OpenEnvironment]:
    with opened(SPELLING, ALL_MAY_FAIL) as env:
        yield env


def rows_of(env: OpenEnvironment, count: int, split: Any = "train") -> list[dict[str, Any]]:
    return list(dataset(env, split, count))


def call(
    functions: Sequence[RewardFunction],
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    *,
    step: int = 0,
    ids: Sequence[Sequence[int]] | None = None,
    **more: Any,
) -> list[list[float | None]]:
    """Call reward functions one after the other, with the keywords of GRPOTrainer._calculate_rewards in TRL 1.16."""
    prompts = [row["prompt"] for row in rows]
    completions: list[Any] = [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, text in zip(rows, texts, strict=True)
    ]
    keywords: dict[str, Any] = {
        "task_key": [row["task_key"] for row in rows],
        "trainer_state": SimpleNamespace(global_step=step),
        "log_extra": lambda column, values: None,
        "log_metric": lambda name, value: None,
        **more,
    }
    completion_ids = ids or [[1, 2]] * len(rows)
    return [
        function(
            prompts=prompts, completions=completions, completion_ids=completion_ids, **keywords
        )
        for function in functions
    ]


def verdicts_of_a_run(
    environment: str,
    settings: Mapping[str, Any],
    keys: Sequence[TaskKey],
    rollouts: Sequence[Rollout],
    draw: int,
) -> list[Verdict]:
    """Judge rollouts by the way of a run, without the bridge."""
    sources = Sources.of(build_config([settings, {"environment": environment}]), {})

    async def judged() -> list[Verdict]:
        async with sources:
            tasks = await sources.tasks(keys, draw)
            return [v for (v,) in await sources.verify(tasks, [[r] for r in rollouts])]

    return asyncio.run(judged())


def test_the_functions_bear_the_names_of_the_parts_and_the_weights_are_theirs(
    spelling: OpenEnvironment,
) -> None:
    functions, weights = reward_functions(spelling)
    assert [function.__name__ for function in functions] == ["letters", "exact"]
    assert weights == [0.25, 0.75]
    with opened(SPELLING, {"weights": {"exact": 2.0}}) as env:
        assert reward_functions(env)[1] == [0.25, 2.0]


def test_a_part_is_its_value_and_none_where_nothing_could_be_judged(
    spelling: OpenEnvironment,
) -> None:
    rows = rows_of(spelling, 4)
    words = [row["prompt"][0]["content"].removeprefix("Repeat ") for row in rows]
    letters, exact = call(
        reward_functions(spelling)[0], rows, [words[0], "zz", "raise", words[3] + "zzzz"]
    )
    assert letters == [1.0, 0.0, None, 0.5]
    assert exact == [1.0, 0.0, None, 0.0]


def test_two_hundred_rewards_are_those_of_a_run_row_by_row(spelling: OpenEnvironment) -> None:
    rows = [row for row in rows_of(spelling, 25) for _ in range(8)]
    rng = random.Random(5)
    texts = []
    for number, row in enumerate(rows):
        word = row["prompt"][0]["content"].removeprefix("Repeat ")
        wrong = "".join(rng.choices("abcdefghxyz", k=rng.randrange(9)))
        hostile = rng.choice([f"{word}\0", f"{word} " * 99, "\ud800", "</s>", word[::-1]])
        texts.append((word, wrong, hostile, f"raise {number}")[number % 4])
    texts[3], texts[7] = "die", "sleep"
    functions, weights = reward_functions(spelling)
    columns = call(functions, rows, texts, step=6)
    keys = task_keys([row["task_key"] for row in rows])
    rollouts = [
        Rollout((Message("assistant", text),), token_ids=(1, 2), trainable=(1, 1)) for text in texts
    ]
    from grpo_core.train.rollout.tasks import draw_number

    expected = verdicts_of_a_run(SPELLING, ALL_MAY_FAIL, keys, rollouts, draw_number(0, 7))
    assert sum(not verdict.scored for verdict in expected) == 50
    assert sum(verdict.passed for verdict in expected) == 50
    for values, verdict in zip(zip(*columns, strict=True), expected, strict=True):
        if verdict.scored:
            assert values == tuple(part.value for part in verdict.rewards.values())
            total = sum(w * v for w, v in zip(weights, values, strict=True))
            assert total == pytest.approx(verdict.total, abs=1e-12)
        else:
            assert values == (None, None)
