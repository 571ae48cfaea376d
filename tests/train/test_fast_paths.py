"""What makes a run fast changes nothing in it: with each of it switched off, the same numbers come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_core.config.overrides import build_config, nested
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.trainer import Trainer

from .letters import Letters


def metrics(settings: dict[str, Any], folder: Path, **more: Any) -> list[dict[str, float]]:
    config = build_config(
        [
            settings,
            nested({"steps": 4, "eval.tasks": 6, "checkpoint.every": 0, "kl.beta": 0.1}),
            nested(more),
        ]
    )
    Trainer(config, Letters(), folder=RunFolder(folder)).run()
    assert len(list(RunFolder(folder).rollout_lines())) == 4 * 4 * 6 + 2 * 6
    timed = ("kind", "time/", "verify/seconds/", "memory/", "eval/seconds")
    return [
        {k: v for k, v in line.items() if not k.startswith(timed)}
        for line in read_lines(folder / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def fast_runs() -> dict[str, list[dict[str, float]]]:
    """The metrics of the run with everything on, by dtype; the first test that compares with it makes it."""
    return {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("dtype", "switch", "off"),
    [
        ("float64", "trainer.shared_prefix", False),
        ("float64", "trainer.logits_mb", 0),
        ("float64", "trainer.micro_batch_tokens", 60),
        ("float64", "sampling.max_rows", 5),
        ("float64", "sampling.kv_mb", 1),
        ("float64", "verify.overlap", False),
        ("float64", "verify.cache", "off"),
        ("float32", "sampling.prepack", False),
    ],
)
def test_a_run_without_a_fast_path_is_the_same_run(
    settings, fast_runs, tmp_path: Path, dtype: str, switch: str, off: object
) -> None:
    if dtype not in fast_runs:
        fast_runs[dtype] = metrics(settings, tmp_path / "with", **{"model.dtype": dtype})
    with_it = [dict(line) for line in fast_runs[dtype]]
    without = metrics(settings, tmp_path / "without", **{"model.dtype": dtype, switch: off})
    near = 1e-6 if dtype == "float64" else 1e-3  # the model's own norm goes through float32
    assert len(with_it) == len(without) == 6
    for a, b in zip(with_it, without, strict=True):
        a.pop("verify/cache_hit_rate", None), b.pop("verify/cache_hit_rate", None)
        assert a.keys() == b.keys()
        assert a == pytest.approx(b, rel=near, abs=near), switch
    assert with_it[1]["loss"] != with_it[4]["loss"]
