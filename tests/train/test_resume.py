"""A run goes on with what it began with; what has changed is shown and has to be named."""

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core import Rollout, Task, Verdict
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.trainer import Trainer
from grpo_core.train.update.optimizer import rate

from .killing import killed
from .letters import Letters
from .short_runs import LETTERS, Heard, grpo, make, run_until, steps_of, tiny_settings


class Stricter(Letters):
    """The same name in the run, another verifier."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return super().verify(task, rollout)


class Few(Letters):
    def size(self, split: str) -> int:
        return 16


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps that was killed after step 3, with a checkpoint of step 2."""
    place = tmp_path_factory.mktemp("killed")
    changes = {"steps": 6, "eval.tasks": 4, "checkpoint.every": 2, "prompts_per_step": 2}
    with killed(place / "run", step=3) as observer:
        make(tiny_settings(place), place / "run", changes, observer=observer).run()
    return place / "run"


@pytest.fixture
def interrupted(killed_run: Path, tmp_path: Path) -> Path:
    """A copy of the killed run."""
    return Path(shutil.copytree(killed_run, tmp_path / "run"))


def stopped(settings: dict[str, Any], folder: Path, *, env: Any = None, **changes: Any) -> Trainer:
    """Return the trainer of a run that was stopped, and saved, after its first step."""
    quick = {"eval.tasks": 0, "checkpoint.every": 1, **changes}
    return run_until(make(settings, folder, quick, env=env), 1)


def resumed(folder: Path, **changes: Any) -> Trainer:
    return Trainer.resumed(folder, Letters(), **changes)


