"""What lies on disk: damage is found before anything is believed, every refusal names a way on, and following it works."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from typer.testing import CliRunner

from grpo_core import Message, Rollout, Task, TaskKey, Verdict
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import ConfigError, UserError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.observer import Observer
from grpo_core.train.models.load import resolve
from grpo_core.train.run.checkpoint import RandomStates
from grpo_core.train.run.ending import EndKind
from grpo_core.train.run.method import Clock
from grpo_core.train.run.saving import Saving
from grpo_core.train.trainer import Trainer

from ..commandline import words
from .killing import killed
from .letters import Letters
from .tiny import save_tiny

TIMED = ("time/", "verify/seconds/", "eval/verify/seconds/", "memory/", "eval/seconds")
MORE: dict[str, Any] = {
    "steps": 8,
    "eval": {"tasks": 8, "every": 4},
    "checkpoint": {"every": 2, "keep": 3},
}
LEARNING: dict[str, Any] = {
    "environment": "letters",
    "prompts_per_step": 4,
    "group_size": 6,
    "optimizer": {"lr": 0.01},
    "advantage": {"name": "grpo"},
}
CHECKPOINT_FILES = ["progress.json", "state.pt", "trainable.safetensors"]


class Heard(Observer):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warnings: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run, "whole", and the same run killed after step 7, "run": its checkpoints are of the steps 2, 4 and 6."""
    place = tmp_path_factory.mktemp("durability")
    config = build_config(
        [{**LEARNING, "model": {"name": str(save_tiny(place / "tiny")), "dtype": "float32"}}, MORE]
    )
    Trainer(config, Letters(), folder=place / "whole").run()
    with killed(place / "run", step=7) as observer:
        Trainer(config, Letters(), folder=place / "run", observer=observer).run()
    return place


@pytest.fixture
def settings(templates: Path) -> dict[str, Any]:
    return {**LEARNING, "model": {"name": str(templates / "tiny"), "dtype": "float32"}}


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


def content(folder: Path) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """What a run has logged and learned, without what depends on the clock."""
    opened = RunFolder.open(folder)
    metrics = [
        {k: v for k, v in line.items() if not k.startswith(TIMED)} for line in opened.metric_lines()
    ]
    rollouts = [
        re.sub(r'"seconds": [^,}]*', "", json.dumps(line)) for line in opened.rollout_lines()
    ]
    return metrics, rollouts, load((folder / "final" / "adapter_model.safetensors").read_bytes())


def equal_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_same(folder: Path, whole: Path) -> None:
    (metrics, rollouts, weights), (metrics_of_whole, rollouts_of_whole, weights_of_whole) = (
        content(folder),
        content(whole),
    )
    assert metrics == metrics_of_whole
    assert rollouts == rollouts_of_whole
    assert equal_weights(weights, weights_of_whole)


def resume(folder: Path, **more: Any) -> None:
    Trainer.resumed(folder, Letters(), **more).run()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_one_flipped_bit_of_a_checkpoint_is_refused_and_an_older_one_is_taken_only_when_asked(
    run: Path, whole: Path, name: str
) -> None:
    flip(run / "checkpoints" / "step-000006" / name, 0.6)
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(
        ConfigError,
        match=rf"step-000006 is damaged: {re.escape(name)} is .*: --from step-000004 \(or --from start\)",
    ) as refused:
        Trainer.resumed(run, Letters())
    assert "\n" not in str(refused.value)
    assert (run / "metrics.jsonl").read_bytes() == before
    resume(run, start_from="step-000004")
    assert_same(run, whole)


