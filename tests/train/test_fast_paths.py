"""What makes a run fast or small changes nothing in it: with each of it switched, the same numbers come out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from .short_runs import ran, tiny_settings, untimed
from .test_masked import Vowels, vowels_settings

Metrics = list[dict[str, Any]]
USUAL = {"steps": 3, "eval.tasks": 4, "checkpoint.every": 0, "kl.beta": 0.1}
RECOMPUTED = {"trainer.gradient_checkpointing": True}
SWITCHES: list[tuple[str, Mapping[str, Any]]] = [
    ("float64", {"trainer.shared_prefix": False}),
    ("float64", {"trainer.logits_mb": 0}),
    ("float64", {"trainer.micro_batch_tokens": 60}),
    ("float64", RECOMPUTED),
    ("float64", {**RECOMPUTED, "model.offload": True}),
    ("float64", {"sampling.max_rows": 5}),
    ("float64", {"sampling.kv_mb": 1}),
    ("float64", {"verify.overlap": False}),
    ("float64", {"verify.cache": "off"}),
    ("float32", {"sampling.prepack": False}),
    ("masked", {"trainer.shared_prefix": False}),
    ("masked", {"trainer.logits_mb": 0}),
    ("masked", {"trainer.micro_batch_tokens": 30}),
    ("masked", {"sampling.max_rows": 2}),
]


@pytest.fixture(scope="module")
def metrics_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Metrics]:
    """Return the metrics of a run of a kind; that of the usual settings is made once."""
    place, known = tmp_path_factory.mktemp("fast"), dict[str, Metrics]()

    def metrics(kind: str, **more: Any) -> Metrics:
        if not more and kind in known:
            return known[kind]
        folder = Path(tmp_path_factory.mktemp("run")) / "run"
        if kind == "masked":
            ran(vowels_settings(place), folder, {**USUAL, **more}, env=Vowels())
        else:
            ran(tiny_settings(place), folder, {**USUAL, "model.dtype": kind, **more})
        lines = [
            {k: v for k, v in line.items() if k not in ("kind", "verify/cache_hit_rate")}
            for line in untimed(folder)
        ]
        return lines if more else known.setdefault(kind, lines)

    return metrics


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "switched"), SWITCHES, ids=str)
def test_a_run_without_a_fast_path_is_the_same_run(metrics_of, kind, switched):
    usual, other = metrics_of(kind), metrics_of(kind, **switched)
    near = 1e-3 if kind == "float32" else 1e-6  # the model's own norm goes through float32
    assert len(usual) == len(other) == 5
    for a, b in zip(usual, other, strict=True):
        assert a.keys() == b.keys()
        assert a == pytest.approx(b, rel=near, abs=near, nan_ok=True)
    assert usual[1]["loss"] != usual[3]["loss"]
