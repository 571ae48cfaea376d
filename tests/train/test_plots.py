"""The pictures of a run: all that its metrics have, nothing that they have not."""

import json
from pathlib import Path

import pytest

from grpo_core.config.overrides import build_config
from grpo_core.train.trainer import Trainer
from grpo_report.plots import draw_plots

from .letters import Answered
from .short_runs import QUICK, grpo, ran


def drawn(run: Path, out: Path) -> dict[str, str]:
    """The SVG of every picture, in which labels are text."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        paths = draw_plots(run, out, kinds=("svg",))
    return {path.stem: path.read_text() for path in paths}


@pytest.mark.slow
def test_a_run_is_drawn_with_every_part_and_every_phase(settings, tmp_path):
    more = {"environment": "arithmetic", "steps": 3, "eval": {"tasks": 4, "every": 2}}
    Trainer(build_config([settings, more]), folder=tmp_path / "run").run()
    found = drawn(tmp_path / "run", tmp_path)
    expected = {
        "kl_divergence": ["per token", "per completion"],
        "reward_parts": ["format", "close", "exact"],
        "time": ["rollout", "update", "in format", "in exact"],
        "training_curve": ["reward (training)", "reward (held-out)", "pass rate (held-out)"],
    }
    assert sorted(found) == list(expected)
    for name, label in [(name, label) for name, labels in expected.items() for label in labels]:
        assert f">{label}" in found[name] or f"{label}<" in found[name], (name, label)


@pytest.mark.slow
def test_what_was_not_measured_is_not_drawn(settings, tmp_path):
    ran(settings, tmp_path / "warm", {**QUICK, "method": "sft", "steps": 2}, env=Answered())
    found = drawn(tmp_path / "warm", tmp_path)
    assert sorted(found) == ["time", "training_curve"]
    assert ">loss<" in found["training_curve"]


@pytest.mark.slow
def test_the_command_writes_both_kinds_of_file_and_says_where(settings, tmp_path):
    """Also of a run without a reference."""
    ran(settings, tmp_path / "run", {**QUICK, "steps": 2, "kl.beta": 0})
    done = grpo("plot", tmp_path / "run", "--out", tmp_path / "new" / "pictures")
    paths = [Path(line) for line in done.output.splitlines()]
    plots = ("training_curve", "reward_parts", "time")
    assert [path.name for path in paths] == [
        f"{n}.{kind}" for n in plots for kind in ("png", "svg")
    ]
    assert all(path.stat().st_size > 1000 for path in paths)
    assert paths[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("value", ["fast", [[]], {"a": 1}, 10**400, 1e308, float("nan")])
def test_a_metric_that_is_not_a_number_is_named(tmp_path, value):
    (tmp_path / "config.json").write_text("{}")
    line = {"kind": "step", "step": 1, "reward/mean": 0.5, "verify/seconds/format": value}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    said = " ".join(grpo("plot", tmp_path, status=2).output.split())
    assert "'verify/seconds/format' is not a number" in said


def test_a_folder_without_a_step_is_one_line(tmp_path):
    assert "holds no run" in grpo("plot", tmp_path, status=2).output
    (tmp_path / "config.json").write_text("{}")
    assert "has no step" in grpo("plot", tmp_path, status=2).output
