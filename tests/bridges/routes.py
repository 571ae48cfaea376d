"""Two ways to a verdict: that of a run, and TRL's call of the reward functions."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from grpo_core import Rollout, TaskKey, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.verify.sources import Sources
from grpo_trl import RewardFunction


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


def assert_equal(
    columns: Sequence[Sequence[float | None]],
    weights: Sequence[float],
    verdicts: Sequence[Verdict],
) -> None:
    """Compare the parts of each row with its verdict: the same numbers, the same total, None for what was not judged."""
    for values, verdict in zip(zip(*columns, strict=True), verdicts, strict=True):
        if not verdict.scored:
            assert values == (None,) * len(weights), verdict.error
            continue
        assert list(values) == [part.value for part in verdict.rewards.values()]
        total = sum(w * v for w, v in zip(weights, values, strict=True))  # type: ignore[operator]
        assert abs(total - verdict.total) < 1e-9
