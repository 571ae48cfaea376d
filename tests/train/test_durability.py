"""What lies on disk: damage is found before anything is believed, every refusal names a way on, and following it works."""

import contextlib
import errno
import gzip
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from grpo_core import Message, Task, TaskKey
from grpo_core.engine.models.disk import as_os_error
from grpo_core.engine.models.load import resolve
from grpo_core.protocol.errors import ConfigError, RunStoppedError, UserError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.observer import Observer
from grpo_core.train.run.checkpoint import RandomStates
from grpo_core.train.run.disk_estimate import FILE_BYTES, FILES, PICTURES_BYTES
from grpo_core.train.run.ending import EndKind
from grpo_core.train.run.method import Clock
from grpo_core.train.run.saving import Saving
from grpo_core.train.trainer import Trainer

from ..commandline import words
from .killing import killed
from .letters import Letters
from .runs import TIMED, Heard
from .short_runs import grpo
from .test_ranks import assert_same_weights
from .tiny import save_tiny
from .trained import make, trained

SIZES: dict[str, Any] = {"prompts_per_step": 2, "group_size": 4, "optimizer": {"lr": 0.01}}
MORE = {
    "steps": 6,
    "eval": {"tasks": 4, "every": 3},
    "checkpoint": {"every": 2, "keep": 3},
}
SHORT = {"steps": 1, "eval": {"tasks": 0}}
PARTS = {"log": {"part_mb": 0.004}}
"""Logs in several files, of which the finished ones are compressed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs lie that tests copy, and their model."""
    place = tmp_path_factory.mktemp("durability")
    save_tiny(place / "tiny")
    return place


@pytest.fixture(scope="module")
def settings(folder: Path) -> dict[str, Any]:
    model = {"name": str(folder / "tiny"), "dtype": "float32"}
    return {"environment": "letters", "model": model, "advantage": {"name": "grpo"}, **SIZES}


def killed_run(folder: Path, *settings: dict[str, Any]) -> Path:
    """Return a run that was killed after step 5: its checkpoints are of the steps 2 and 4."""
    with killed(folder, step=5) as observer:
        make(folder, *settings, observer=observer).run()
    return folder


@pytest.fixture(scope="module")
def templates(folder: Path, settings: dict[str, Any]) -> Path:
    """The undisturbed run, "whole", and the same run killed, "run"."""
    trained(folder / "whole", settings, MORE)
    killed_run(folder / "run", settings, MORE)
    return folder


@pytest.fixture(scope="module")
def parts(folder: Path, settings: dict[str, Any]) -> Path:
    """The killed run with logs in parts."""
    return killed_run(folder / "parts", settings, MORE, PARTS)


@pytest.fixture
def whole(templates: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed run."""
    return Path(shutil.copytree(templates / "whole", tmp_path / "whole"))


@pytest.fixture
def run(templates: Path, tmp_path: Path) -> Path:
    """A copy of the run that was killed."""
    return Path(shutil.copytree(templates / "run", tmp_path / "run"))


def flip(path: Path, place: float) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 4
    path.write_bytes(data)


def logs(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return metrics and rollouts without what depends on the clock."""
    opened = RunFolder.open(folder)
    lines = list(opened.metric_lines())
    metrics = [
        {k: v for k, v in line.items() if not any(part in k for part in TIMED)} for line in lines
    ]
    texts = [json.dumps(line) for line in opened.rollout_lines()]
    return metrics, [re.sub(r'"seconds": [^,}]*', "", text) for text in texts]


def assert_same(folder: Path, whole: Path) -> None:
    assert logs(folder) == logs(whole)
    assert_same_weights(folder, whole)


def resume(folder: Path, **more: Any) -> None:
    Trainer.resumed(folder, Letters(), **more).run()


def assert_refused(folder: Path, message: str, **more: Any) -> None:
    """Fail unless the run cannot be continued, for a reason of one line, and nothing has changed."""
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=message) as refused:
        Trainer.resumed(folder, Letters(), **more)
    assert "\n" not in str(refused.value)
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["progress.json", "state.pt", "trainable.safetensors"])
def test_a_flipped_bit_of_a_checkpoint_is_refused_and_an_older_one_taken_when_asked(
    run, whole, name
):
    flip(run / "checkpoints" / "step-000004" / name, 0.6)
    way = r"--from step-000002 \(or --from start\)"
    assert_refused(run, rf"step-000004 is damaged: {re.escape(name)} is .*: {way}")
    resume(run, start_from="step-000002")
    assert_same(run, whole)