@pytest.mark.slow
def test_missing_files_are_damage_too_and_a_run_may_begin_anew(run: Path, whole: Path) -> None:
    for path in (run / "checkpoints").glob("step-*"):
        (path / "progress.json").unlink()
    with pytest.raises(
        ConfigError, match=r"step-000006 is damaged: progress.json is missing; .*: --from start$"
    ):
        Trainer.resumed(run, Letters())
    resume(run, start_from="start")
    assert_same(run, whole)


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(run: Path) -> None:
    with pytest.raises(
        ConfigError,
        match="no checkpoint 'step-5'; --from takes one of: step-000002, step-000004, step-000006, start",
    ):
        Trainer.resumed(run, Letters(), start_from="step-5")


@pytest.mark.slow
def test_an_older_checkpoint_is_taken_back_to_with_all_that_came_after_it(
    run: Path, whole: Path
) -> None:
    trainer = Trainer.resumed(run, Letters(), start_from="step-2")
    assert trainer.done == 2
    assert [path.name for path in sorted((run / "checkpoints").glob("step-*"))] == ["step-000002"]
    assert max(line["step"] for line in trainer.folder.rollout_lines()) == 2
    trainer.run()
    assert_same(run, whole)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *[("metrics.jsonl", damage) for damage in ("line removed", "shorter", "bit", "empty")],
        ("rollouts.jsonl", "line removed"),
        *[
            pytest.param("rollouts.jsonl", damage, marks=pytest.mark.heavy)
            for damage in ("shorter", "bit", "empty")
        ],
    ],
)
def test_a_damaged_log_is_refused_and_cut_by_steps_when_that_is_allowed(
    run: Path, whole: Path, name: str, damage: str
) -> None:
    path = run / name
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    changed = {
        "line removed": b"".join(lines[:2] + lines[3:]),
        "shorter": data[: len(data) // 2],
        "empty": b"",
        # The opening brace, so that the line can no longer be read.
        "bit": b"".join([*lines[:2], bytes([lines[2][0] ^ 1]) + lines[2][1:], *lines[3:]]),
    }[damage]
    path.write_bytes(changed)
    with pytest.raises(
        ConfigError,
        match=rf"{name} is not as step-000006 recorded it: .* --allow {name}, or from another checkpoint: --from",
    ):
        Trainer.resumed(run, Letters())
    observer = Heard()
    resume(run, allow=[name], observer=observer)
    assert any(text.startswith(f"{name} was damaged (it") for text in observer.said)
    metrics, rollouts, weights = content(run)  # every line can be read
    assert equal_weights(weights, content(whole)[2])
    steps = [line["step"] for line in metrics if "loss" in line]
    assert steps == sorted(set(steps))
    assert set(rollouts) <= set(content(whole)[1])


def test_a_config_that_was_changed_is_refused_until_its_digest_is_removed(
    run: Path, whole: Path
) -> None:
    path = run / "config.json"
    path.write_text(path.read_text().replace('"lr": 0.01', '"lr": 0.02'))
    done = CliRunner().invoke(app, ["run", "--resume", str(run)])
    assert done.exit_code == 2, done.output
    assert (
        'is not as the run wrote it; restore it, or, if you changed it on purpose, remove its line "digest"'
        in done.output
    )
    config = json.loads(path.read_text())
    del config["digest"]
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"optimizer\.lr was 0\.01, is 0\.02"):
        Trainer.resumed(run, Letters())
    resume(run, changes={"optimizer.lr": 0.01})
    assert_same(run, whole)


def test_a_format_of_the_future_is_not_read(run: Path) -> None:
    path = run / "config.json"
    config = json.loads(path.read_text())
    del config["digest"]
    config["provenance"]["format"] = 3
    path.write_text(json.dumps(config))
    with pytest.raises(
        ConfigError,
        match=r"has format 3, and this version of grpo-core reads formats up to 2; install a newer version",
    ):
        RunFolder.open(run).config()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "adapter_config.json", "tokenizer.json"]
)
def test_damaged_final_weights_are_never_used_and_can_be_written_again(
    whole: Path, name: str
) -> None:
    before = content(whole)[2]
    (whole / "final" / "README.md").write_text("A person's own words.")
    assert resolve(str(whole))
    flip(whole / "final" / name, 0.5)
    with pytest.raises(
        UserError,
        match=rf"are damaged: {re.escape(name)} is not as it was written; .* remove that folder and continue",
    ):
        resolve(str(whole))
    shutil.rmtree(whole / "final")
    resume(whole)
    assert equal_weights(content(whole)[2], before)


