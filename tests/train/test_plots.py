"""The pictures of a run: all that its metrics have, nothing that they have not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError
from grpo_core.report.plots import draw_plots
from grpo_core.train.trainer import Trainer

from .letters import Answered, Letters


def drawn(run: Path, out: Path) -> dict[str, str]:
    """The SVG of every picture, in which labels are text."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        paths = draw_plots(run, out, kinds=("svg",))
    return {path.stem: path.read_text() for path in paths}


@pytest.mark.slow
def test_a_run_is_drawn_with_every_part_and_every_phase(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    more = {"environment": "arithmetic", "steps": 3, "eval": {"tasks": 4, "every": 2}}
    Trainer(build_config([settings, more]), folder=tmp_path / "run").run()
    out = tmp_path / "out"
    out.mkdir()
    found = drawn(tmp_path / "run", out)
    assert sorted(found) == ["kl_divergence", "reward_parts", "time", "training_curve"]
    for name, labels in {
        "training_curve": ["reward (training)", "reward (held-out)", "pass rate (held-out)"],
        "kl_divergence": ["per token", "per completion"],
        "reward_parts": ["format", "close", "exact"],
        "time": ["rollout", "update", "in format", "in exact"],
    }.items():
        for label in labels:
            assert f">{label}" in found[name] or f"{label}<" in found[name], (name, label)


@pytest.mark.slow
def test_what_was_not_measured_is_not_drawn(settings: dict[str, Any], tmp_path: Path) -> None:
    config = build_config([settings, {"method": "sft", "steps": 2, "eval": {"tasks": 0}}])
    Trainer(config, Answered(), folder=tmp_path / "warm").run()
    found = drawn(tmp_path / "warm", tmp_path)
    assert sorted(found) == ["time", "training_curve"]
    assert ">loss<" in found["training_curve"]


def test_a_picture_that_cannot_be_drawn_does_not_hide_how_the_run_ended(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path) -> None:
        raise ConfigError(f"{folder} cannot be drawn")

    monkeypatch.setattr("grpo_core.cli.training.draw_plots", broken)
    options = [
        "--env",
        f"{Path(__file__).parent / 'letters.py'}:Letters",
        "--model",
        str(tiny_folder),
        "--steps",
        "1",
    ]
    done = CliRunner().invoke(
        app, ["run", *options, "--set", "eval.tasks=0", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    assert "the plots could not be drawn" in done.output
    assert "the trained adapter is in" in done.output


@pytest.mark.slow
def test_the_command_writes_both_kinds_of_file_and_says_where(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    Trainer(
        build_config([settings, {"steps": 2, "kl": {"beta": 0}, "eval": {"tasks": 0}}]),
        Letters(),
        folder=tmp_path / "run",
    ).run()
    done = CliRunner().invoke(
        app, ["plot", str(tmp_path / "run"), "--out", str(tmp_path / "new" / "pictures")]
    )
    assert done.exit_code == 0, done.output
    paths = [Path(line) for line in done.output.splitlines()]
    assert [path.name for path in paths] == [
        f"{name}.{kind}"
        for name in ("training_curve", "reward_parts", "time")
        for kind in ("png", "svg")
    ]
    assert all(path.stat().st_size > 1000 for path in paths)
    assert paths[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("value", ["fast", [[]], {"a": 1}, 10**400, 1e308, float("nan")])
def test_a_metric_that_is_not_a_number_is_named(tmp_path: Path, value: object) -> None:
    (tmp_path / "config.json").write_text("{}")
    line = {"kind": "step", "step": 1, "reward/mean": 0.5, "verify/seconds/format": value}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    done = CliRunner().invoke(app, ["plot", str(tmp_path)])
    assert done.exit_code == 2, done.exception
    assert "'verify/seconds/format' is not a number" in " ".join(done.output.split())


def test_a_folder_without_a_step_is_one_line(tmp_path: Path) -> None:
    for config, message in ((None, "holds no run"), ({}, "has no step")):
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        done = CliRunner().invoke(app, ["plot", str(tmp_path)])
        assert done.exit_code == 2
        assert message in done.output