@pytest.mark.slow
def test_missing_files_are_damage_too_and_a_run_may_begin_anew(run, whole):
    for path in (run / "checkpoints").glob("step-*"):
        (path / "progress.json").unlink()
    assert_refused(run, r"step-000004 is damaged: progress.json is missing; .*: --from start$")
    resume(run, start_from="start")
    assert_same(run, whole)


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(run):
    message = "no checkpoint 'step-5'; --from takes one of: step-000002, step-000004, start"
    assert_refused(run, message, start_from="step-5")


@pytest.mark.slow
def test_an_older_checkpoint_is_taken_back_to_with_all_that_came_after_it(run, whole):
    trainer = Trainer.resumed(run, Letters(), start_from="step-2")
    assert trainer.done == 2
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == ["step-000002"]
    assert max(line["step"] for line in trainer.folder.rollout_lines()) == 2
    trainer.run()
    assert_same(run, whole)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["line removed", "shorter", "bit", "empty"])
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", pytest.param("rollouts.jsonl", marks=pytest.mark.heavy)]
)
def test_a_damaged_log_is_refused_and_cut_by_steps_when_that_is_allowed(run, whole, name, damage):
    path = run / name
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    changed = {
        "line removed": b"".join(lines[:2] + lines[3:]),
        "shorter": data[: len(data) // 2],
        "empty": b"",
        # The opening brace, so that the line can no longer be read.
        "bit": b"".join([*lines[:2], bytes([lines[2][0] ^ 1]) + lines[2][1:], *lines[3:]]),
    }
    path.write_bytes(changed[damage])
    ways = f"--allow {name}, or from another checkpoint: --from"
    assert_refused(run, rf"{name} is not as step-000004 recorded it: .* {ways}")
    heard = Heard()
    resume(run, allow=[name], observer=heard)
    assert any(text.startswith(f"{name} was damaged (it") for text in heard.said)
    metrics, rollouts = logs(run)  # every line can be read
    assert_same_weights(run, whole)
    steps = [line["step"] for line in metrics if "loss" in line]
    assert steps == sorted(set(steps))
    assert set(rollouts) <= set(logs(whole)[1])


def test_a_config_that_was_changed_is_refused_until_its_digest_is_removed(run, whole):
    path = run / "config.json"
    path.write_text(path.read_text().replace('"lr": 0.01', '"lr": 0.02'))
    refused = grpo("run", "--resume", run, status=2).output
    assert "restore it, or, if you changed it on purpose, remove its line" in refused
    change_config(run)
    assert_refused(run, r"optimizer\.lr was 0\.01, is 0\.02")
    resume(run, changes={"optimizer.lr": 0.01})
    assert_same(run, whole)


def change_config(run: Path, **provenance: Any) -> None:
    """Remove the digest, as somebody who changes a config on purpose."""
    config = json.loads((run / "config.json").read_text())
    del config["digest"]
    config["provenance"] |= provenance
    (run / "config.json").write_text(json.dumps(config))


def test_a_format_of_the_future_is_not_read(run):
    change_config(run, format=3)
    with pytest.raises(ConfigError, match=r"format 3, .* up to 2; install a newer version"):
        RunFolder.open(run).config()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "adapter_config.json", "tokenizer.json"]
)
def test_damaged_final_weights_are_never_used_and_can_be_written_again(templates, whole, name):
    (whole / "final" / "README.md").write_text("A person's own words.")
    assert resolve(str(whole)).adapter_path == str(whole / "final")
    flip(whole / "final" / name, 0.5)
    what, way = f"{re.escape(name)} is not as it was written", "remove that folder and continue"
    with pytest.raises(UserError, match=rf"are damaged: {what}; .* {way}"):
        resolve(str(whole))
    shutil.rmtree(whole / "final")
    resume(whole)
    assert_same_weights(whole, templates / "whole")