@pytest.mark.slow
def test_damaged_best_weights_are_refused_until_they_may_be_dropped(run: Path, whole: Path) -> None:
    (run / "checkpoints" / "best" / "best.json").write_text("")
    with pytest.raises(
        ConfigError,
        match=r"are damaged: best.json is not as it was written; .* --allow checkpoints/best",
    ):
        Trainer.resumed(run, Letters())
    resume(run, allow=["checkpoints/best"])
    assert equal_weights(content(run)[2], content(whole)[2])


@pytest.mark.slow
def test_finished_parts_of_the_log_are_compressed_and_nothing_is_lost(
    settings: dict[str, Any], tmp_path: Path, whole: Path
) -> None:
    more = {**MORE, "log": {"part_mb": 0.01}}
    with killed(tmp_path / "run", step=7) as observer:
        Trainer(
            build_config([settings, more]), Letters(), folder=tmp_path / "run", observer=observer
        ).run()
    parts = sorted(path.name for path in (tmp_path / "run").glob("rollouts-*"))
    assert parts == [f"rollouts-00000{number}.jsonl.gz" for number in range(1, len(parts) + 1)]
    assert len(parts) >= 2
    resume(tmp_path / "run", start_from="step-2")  # which lies inside a part that is compressed
    assert_same(tmp_path / "run", whole)
    assert list((tmp_path / "run").glob("rollouts-*.gz"))


