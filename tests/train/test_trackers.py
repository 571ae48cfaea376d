"""Metrics in trackers: real ones, without network; one that fails costs a line and nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from accelerate import tracking
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError, MissingExtraError
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.trainer import Trainer

from .letters import Letters


class Heard(Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def run(settings: dict[str, Any], folder: Path, names: str, **more: Any) -> Heard:
    heard = Heard()
    config = build_config(
        [settings, {"steps": 3, "eval": {"tasks": 4}, "log": {"trackers": names}, **more}]
    )
    Trainer(config, Letters(), folder=folder, observer=heard).run()
    return heard


def metrics(folder: Path, name: str) -> dict[int, float]:
    return {
        line["step"]: line[name]
        for line in read_lines(folder / "metrics.jsonl")
        if line.get(name) is not None
    }


def test_tensorboard_holds_what_the_log_holds_and_the_settings(settings, tmp_path):
    run(settings, tmp_path / "run", "tensorboard")
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for name in ("reward/mean", "kl", "loss", "eval/reward/mean"):
        seen = {event.step: event.value for event in found.Scalars(name)}
        assert seen == pytest.approx(metrics(tmp_path / "run", name))
    (settings_file,) = (tmp_path / "run" / "tensorboard").glob("*/hparams.yml")
    assert "optimizer.lr: 0.01" in settings_file.read_text()


def test_wandb_keeps_the_run_without_a_network(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert not any(
        "wandb" in warning for warning in run(settings, tmp_path / "run", "wandb").warnings
    )
    # accelerate up to 1.10 opens a run again to add its settings: one id, and so one run, in two files.
    *_, file = files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1
    wanted = [
        b"reward/mean",
        *(
            json.dumps(value).encode()
            for value in metrics(tmp_path / "run", "reward/mean").values()
        ),
    ]
    deadline = (
        time.monotonic() + 60
    )  # wandb's own process writes, and on a busy machine may end later than the run
    while not all(
        record in file.read_bytes() for record in wanted
    ):  # records of a name and its value as JSON
        assert time.monotonic() < deadline, file.read_bytes()
        time.sleep(0.1)


def test_one_that_fails_is_said_once_and_the_others_and_the_run_go_on(
    settings, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on the server")

    monkeypatch.setattr(tracking.WandBTracker, "log", full)
    heard = run(settings, tmp_path / "run", "wandb,tensorboard")
    (warning,) = [warning for warning in heard.warnings if "wandb" in warning]
    assert "the tracker 'wandb' failed in EvaluationEnded" in warning
    assert "no space left on the server" in warning
    assert (
        len(EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload().Scalars("loss")) == 3
    )


def test_one_that_is_not_installed_or_known_is_refused_before_anything_is_written(
    settings, tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"log\.trackers=mlflow.*grpo-core\[trackers\]"):
        run(settings, tmp_path / "run", "mlflow")
    with pytest.raises(
        ConfigError, match=r"it has to be tensorboard, wandb, mlflow, trackio or plugin:NAME"
    ):
        run(settings, tmp_path / "run", "tensorbord")
    assert not (tmp_path / "run").exists()