@pytest.mark.slow
def test_damaged_best_weights_are_refused_until_they_may_be_dropped(run, whole):
    (run / "checkpoints" / "best" / "best.json").write_text("")
    assert_refused(run, r"best.json is not as it was written; .* --allow checkpoints/best")
    resume(run, allow=["checkpoints/best"])
    assert_same_weights(run, whole)


@pytest.mark.slow
def test_finished_parts_of_the_log_are_compressed_and_nothing_is_lost(parts, tmp_path, whole):
    run = Path(shutil.copytree(parts, tmp_path / "run"))
    found = sorted(path.name for path in run.glob("rollouts-*"))
    assert found == [f"rollouts-00000{number}.jsonl.gz" for number in range(1, len(found) + 1)]
    assert len(found) >= 2
    resume(run, start_from="step-2")  # which lies inside a part that is compressed
    assert_same(run, whole)
    with gzip.open(run / "rollouts-000001.jsonl.gz", "rt") as file:
        assert json.loads(file.readline())["step"] == 0
    assert "after step 0 and after step 6" in grpo("eval", "--run", run, "--recorded").output


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"allow": ["rollouts.jsonl"]}, {"start_from": "start"}], ids=str)
def test_a_damaged_part_of_the_log_is_found(parts, tmp_path, whole, way):
    run = Path(shutil.copytree(parts, tmp_path / "run"))
    flip(run / "rollouts-000001.jsonl.gz", 0.5)
    message = "rollouts.jsonl is not as step-000004 recorded it: .* --allow rollouts.jsonl"
    assert_refused(run, message)
    resume(run, **way)
    (assert_same_weights if "allow" in way else assert_same)(run, whole)


@pytest.mark.slow
def test_no_checkpoint_outlives_lines_that_are_not_on_disk(settings, tmp_path, monkeypatch):
    """The logs are synced before a checkpoint gets its name: after a power cut, what it speaks of is there."""
    synced: dict[str, int] = {}
    checked: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced[path.name] = path.stat().st_size if path.is_file() else 0
        newest = sorted(path.glob("step-*")) if path.name == "checkpoints" else []
        if newest:  # after the rename
            marks = json.loads((newest[-1] / "progress.json").read_text())["logs"]
            assert all(synced.get(name, 0) >= mark["bytes"] for name, mark in marks.items())
            assert min(marks[name]["bytes"] for name in ("metrics.jsonl", "rollouts.jsonl")) > 0
            checked.append(newest[-1].name)

    monkeypatch.setattr(os, "fsync", fsync)
    trained(tmp_path / "run", settings, {**MORE, "log": {"compress": False}})
    assert set(checked) == {"step-000002", "step-000004", "step-000006"}


def test_other_users_may_read_what_the_umask_lets_them_read(templates):
    files = [path for path in (templates / "whole").rglob("*") if path.is_file()]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in files if path.name != ".lock"}
    assert set(modes.values()) == {0o644}, modes


def test_a_folder_with_other_files_is_not_written_to(settings, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    message = r"home is not empty \(it holds thesis.tex\), .*; choose another --out"
    with pytest.raises(ConfigError, match=message):
        make(tmp_path / "home", settings)
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".lock").touch()  # of a run that was killed before it wrote anything
    trained(tmp_path / "begun", settings, SHORT)


class Wandering(Letters):
    """Changes the working folder of the process, as careless code does."""

    def task(self, key: TaskKey) -> Task[str]:
        os.chdir("/")
        return super().task(key)


