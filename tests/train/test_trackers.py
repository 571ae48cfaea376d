"""Metrics in trackers: real ones, without network; one that fails costs a line and nothing else."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from accelerate import tracking
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grpo_core import ConfigError, MissingExtraError
from grpo_core.runs.lines import read_lines

from .runs import Heard
from .trained import trained


def run(settings: dict[str, Any], folder: Path, names: str) -> Heard:
    more = {"steps": 3, "group_size": 2, "eval": {"tasks": 4}, "log": {"trackers": names}}
    return trained(folder, settings, more)[1]


def metrics(folder: Path, name: str) -> dict[int, float]:
    return {
        line["step"]: line[name]
        for line in read_lines(folder / "metrics.jsonl")
        if line.get(name) is not None
    }


@pytest.mark.slow
def test_tensorboard_holds_what_the_log_holds_and_the_settings(settings, tmp_path):
    run(settings, tmp_path / "run", "tensorboard")
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for name in ("reward/mean", "kl", "loss", "eval/reward/mean"):
        seen = {event.step: event.value for event in found.Scalars(name)}
        assert seen == pytest.approx(metrics(tmp_path / "run", name))
    (settings_file,) = (tmp_path / "run" / "tensorboard").glob("*/hparams.yml")
    assert "optimizer.lr: 0.01" in settings_file.read_text()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_wandb_keeps_the_run_without_a_network(settings, tmp_path):
    heard = run(settings, tmp_path / "run", "wandb")
    assert not any("wandb" in warning for warning in heard.warnings)
    # accelerate up to 1.10 opens a run again to add its settings: one id, and so one run, in two files.
    *_, file = files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1
    # Records of a name and its value as JSON. wandb's own process writes, and may end later than the run.
    values = metrics(tmp_path / "run", "reward/mean").values()
    wanted = [b"reward/mean", *(json.dumps(value).encode() for value in values)]
    deadline = time.monotonic() + 60
    while not all(record in file.read_bytes() for record in wanted):
        assert time.monotonic() < deadline, file.read_bytes()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_one_that_fails_is_said_once_and_the_others_and_the_run_go_on(
    settings, tmp_path, monkeypatch
):
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on the server")

    monkeypatch.setattr(tracking.WandBTracker, "log", full)
    heard = run(settings, tmp_path / "run", "wandb,tensorboard")
    warning, at_the_end = [warning for warning in heard.warnings if "wandb" in warning]
    assert "the tracker 'wandb' failed in EvaluationEnded" in warning
    assert at_the_end.startswith("the tracker 'wandb' (after step 0) failed during the run")
    assert "no space left on the server" in warning
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert len(events.Scalars("loss")) == 3


def test_one_that_is_not_installed_or_known_is_refused_before_anything_is_written(
    settings, tmp_path, monkeypatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"log\.trackers=mlflow.*grpo-core\[trackers\]"):
        run(settings, tmp_path / "run", "mlflow")
    known = "it has to be tensorboard, wandb, mlflow, trackio or plugin:NAME"
    with pytest.raises(ConfigError, match=known):
        run(settings, tmp_path / "run", "tensorbord")
    assert not (tmp_path / "run").exists()