@pytest.mark.slow
def test_a_damaged_part_of_the_log_is_found(
    settings: dict[str, Any], tmp_path: Path, whole: Path
) -> None:
    more = {**MORE, "log": {"part_mb": 0.01}}
    with killed(tmp_path / "run", step=7) as observer:
        Trainer(
            build_config([settings, more]), Letters(), folder=tmp_path / "run", observer=observer
        ).run()
    flip(tmp_path / "run" / "rollouts-000001.jsonl.gz", 0.5)
    with pytest.raises(
        ConfigError,
        match=r"rollouts.jsonl is not as step-000006 recorded it: .* --allow rollouts.jsonl",
    ):
        Trainer.resumed(tmp_path / "run", Letters())
    copy = Path(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    resume(tmp_path / "run", allow=["rollouts.jsonl"])
    assert equal_weights(content(tmp_path / "run")[2], content(whole)[2])
    resume(copy, start_from="start")
    assert_same(copy, whole)


@pytest.mark.slow
def test_compressed_parts_are_ordinary_gzip_files(settings: dict[str, Any], tmp_path: Path) -> None:
    Trainer(
        build_config([settings, MORE, {"log": {"part_mb": 0.001}}]),
        Letters(),
        folder=tmp_path / "run",
    ).run()
    with gzip.open(tmp_path / "run" / "rollouts-000001.jsonl.gz", "rt") as file:
        assert json.loads(file.readline())["step"] == 0
    done = CliRunner().invoke(app, ["eval", "--run", str(tmp_path / "run"), "--recorded"])
    assert done.exit_code == 0, done.output
    assert "after step 0 and after step 8" in done.output


@pytest.mark.slow
def test_no_checkpoint_outlives_lines_that_are_not_on_disk(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs are synced before a checkpoint gets its name: after a power cut, what it speaks of is there."""
    synced: dict[str, int] = {}
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced[path.name] = path.stat().st_size if path.is_file() else 0
        if path.name == "checkpoints" and (
            newest := sorted(path.glob("step-*"))
        ):  # after the rename
            logs = json.loads((newest[-1] / "progress.json").read_text())["logs"]
            assert all(synced[name] >= mark["bytes"] > 0 for name, mark in logs.items())
            checked.append(newest[-1].name)

    checked: list[str] = []
    monkeypatch.setattr(os, "fsync", fsync)
    Trainer(
        build_config([settings, {**MORE, "log": {"compress": False}}]),
        Letters(),
        folder=tmp_path / "run",
    ).run()
    assert set(checked) == {"step-000002", "step-000004", "step-000006", "step-000008"}


def test_other_users_may_read_what_the_umask_lets_them_read(whole: Path) -> None:
    modes = {
        path.relative_to(whole): stat.S_IMODE(path.stat().st_mode)
        for path in whole.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    assert set(modes.values()) == {0o644}, modes


def test_a_folder_with_other_files_is_not_written_to(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(
        ConfigError,
        match=r"home is not empty \(it holds thesis.tex\), and a run needs one of its own; choose another --out",
    ):
        Trainer(build_config([settings]), Letters(), folder=tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".lock").touch()  # of a run that was killed before it wrote anything
    Trainer(
        build_config([settings, {"steps": 1, "eval": {"tasks": 0}}]),
        Letters(),
        folder=tmp_path / "begun",
    ).run()


class Wandering(Letters):
    """Changes the working folder of the process, as careless code does."""

    def task(self, key: TaskKey) -> Task[str]:
        os.chdir("/")
        return super().task(key)


@pytest.mark.slow
def test_a_relative_out_stays_where_it_is_although_an_environment_changes_the_folder(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Trainer(
        build_config([settings, {"steps": 2, "eval": {"tasks": 2}}]),
        Wandering(),
        folder=Path("run"),
    ).run()
    assert (tmp_path / "run" / "final" / "adapter_config.json").is_file()
    assert not Path("/run/config.json").exists()


def test_the_estimate_of_the_disk_is_above_what_a_run_takes_and_near_it(whole: Path) -> None:
    size = sum(
        path.stat().st_size
        for path in whole.rglob("*")
        if path.is_file() and path.name != "cards.json"
    )
    log = (whole / "log.txt").read_text()
    (line,) = [line for line in log.splitlines() if line.startswith("disk: ")]
    assert re.match(
        r"disk: \d+ [KM]iB at most, of [\d.]+ GiB that are free: 4 checkpoints of \d+ KiB, trained weights \d+ KiB, logs \d+ KiB",
        line,
    )
    from grpo_core.train.run.opening import ATTEMPT_BYTES, STEP_BYTES, TOKEN_BYTES

    attempts = 8 * 4 * 6 + 4 * 8
    estimated = 8 * STEP_BYTES + attempts * (ATTEMPT_BYTES + 8 * TOKEN_BYTES)
    logged = sum((whole / name).stat().st_size for name in ("metrics.jsonl", "rollouts.jsonl"))
    assert logged < estimated < 3 * logged
    assert size > logged


# How a run ends


def ended(folder: Path) -> str:
    return (folder / "log.txt").read_text().splitlines()[-1]


class Breaks(Observer):
    """Raises in every call from step 3 on."""

    def step(self, step: int, total: int, metrics: Any) -> None:
        if step >= 3:
            raise ZeroDivisionError("a bug of the display")


@pytest.mark.slow
def test_an_observer_that_fails_is_dropped_and_the_run_goes_on(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    trainer = Trainer(
        build_config([settings, {"steps": 5, "eval": {"tasks": 0}}]),
        Letters(),
        folder=tmp_path / "run",
        observer=Breaks(),
    )
    trainer.run()
    assert trainer.end is not None
    assert trainer.end.kind is EndKind.FINISHED
    log = (tmp_path / "run" / "log.txt").read_text()
    assert (
        log.count(
            "the display of the run failed, and the run continues without it: ZeroDivisionError: a bug of the display"
        )
        == 1
    )


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
    settings: dict[str, Any], tmp_path: Path, whole: Path, error: BaseException
) -> None:
    trainer = Trainer(build_config([settings, MORE]), Letters(), folder=tmp_path / "run")
    collect = trainer.method.collect

    async def broken(step: int, clock: Clock) -> Any:
        if step == 6:
            raise error
        return await collect(step, clock)

    trainer.method.collect = broken  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        trainer.run()
    assert trainer.end is not None
    assert trainer.end.kind in (EndKind.FAILED, EndKind.CANCELLED)
    assert re.match(
        r"(failed|cancelled) after step 5 of 8.*; saved step-000005; continue with --resume",
        ended(tmp_path / "run"),
    )
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def test_a_run_that_is_stopped_says_so_in_its_log(settings: dict[str, Any], tmp_path: Path) -> None:
    trainer = Trainer(build_config([settings, MORE]), Letters(), folder=tmp_path / "run")
    trainer.observer.step = lambda number, total, metrics: (
        trainer.request_stop("it was late") if number == 3 else None
    )  # type: ignore[method-assign]
    trainer.run()
    assert trainer.end is not None
    assert (trainer.end.kind, trainer.end.step, trainer.end.reason) == (
        EndKind.STOPPED,
        3,
        "it was late",
    )
    assert ended(tmp_path / "run").startswith(
        "stopped after step 3 of 8: it was late; saved step-000003; continue with --resume"
    )


@pytest.mark.slow
def test_the_line_of_a_step_that_found_no_room_is_written_at_the_resume(
    settings: dict[str, Any], tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(build_config([settings, MORE]), Letters(), folder=tmp_path / "run")
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


def test_random_states_are_those_after_the_last_finished_step(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    trainer = Trainer(build_config([settings]), Letters(), folder=tmp_path / "run")
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


def test_why_a_reply_failed_stands_on_screen_in_the_log_and_in_the_row(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    observer = Heard()
    more = {
        "steps": 2,
        "eval": {"tasks": 2},
        "verify": {"max_error_rate": 1.0, "retries": 0},
        "prompts_per_step": 4,
    }
    Trainer(
        build_config([settings, more]), Silent(), folder=tmp_path / "run", observer=observer
    ).run()
    reason = "RuntimeError: the database of answers is gone"
    assert any(
        "could not be scored: the dialogue failed" in text and reason in text
        for text in observer.warnings
    )
    assert reason in (tmp_path / "run" / "log.txt").read_text()
    failures = [
        line["verdict"]["error"]
        for line in RunFolder.open(tmp_path / "run").rollout_lines()
        if line["finish"] == "error"
    ]
    assert failures
    assert [failure for failure in failures if reason not in failure] == []


class Unjudgeable(Letters):
    """Held-out attempts cannot be judged."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        if task.key.split == "eval":
            raise RuntimeError("no judge for these")
        return super().verify(task, rollout)


def test_a_run_without_a_scored_held_out_task_does_not_end_well(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    source = Path(__file__).with_name("test_durability.py")
    more = words(
        "--steps 2 --set eval.tasks=2 --set verify.max_error_rate=1 --set verify.retries=0"
    )
    small = [
        *words("--prompts-per-step 2 --group-size 2 --set"),
        f"model.name={settings['model']['name']}",
        "--set",
        "model.dtype=float32",
    ]
    file = tmp_path / "unjudgeable.py"
    names = Path(__file__).with_name("letters.py").read_text()
    body = source.read_text()
    begin = body.index("class Unjudgeable(Letters)")
    file.write_text(names + "\n\n" + body[begin : body.index("\n\n\n", begin)])
    done = CliRunner().invoke(
        app, ["run", "--env", f"{file}:Unjudgeable", *small, *more, "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 1, done.output
    assert "none of the held-out tasks could be scored" in done.output
    assert "no judge for these" in done.output
    assert (tmp_path / "run" / "final").is_dir()
    assert ended(tmp_path / "run").startswith(
        "unscored after step 2 of 2: none of the held-out tasks could be scored"
    )