@pytest.mark.slow
def test_a_relative_out_stays_where_it_is_although_an_environment_changes_the_folder(
    settings, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    trained(Path("run"), settings, {"steps": 2, "eval": {"tasks": 2}}, env=Wandering())
    assert (tmp_path / "run" / "final" / "adapter_config.json").is_file()
    assert not Path("/run/config.json").exists()


def test_the_estimate_of_the_disk_is_above_what_a_run_writes_and_near_it(templates):
    whole = templates / "whole"
    (line,) = [text for text in (whole / "log.txt").read_text().splitlines() if "disk: " in text]
    size = r"(\d+) ([KM])iB"
    sizes = (
        rf"4 checkpoints of {size}, trained weights and tokenizer {size}, logs and pictures {size}"
    )
    found = re.search(rf"disk: {size} at most, of [\d.]+ GiB that are free: {sizes}", line)
    assert found
    numbers = iter(found.groups())
    total, checkpoint, weights, logs = (
        int(number) * {"K": 2**10, "M": 2**20}[next(numbers)] for number in numbers
    )

    def stored(*names: str) -> int:
        paths = [path for name in names for path in (whole / name).rglob("*")]
        return sum(path.stat().st_size for path in paths if path.is_file())

    (newest, *_) = sorted((whole / "checkpoints").glob("step-*"), reverse=True)
    assert stored(newest.relative_to(whole).as_posix()) < checkpoint
    assert stored("final") < weights
    logged = sum((whole / name).stat().st_size for name in ("metrics.jsonl", "rollouts.jsonl"))
    once = PICTURES_BYTES + FILE_BYTES * FILES
    assert logged < logs - once < 4 * logged
    assert stored(".") < total < 4 * stored(".") + once


def test_what_libraries_raise_at_a_full_disk_is_an_error_of_the_system():
    full = "No space left on device"
    for error in (
        Exception(f"{full} (os error 28)"),  # tokenizers
        SafetensorError(f"Error while serializing: I/O error: {full} (os error 28)"),
    ):
        with pytest.raises(OSError, match=full) as found, as_os_error():
            raise error
        assert found.value.errno == errno.ENOSPC
    with pytest.raises(ValueError, match="other"), as_os_error():
        raise ValueError("other")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0])
