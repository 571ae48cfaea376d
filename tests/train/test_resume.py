"""A run goes on with what it began with; what has changed is shown and has to be named."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from grpo_core import Rollout, Task, Verdict
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.observer import Observer
from grpo_core.train.trainer import Trainer
from grpo_core.train.update.optimizer import rate

from .killing import killed
from .letters import Letters


class Stricter(Letters):
    """The same name in the run, another verifier."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return super().verify(task, rollout)


class Few(Letters):
    def size(self, split: str) -> int:
        return 16


class Heard(Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def interrupted(settings: dict[str, Any], tmp_path: Path) -> Path:
    """A run of six steps that was killed after step 3, with a checkpoint of step 2."""

    more = {"steps": 6, "eval": {"tasks": 4}, "checkpoint": {"every": 2}}
    with killed(tmp_path / "run", step=3) as observer:
        Trainer(
            build_config([settings, more]), Letters(), folder=tmp_path / "run", observer=observer
        ).run()
    return tmp_path / "run"


def edit(folder: Path, section: str, key: str, value: object) -> None:
    """As a person would who follows the message about an edited file."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("digest", None)
    config[section][key] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_edited_settings_are_shown_and_refused_and_nothing_is_lost(interrupted: Path) -> None:
    before = (interrupted / "metrics.jsonl").read_bytes()
    edit(interrupted, "optimizer", "lr", 0.5)
    edit(interrupted, "kl", "beta", 0.7)
    with pytest.raises(
        ConfigError,
        match=r"optimizer\.lr was 0\.01, is 0\.5; kl\.beta was 0\.12, is 0\.7\. Restore them, or .*--allow KEY",
    ):
        Trainer.resumed(interrupted, Letters())
    assert (interrupted / "metrics.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match=r"checkpoint: kl\.beta was 0\.12, is 0\.7\. Restore"):
        Trainer.resumed(interrupted, Letters(), allow=["optimizer"])
    assert Trainer.resumed(interrupted, Letters(), allow=["optimizer.lr", "kl.beta"]).done == 2


def test_a_setting_can_be_changed_by_name_and_is_what_the_run_is_from_then_on(
    interrupted: Path,
) -> None:
    trainer = Trainer.resumed(interrupted, Letters(), changes={"steps": 8, "checkpoint.every": 1})
    assert trainer.method.total == 8
    trainer.run()
    stored = json.loads((interrupted / "config.json").read_text())
    assert (stored["steps"], stored["checkpoint"]["every"], stored["optimizer"]["lr"]) == (
        8,
        1,
        0.01,
    )
    assert [
        line["step"] for line in read_lines(interrupted / "metrics.jsonl") if "loss" in line
    ] == list(range(1, 9))


def later(folder: Path) -> list[dict[str, Any]]:
    """The logged steps after the checkpoint."""
    return [
        line for line in read_lines(folder / "metrics.jsonl") if "loss" in line and line["step"] > 2
    ]


def test_a_changed_optimizer_acts_from_the_first_resumed_step_on(interrupted: Path) -> None:
    changes = {
        "optimizer.lr": 0.001,
        "optimizer.weight_decay": 0.3,
        "optimizer.betas": [0.5, 0.7],
        "kl.beta": 0.5,
    }
    trainer = Trainer.resumed(interrupted, Letters(), changes=changes)
    (group,) = trainer.method.updater.optimizer.param_groups
    assert (group["weight_decay"], group["betas"], group["initial_lr"]) == (0.3, (0.5, 0.7), 0.001)
    trainer.run()
    plan = trainer.config.schedule
    assert [line["lr"] for line in later(interrupted)] == [
        0.001 * rate(done, 6, plan) for done in range(2, 6)
    ]
    assert {line["beta"] for line in later(interrupted)} == {0.5}


def test_more_steps_stretch_the_schedule_from_the_first_resumed_step_on(interrupted: Path) -> None:
    trainer = Trainer.resumed(interrupted, Letters(), changes={"steps": 12, "trainer.mu": 2})
    trainer.run()
    plan = trainer.config.schedule
    assert later(interrupted)[0]["lr"] == pytest.approx(
        0.01 * (rate(4, 24, plan) + rate(5, 24, plan)) / 2
    )
    assert len(later(interrupted)) == 10


@pytest.mark.slow
def test_a_run_that_was_resumed_with_other_settings_is_resumed_again_without_naming_them(
    interrupted: Path,
) -> None:
    """Also if nothing was done in between, as after a kill."""
    changes = {"optimizer.lr": 0.001, "kl.beta": 0.5, "steps": 8, "optimizer.name": "adamw8bit"}
    Trainer.resumed(interrupted, Letters(), changes=changes)
    gc.collect()
    again = Trainer.resumed(interrupted, Letters())
    assert (again.done, again.method.total, again.method.updater.beta) == (2, 8, 0.5)
    (said,) = [
        line
        for line in (interrupted / "log.txt").read_text().splitlines()
        if line.startswith("from step 3 on: ")
    ]
    assert "optimizer.lr was 0.01, is 0.001" in said
    assert said.count(" was ") == 4
    again.run()
    plan = again.config.schedule
    assert [line["lr"] for line in later(interrupted)] == [
        0.001 * rate(done, 8, plan) for done in range(2, 8)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("adamw", "adamw8bit"), ("adamw8bit", "adamw")])
def test_another_optimizer_begins_without_running_means_and_this_is_said(
    settings: dict[str, Any], tmp_path: Path, before: str, after: str
) -> None:
    more = {"steps": 3, "eval": {"tasks": 0}, "optimizer": {"name": before}}
    trainer = Trainer(build_config([settings, more]), Letters(), folder=tmp_path / "run")
    trainer.observer.step = lambda number, total, metrics: trainer.request_stop()  # type: ignore[method-assign]
    trainer.run()
    observer = Heard()
    again = Trainer.resumed(
        tmp_path / "run", Letters(), changes={"optimizer.name": after}, observer=observer
    )
    said = [text for text in observer.warnings if "running means" in text]
    assert said == [
        f"the checkpoint holds the running means of {before}; {after} begins without any"
    ]
    assert not again.method.updater.optimizer.state
    again.run()
    assert again.folder.finished


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "changes", "total"),
    [
        ({"advantage": {"name": "maxk", "k": 2}}, {"advantage.name": "grpo"}, 6),
        ({}, {"advantage.name": "maxk", "advantage.k": 2}, 6),
        ({}, {"epochs": 2}, 8),
        ({"steps": None, "epochs": 2}, {"steps": 9}, 9),
    ],
)
def test_a_change_takes_back_what_excludes_it(
    settings: dict[str, Any],
    tmp_path: Path,
    before: dict[str, Any],
    changes: dict[str, Any],
    total: int,
) -> None:
    more = {"steps": 6, "eval": {"tasks": 0}, "checkpoint": {"every": 1}, **before}
    trainer = Trainer(build_config([settings, more]), Few(), folder=tmp_path / "run")
    trainer.observer.step = lambda number, total, metrics: trainer.request_stop()  # type: ignore[method-assign]
    trainer.run()
    again = Trainer.resumed(tmp_path / "run", Few(), changes=changes)
    assert (again.done, again.method.total) == (1, total)
    again.run()
    assert again.folder.finished


@pytest.mark.slow
def test_a_changed_level_is_trained_at_and_that_there_is_no_gain_is_said(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    more = {"steps": 4, "eval": {"tasks": 4}, "checkpoint": {"every": 1}}
    trainer = Trainer(build_config([settings, more]), Letters(), folder=tmp_path / "run")
    trainer.observer.step = lambda number, total, metrics: trainer.request_stop()  # type: ignore[method-assign]
    trainer.run()
    observer = Heard()
    assert (
        Trainer.resumed(
            tmp_path / "run", Letters(), changes={"level": 0.7}, observer=observer
        ).run()
        == {}
    )
    assert any("no gains can be reported" in text for text in observer.warnings)
    lines = list(RunFolder(tmp_path / "run").rollout_lines())
    levels = {
        (line["step"], line["key"]["level"]) for line in lines if line["key"]["split"] == "train"
    }
    assert levels == {(1, 0.0), (2, 0.7), (3, 0.7), (4, 0.7)}


def test_a_run_goes_on_with_its_method(interrupted: Path) -> None:
    before = (interrupted / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=r"is a run of method grpo and cannot continue with sft"):
        Trainer.resumed(interrupted, Letters(), changes={"method": "sft"})
    assert (interrupted / "config.json").read_bytes() == before


@pytest.mark.slow
def test_a_beta_that_was_adapted_is_kept_unless_another_is_configured(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    more = {
        "steps": 2,
        "eval": {"tasks": 0},
        "checkpoint": {"every": 1},
        "kl": {"beta": 0.1, "target": 1e-9, "horizon": 24},
    }
    trainer = Trainer(build_config([settings, more]), Letters(), folder=tmp_path / "run")
    trainer.observer.step = lambda number, total, metrics: trainer.request_stop()  # type: ignore[method-assign]
    trainer.run()
    assert (
        Trainer.resumed(tmp_path / "run", Letters()).method.updater.beta
        == trainer.method.updater.beta
        != 0.1
    )
    assert (
        Trainer.resumed(tmp_path / "run", Letters(), changes={"kl.beta": 0.3}).method.updater.beta
        == 0.3
    )


@pytest.mark.slow
@pytest.mark.parametrize("lora", [True, False])
def test_a_reference_that_follows_from_a_resume_on_begins_as_the_model_before_training(
    settings: dict[str, Any], tmp_path: Path, lora: bool
) -> None:
    more = {"steps": 4, "eval": {"tasks": 0}, "lora": {"enabled": lora}, "checkpoint": {"every": 1}}
    trainer = Trainer(build_config([settings, more]), Letters(), folder=tmp_path / "run")
    start = {name: p.detach().clone() for name, p in trainer.actor.policy.trainable()}
    trainer.observer.step = lambda number, total, metrics: trainer.request_stop()  # type: ignore[method-assign]
    trainer.run()
    again = Trainer.resumed(tmp_path / "run", Letters(), changes={"kl.refresh_every": 2})
    assert again.done == 1
    assert all(
        torch.equal(weight, start[name])
        for name, weight in again.actor.policy.reference.weights().items()
    )
    assert not all(torch.equal(p, start[name]) for name, p in again.actor.policy.trainable())
    again.run()
    kls = [line["kl"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert [abs(kl) < 1e-6 for kl in kls] == [
        True,
        False,
        True,
        False,
    ]  # 0 in the step after the refresh


def test_another_environment_under_the_same_name_is_refused_unless_it_is_allowed(
    interrupted: Path,
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"environment 'letters' has changed since the run began .* --allow letters",
    ):
        Trainer.resumed(interrupted, Stricter())
    trainer = Trainer.resumed(interrupted, Stricter(), allow=["letters"])
    assert trainer.done == 2
    stored = json.loads((interrupted / "config.json").read_text())
    assert stored["provenance"]["environments"] == {"letters": Stricter().fingerprint()}
    assert Trainer.resumed(interrupted, Stricter()).done == 2


def test_the_command_line_has_the_same_words_for_it(interrupted: Path) -> None:
    config = json.loads((interrupted / "config.json").read_text())
    config["environment"] = f"{Path(__file__).parent / 'letters.py'}:Letters"
    del config["digest"]
    (interrupted / "config.json").write_text(json.dumps(config))
    done = CliRunner().invoke(app, ["run", "--resume", str(interrupted), "--trust"])
    assert done.exit_code == 2
    assert "environment was 'letters', is " in done.output
    done = CliRunner().invoke(
        app, ["run", "--resume", str(interrupted), "--allow", "environment", "--set", "steps=3"]
    )
    assert done.exit_code == 0, done.output
    assert "after step 2 of 3" in done.output


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "size"),
    [("trainable.safetensors", 100), ("state.pt", 0), ("state.pt", 1000), ("progress.json", 100)],
)
def test_a_damaged_checkpoint_is_named_and_can_be_gone_without(
    interrupted: Path, name: str, size: int
) -> None:
    (newest,) = (interrupted / "checkpoints").iterdir()
    file = newest / name
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(
        ConfigError, match=rf"{newest.name} is damaged: {re.escape(name)} .* --from start"
    ):
        Trainer.resumed(interrupted, Letters())
    trainer = Trainer.resumed(interrupted, Letters(), start_from="start")
    assert trainer.done == 0
    trainer.run()
    assert [
        line["step"] for line in read_lines(interrupted / "metrics.jsonl") if "loss" in line
    ] == [1, 2, 3, 4, 5, 6]


def test_two_trainers_of_one_run_in_one_process_keep_other_processes_out_until_both_are_done(
    interrupted: Path,
) -> None:
    """A notebook makes a second one before it lets go of the first."""
    first = Trainer.resumed(interrupted, Letters())
    second = Trainer.resumed(interrupted, Letters())
    second.run()
    assert taken(interrupted)
    del first, second
    gc.collect()
    assert not taken(interrupted)


def taken(folder: Path) -> bool:
    """Whether another process is kept from writing."""
    program = "import sys; from pathlib import Path; from grpo_core.runs.hold import hold; hold(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or "another process is writing the run" in done.stderr
    return done.returncode != 0