def edit(folder: Path, section: str, key: str, value: object) -> None:
    """As a person would who follows the message about an edited file."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("digest", None)
    config[section][key] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_edited_settings_are_shown_and_refused_and_nothing_is_lost(interrupted):
    before = (interrupted / "metrics.jsonl").read_bytes()
    edit(interrupted, "optimizer", "lr", 0.5)
    edit(interrupted, "kl", "beta", 0.7)
    kl = r"kl\.beta was 0\.12, is 0\.7\. Restore"
    with pytest.raises(ConfigError, match=rf"lr was 0\.01, is 0\.5; {kl} them, or .*--allow KEY"):
        resumed(interrupted)
    assert (interrupted / "metrics.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match=rf"checkpoint: {kl}"):
        resumed(interrupted, allow=["optimizer"])
    assert resumed(interrupted, allow=["optimizer.lr", "kl.beta"]).done == 2


def test_a_setting_can_be_changed_by_name_and_is_what_the_run_is_from_then_on(interrupted):
    trainer = resumed(interrupted, changes={"steps": 4, "checkpoint.every": 1})
    assert trainer.method.total == 4
    trainer.run()
    stored = json.loads((interrupted / "config.json").read_text())
    shown = stored["steps"], stored["checkpoint"]["every"], stored["optimizer"]["lr"]
    assert shown == (4, 1, 0.01)
    assert [line["step"] for line in steps_of(interrupted)] == [1, 2, 3, 4]


def rates(folder: Path) -> list[float]:
    """Return the learning rates of the steps after the checkpoint."""
    return [line["lr"] for line in steps_of(folder) if line["step"] > 2]


def test_a_changed_optimizer_acts_from_the_first_resumed_step_on(interrupted):
    optimizer = {"lr": 0.001, "weight_decay": 0.3, "betas": [0.5, 0.7]}
    changes = {f"optimizer.{name}": value for name, value in optimizer.items()}
    trainer = resumed(interrupted, changes={**changes, "kl.beta": 0.5})
    (group,) = trainer.method.updater.optimizer.param_groups
    assert (group["weight_decay"], group["betas"], group["initial_lr"]) == (0.3, (0.5, 0.7), 0.001)
    trainer.run()
    plan = trainer.config.schedule
    assert rates(interrupted) == [0.001 * rate(done, 6, plan) for done in range(2, 6)]
    assert {line["beta"] for line in steps_of(interrupted)[2:]} == {0.5}


def test_more_steps_stretch_the_schedule_from_the_first_resumed_step_on(interrupted):
    trainer = resumed(interrupted, changes={"steps": 12, "trainer.mu": 2})
    assert trainer.method.total == 12
    run_until(trainer, 3)
    plan = trainer.config.schedule
    stretched = 0.01 * (rate(4, 24, plan) + rate(5, 24, plan)) / 2
    assert rates(interrupted) == pytest.approx([stretched])


@pytest.mark.slow
def test_a_run_that_was_resumed_with_other_settings_is_resumed_again_without_naming_them(
    interrupted,
):
    """Also if nothing was done in between, as after a kill."""
    changes = {"optimizer.lr": 0.001, "kl.beta": 0.5, "steps": 8, "optimizer.name": "adamw8bit"}
    resumed(interrupted, changes=changes)
    gc.collect()
    again = resumed(interrupted)
    assert (again.done, again.method.total, again.method.updater.beta) == (2, 8, 0.5)
    log = (interrupted / "log.txt").read_text().splitlines()
    (said,) = [line for line in log if line.startswith("from step 3 on: ")]
    assert "optimizer.lr was 0.01, is 0.001" in said
    assert said.count(" was ") == 4
    again.run()
    plan = again.config.schedule
    assert rates(interrupted) == [0.001 * rate(done, 8, plan) for done in range(2, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("adamw", "adamw8bit"), ("adamw8bit", "adamw")])
def test_another_optimizer_begins_without_running_means_and_this_is_said(
    settings, tmp_path, before, after
):
    stopped(settings, tmp_path / "run", **{"steps": 3, "optimizer.name": before})
    heard = Heard()
    again = resumed(tmp_path / "run", changes={"optimizer.name": after}, observer=heard)
    said = [text for text in heard.warnings if "running means" in text]
    told = f"the checkpoint holds the running means of {before}; {after} begins without any"
    assert said == [told]
    assert not again.method.updater.optimizer.state
    again.run()
    assert again.folder.finished


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "changes", "total"),
    [
        ({"advantage.name": "maxk", "advantage.k": 2}, {"advantage.name": "grpo"}, 6),
        ({}, {"advantage.name": "maxk", "advantage.k": 2}, 6),
        ({}, {"epochs": 2}, 8),
        ({"steps": None, "epochs": 2}, {"steps": 9}, 9),
    ],
)
def test_a_change_takes_back_what_excludes_it(settings, tmp_path, before, changes, total):
    stopped(settings, tmp_path / "run", env=Few(), **{"steps": 6, **before})
    again = Trainer.resumed(tmp_path / "run", Few(), changes=changes)
    assert (again.done, again.method.total) == (1, total)
    again.run()
    assert again.folder.finished


@pytest.mark.slow
def test_a_changed_level_is_trained_at_and_that_there_is_no_gain_is_said(settings, tmp_path):
    stopped(settings, tmp_path / "run", **{"steps": 4, "eval.tasks": 4})
    heard = Heard()
    assert resumed(tmp_path / "run", changes={"level": 0.7}, observer=heard).run() == {}
    assert any("no gains can be reported" in text for text in heard.warnings)
    lines = RunFolder(tmp_path / "run").rollout_lines()
    trained = [line for line in lines if line["key"]["split"] == "train"]
    levels = {(line["step"], line["key"]["level"]) for line in trained}
    assert levels == {(1, 0.0), (2, 0.7), (3, 0.7), (4, 0.7)}


def test_a_run_goes_on_with_its_method(interrupted):
    before = (interrupted / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=r"is a run of method grpo and cannot continue with sft"):
        resumed(interrupted, changes={"method": "sft"})
    assert (interrupted / "config.json").read_bytes() == before


@pytest.mark.slow
def test_a_beta_that_was_adapted_is_kept_unless_another_is_configured(settings, tmp_path):
    kl = {"beta": 0.1, "target": 1e-9, "horizon": 24}
    adapted = stopped(settings, tmp_path / "run", steps=2, kl=kl).method.updater.beta
    assert resumed(tmp_path / "run").method.updater.beta == adapted != 0.1
    assert resumed(tmp_path / "run", changes={"kl.beta": 0.3}).method.updater.beta == 0.3


@pytest.mark.slow
@pytest.mark.parametrize("lora", [True, False])
def test_a_reference_that_follows_from_a_resume_on_begins_as_the_model_before_training(
    settings, tmp_path, lora
):
    changes = {"steps": 4, "lora.enabled": lora}
    fresh = make(settings, tmp_path / "fresh", changes).actor.policy
    start = {name: p.detach().clone() for name, p in fresh.trainable()}
    stopped(settings, tmp_path / "run", **changes)
    again = resumed(tmp_path / "run", changes={"kl.refresh_every": 2})
    assert again.done == 1
    policy = again.actor.policy
    assert all(torch.equal(w, start[name]) for name, w in policy.reference.weights().items())
    assert not all(torch.equal(p, start[name]) for name, p in policy.trainable())
    again.run()
    near = [abs(line["kl"]) < 1e-6 for line in steps_of(tmp_path / "run")]
    assert near == [True, False, True, False]  # 0 in the step after the refresh


def test_another_environment_under_the_same_name_is_refused_unless_it_is_allowed(interrupted):
    changed = "environment 'letters' has changed since the run began .* --allow letters"
    with pytest.raises(ConfigError, match=changed):
        Trainer.resumed(interrupted, Stricter())
    assert Trainer.resumed(interrupted, Stricter(), allow=["letters"]).done == 2
    stored = json.loads((interrupted / "config.json").read_text())
    assert stored["provenance"]["environments"] == {"letters": Stricter().fingerprint()}
    assert Trainer.resumed(interrupted, Stricter()).done == 2


def test_the_command_line_has_the_same_words_for_it(interrupted):
    config = json.loads((interrupted / "config.json").read_text())
    config["environment"] = LETTERS
    del config["digest"]
    (interrupted / "config.json").write_text(json.dumps(config))
    resume = ("run", "--resume", interrupted)
    assert "environment was 'letters', is " in grpo(*resume, "--trust", status=2).output
    done = grpo(*resume, "--allow", "environment", "--set", "steps=3")
    assert "after step 2 of 3" in done.output


@pytest.mark.slow
def test_two_trainers_of_one_run_in_one_process_keep_other_processes_out_until_both_are_done(
    interrupted,
):
    """A notebook makes a second one before it lets go of the first."""
    first, second = resumed(interrupted), resumed(interrupted)
    run_until(second, 3)
    assert taken(interrupted)
    del first, second
    gc.collect()
    assert not taken(interrupted)


def taken(folder: Path) -> bool:
    """Whether another process is kept from writing."""
    program = "import sys; from pathlib import Path; from grpo_core.runs.hold import hold; hold(Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "another process is writing the run" in done.stderr
    return done.returncode != 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("steps", [2, 3])
def test_a_finished_run_goes_on_to_what_more_steps_would_have_made_of_it(settings, tmp_path, steps):
    quick = {"eval.tasks": 4, "eval.every": 2, "schedule.name": "constant", "prompts_per_step": 2}
    whole, run = tmp_path / "whole", tmp_path / "run"
    make(settings, whole, {**quick, "steps": 4}).run()
    make(settings, run, {**quick, "steps": steps}).run()
    with pytest.raises(ConfigError, match=r"is finished; to go on .*: --resume \S+run --steps N"):
        resumed(run)
    for fewer in (1, steps):
        with pytest.raises(ConfigError, match=rf"steps={fewer}, but the run .* has done {steps}"):
            resumed(run, changes={"steps": fewer})
    assert RunFolder.open(run).finished
    resumed(run, changes={"steps": 4}).run()
    weights = [
        (folder / "final" / "adapter_model.safetensors").read_bytes() for folder in (run, whole)
    ]
    assert weights[0] == weights[1]
    untimed = [
        [
            {key: value for key, value in line.items() if key in ("step", "kind", "loss", "kl", "reward/mean", "eval/pass_rate")}
            for line in read_lines(folder / "metrics.jsonl")
        ]
        for folder in (run, whole)
    ]  # fmt: skip
    assert untimed[0] == untimed[1]
    assert (run / f"final-{steps}" / "adapter_model.safetensors").exists()


def test_options_of_the_command_change_a_resumed_run_and_others_are_refused(interrupted):
    resume = ("run", "--resume", interrupted)
    assert "remove --env, --data, --reward" in grpo(*resume, "--env", LETTERS, status=2).output
    assert "steps=1, but the run" in grpo(*resume, "--steps", 1, "--trust", status=2).output
    config = json.loads((interrupted / "config.json").read_text())
    config["environment"] = LETTERS
    del config["digest"]
    (interrupted / "config.json").write_text(json.dumps(config))
    allowed = ("--allow", "environment", "--trust")
    done = grpo(*resume, "--steps", 3, "--lr", 0.5, *allowed)
    assert "after step 2 of 3" in done.output
    assert steps_of(interrupted)[-1]["lr"] > 0.1  # of 0.5, by the schedule
    done = grpo(*resume, "--steps", 4, "--trust")
    assert "after step 3 of 4" in done.output