def test_a_disk_that_is_full_is_one_line_and_the_run_goes_on_when_there_is_room(
    settings, templates, tmp_path, share
):
    """Of ten sizes, some of which end while final/ is written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    whole = sum(-(-p.stat().st_size // 4096) for p in (templates / "whole").rglob("*"))
    size = int(whole * share)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size * 4}k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        trainer = make(disk / "run", settings, MORE)
        with contextlib.suppress(RunStoppedError, ConfigError):
            trainer.run()
        is_finished = (disk / "run" / "final").is_dir()
        if not is_finished:
            assert trainer.end is not None
            assert "cannot be written: " in trainer.end.reason
            assert "\n" not in trainer.end.reason
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        if is_finished or not (disk / "run" / "config.json").is_file():
            return
        resumed = Trainer.resumed(disk / "run", Letters())
        resumed.run()
        assert (disk / "run" / "final" / "adapter_config.json").is_file()
        assert {line["step"] for line in RunFolder(disk / "run").metric_lines()} == set(range(7))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


# How a run ends


def ended(folder: Path) -> str:
    return (folder / "log.txt").read_text().splitlines()[-1]


@pytest.mark.slow
def test_an_observer_that_fails_is_dropped_and_the_run_goes_on(settings, tmp_path):
    class Breaks(Observer):
        def step(self, step: int, total: int, metrics: Any) -> None:
            raise ZeroDivisionError("a bug of the display")

    trainer = make(tmp_path / "run", settings, SHORT, {"steps": 3}, observer=Breaks())
    trainer.run()
    assert trainer.end.kind is EndKind.FINISHED
    said = "the display of the run failed, and the run continues without it: ZeroDivisionError"
    assert (tmp_path / "run" / "log.txt").read_text().count(said) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("nobody foresaw this"),
        KeyboardInterrupt(),
        *[pytest.param(error, marks=pytest.mark.heavy) for error in (MemoryError(), SystemExit(3))],
    ],
)
def test_whatever_ends_a_run_saves_its_last_step_and_leaves_a_reason(
    settings, tmp_path, whole, error
):
    trainer = make(tmp_path / "run", settings, MORE)
    collect = trainer.method.collect

    async def broken(step: int, clock: Clock) -> Any:
        if step == 4:
            raise error
        return await collect(step, clock)

    trainer.method.collect = broken  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        trainer.run()
    assert trainer.end.kind in (EndKind.FAILED, EndKind.CANCELLED)
    last = r"(failed|cancelled) after step 3 of 6.*; saved step-000003; continue with --resume"
    assert re.match(last, ended(tmp_path / "run"))
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def test_a_run_that_is_stopped_says_so_in_its_log(settings, tmp_path):
    trainer = make(tmp_path / "run", settings, SHORT, {"steps": 8})
    trainer.observer.step = lambda *_: trainer.request_stop("it was late")  # type: ignore[method-assign]
    trainer.run()
    end = trainer.end
    assert (end.kind, end.step, end.reason) == (EndKind.STOPPED, 1, "it was late")
    said = "stopped after step 1 of 8: it was late; saved step-000001; continue with --resume"
    assert ended(tmp_path / "run").startswith(said)


@pytest.mark.slow
def test_the_line_of_a_step_that_found_no_room_is_written_at_the_resume(
    settings, tmp_path, whole, monkeypatch
):
    trainer = make(tmp_path / "run", settings, MORE)
    write = trainer.folder.metrics

    def full(values: Any) -> None:
        if values["step"] == 3:
            raise OSError(28, "No space left on device")
        write(values)

    monkeypatch.setattr(trainer.folder, "metrics", full)
    with pytest.raises(OSError, match="No space"):
        trainer.run()
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def test_random_states_are_those_after_the_last_finished_step(settings, tmp_path):
    trainer = make(tmp_path / "run", settings)
    trainer.journal.begin(trainer.folder)
    saving = Saving(trainer.method, trainer.folder, trainer.journal)
    before = RandomStates.now()
    torch.rand(3)
    assert torch.equal(saving._states.torch, before.torch)


# Why attempts could not be scored


class Silent(Letters):
    """A dialogue whose environment fails in the turn of half of its tasks."""

    max_turns = 2

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message]:
        if task.key.index % 2:
            raise RuntimeError("the database of answers is gone")
        return (Message("user", "again"),)


def test_why_a_reply_failed_stands_on_screen_in_the_log_and_in_the_row(settings, tmp_path):
    more = {"steps": 2, "verify": {"max_error_rate": 1.0, "retries": 0}}
    trainer, heard = trained(tmp_path / "run", settings, SHORT, more, env=Silent())
    reason = "RuntimeError: the database of answers is gone"
    failed = [text for text in heard.warnings if "not be scored: the dialogue failed" in text]
    assert any(reason in text for text in failed)
    assert reason in (tmp_path / "run" / "log.txt").read_text()
    lines = [line for line in trainer.folder.rollout_lines() if line["finish"] == "error"]
    assert lines
    assert [line for line in lines if reason not in line["verdict"]["error"]] == []


UNJUDGEABLE = """
class Unjudgeable(Letters):
    def verify(self, task, rollout):
        if task.key.split == "eval":
            raise RuntimeError("no judge for these")
        return Letters.verify(self, task, rollout)
"""


def test_a_run_without_a_scored_held_out_task_does_not_end_well(folder, tmp_path):
    file, out = tmp_path / "unjudgeable.py", tmp_path / "run"
    file.write_text(Path(__file__).with_name("letters.py").read_text() + UNJUDGEABLE)
    small = f"--prompts-per-step 2 --group-size 2 --steps 1 --model {folder / 'tiny'} --out {out}"
    more = "model.dtype=float32 eval.tasks=2 verify.max_error_rate=1 verify.retries=0"
    options = [*words(small), *(f"--set={setting}" for setting in words(more))]
    shown = grpo("run", "--env", f"{file}:Unjudgeable", *options, status=1).output
    assert (none := "none of the held-out tasks could be scored") in shown
    assert "no judge for these" in shown
    assert (out / "final").is_dir()
    assert ended(out).startswith(f"unscored after step 1 of 1: {none}")
