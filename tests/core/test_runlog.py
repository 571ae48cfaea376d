"""The run folder's files."""

import json
import math
import os
import resource

import pytest

from grpo_core import Group, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.protocol.errors import ConfigError, RunStoppedError
from grpo_core.runs.folder import RunFolder, newest_run
from grpo_core.runs.lines import read_lines

CONFIG = {"model": {"name": "m"}, "lora": {"enabled": True}, "provenance": {}}


def test_a_folder_that_holds_a_run_and_a_file_in_the_way_are_refused_and_asking_writes_nothing(
    tmp_path,
):
    free = RunFolder.unused(tmp_path / "a" / "run")
    assert list(tmp_path.iterdir()) == []
    free.start(CONFIG)
    with pytest.raises(ConfigError, match="already holds a run"):
        RunFolder.unused(tmp_path / "a" / "run")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="choose another --out"):
        RunFolder.unused(tmp_path / "file" / "run")


def test_a_cut_last_line_is_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics({"step": 1})
    folder.metrics({"step": 2})
    path = tmp_path / "metrics.jsonl"
    os.truncate(path, path.stat().st_size - 4)
    assert [line["step"] for line in read_lines(path)] == [1]


def test_what_came_after_a_checkpoint_is_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics({"step": 1})
    marks = folder.marks()
    folder.metrics({"step": 2})
    folder.cut(marks)
    folder.metrics({"step": 2, "again": True})
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [{"step": 1}, {"step": 2, "again": True}]


def test_rollouts_carry_key_draw_verdict_and_survive_strange_text(tmp_path):
    task = Task(TaskKey("e", "train", 7, 1, 0.5), "p", None, draw=9)
    verdicts = [Verdict({"x": Reward(0.5, 2.0, "note")}, answer="\ud800"), Verdict.failed("broken")]
    rollouts = [Rollout.of("\ud800 \x00 é"), Rollout.of("y")]
    RunFolder(tmp_path).rollouts(3, Group(task, rollouts, verdicts, [1.0, 0.0]))
    first, second = RunFolder(tmp_path).rollout_lines()
    assert TaskKey(**first["key"]) == task.key
    assert (first["draw"], first["step"], first["advantage"]) == (9, 3, 1.0)
    assert Verdict.from_json(first["verdict"]) == verdicts[0]
    assert second["verdict"]["total"] is None
    assert first["messages"] == [{"role": "assistant", "content": "\ud800 \x00 é"}]


def test_what_could_not_be_measured_is_null_and_never_0(tmp_path):
    RunFolder(tmp_path).metrics({"step": 1, "reward/mean": math.nan, "kl": math.inf})
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [
        {"step": 1, "reward/mean": None, "kl": None}
    ]


def test_a_full_disk_stops_the_run_with_advice_and_no_half_line(tmp_path):
    folder = RunFolder(tmp_path)
    group = Group(Task(TaskKey("e", "train", 0), "p", None), [Rollout.of("x" * 500)], [Verdict()])
    folder.rollouts(1, group)
    room = (tmp_path / "rollouts.jsonl").stat().st_size + 400
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(RunStoppedError, match=r"make room, then continue with --resume"):
            folder.rollouts(2, group)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [line["step"] for line in RunFolder(tmp_path).rollout_lines()] == [1]


def test_final_is_whole_or_absent(tmp_path):
    folder = RunFolder(tmp_path)
    folder.start(CONFIG)

    def broken(path):
        (path / "half").write_text("x")
        raise OSError("disk full")

    said = r"final cannot be written: disk full; make room, then continue with --resume"
    with pytest.raises(RunStoppedError, match=said):
        folder.finish(broken, card=lambda saved: "t")
    assert not folder.finished
    folder.finish(lambda path: (path / "whole").write_text("x"), card=lambda saved: "t")
    written = {path.name for path in (tmp_path / "final").iterdir()}
    assert written == {"README.md", "manifest.json", "whole"}


def test_the_newest_finished_run_is_found(tmp_path):
    assert newest_run(tmp_path) is None
    for age, name in ((20, "old"), (10, "new"), (0, "unfinished")):
        folder = RunFolder(tmp_path / name)
        folder.start(CONFIG)
        if name != "unfinished":
            folder.finish(lambda path: None, card=lambda saved: "t")
            os.utime(tmp_path / name / "final", (1_000_000 - age,) * 2)
    assert newest_run(tmp_path) == tmp_path / "new"


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "config.json cannot be read"), ("{}", "its config.json was not written by a run")],
)
def test_a_folder_whose_config_is_damaged_or_of_something_else_is_no_run(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        RunFolder.open(tmp_path).config()


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n\n{"step": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 is damaged"):
        list(read_lines(tmp_path / "metrics.jsonl"))


def test_cards_hold_what_json_can_say(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.start(CONFIG)
    folder.cards({"open": {"reward_range": [-math.inf, 1.0]}})
    text = (tmp_path / "run" / "cards.json").read_text()
    cards = json.loads(text, parse_constant=pytest.fail)
    assert cards == {"open": {"reward_range": [None, 1.0]}}
