"""`grpo run --seeds` and `--sweep`: runs one after the other, kills in between, and means over seeds."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from grpo_core import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.runs.seal import seal
from grpo_report.html.opened import OpenRun
from grpo_report.html.single import page_data
from grpo_report.over_runs import RunGroup, RunResult, difference, grouped, mean_over_runs
from grpo_series.plan import planned_runs

from ..commandline import words
from .short_runs import grpo

SMALL = words(
    "--set prompts_per_step=2 --set group_size=2 --set sampling.max_new_tokens=6 --set eval.tasks=2 "
    "--set trainer.memory_check=off --set checkpoint.every=500"
)


def names(*sweeps: str, seeds: int | None = None, first_seed: int = 0) -> list[str]:
    return [plan.name for plan in planned_runs(sweeps, seeds, first_seed=first_seed)]


def test_each_seed_has_a_folder_and_comes_with_all_values() -> None:
    assert names(seeds=3, first_seed=5) == ["seed-5", "seed-6", "seed-7"]
    assert names("optimizer.lr=1e-4,3e-4", "kl.beta=0,0.1", seeds=2) == [
        *("lr-1e-4-beta-0-seed-0", "lr-1e-4-beta-0.1-seed-0"),
        *("lr-3e-4-beta-0-seed-0", "lr-3e-4-beta-0.1-seed-0"),
        *("lr-1e-4-beta-0-seed-1", "lr-1e-4-beta-0.1-seed-1"),
        *("lr-3e-4-beta-0-seed-1", "lr-3e-4-beta-0.1-seed-1"),
    ]
    last = planned_runs(["optimizer.lr=1e-4,3e-4"], 2)[-1]
    assert last.settings == ("optimizer.lr=3e-4", "seed=1")


def test_values_keep_their_commas_in_brackets_and_their_folders_are_names_of_files() -> None:
    plans = planned_runs(['sampling.stop=["a,b"],["c"]', "model.name=a/b,c/b,../b"], None)
    assert {plan.settings[0] for plan in plans} == {
        'sampling.stop=["a,b"]',
        'sampling.stop=["c"]',
    }
    assert len({plan.name for plan in plans}) == len(plans) == 6
    assert not [plan.name for plan in plans if "/" in plan.name or plan.name.startswith(".")]
    assert names("a.name=1,2", "b.name=3") == ["a.name-1-b.name-3", "a.name-2-b.name-3"]


@pytest.mark.parametrize(
    ("sweeps", "seeds", "message"),
    [
        (["optimizer.lr"], None, "takes KEY=VALUE,VALUE"),
        (["optimizer.lr=1,,2"], None, "takes KEY=VALUE,VALUE"),
        (["steps=1,1"], None, "has a value twice"),
        (["steps=1", "steps=2"], None, "names a setting twice"),
        (["seed=1,2"], 2, "exclude each other"),
        ([], 1001, "more than 1000 runs"),
    ],
)
def test_a_sweep_that_is_wrong_is_refused(sweeps: list[str], seeds: int | None, message: str) -> None:  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        planned_runs(sweeps, seeds)


def result(seed: int, reward: float, *, finished: bool = True, **settings: Any) -> RunResult:
    values = {"reward": reward, "pass_rate": reward / 2}
    return RunResult(f"run-{seed}", seed, settings, values, finished)


def test_the_interval_of_a_mean_is_student_s_over_runs() -> None:
    values = [0.1, 0.4, 0.3, 0.6]
    mean = mean_over_runs(values)
    margin = 3.182446 * stdev(values) / 2  # the table of Student's t for three degrees of freedom
    assert mean.value == pytest.approx(fmean(values))
    assert mean.high - mean.value == pytest.approx(margin, rel=3e-3)
    assert mean.value - mean.low == pytest.approx(margin, rel=3e-3)
    alone = mean_over_runs([0.5])
    assert (alone.value, alone.runs) == (0.5, 1)
    assert alone.low != alone.low  # NaN: one run has no interval


def test_runs_are_grouped_by_all_settings_but_the_seed() -> None:
    results = [result(seed, lr + seed / 10, lr=lr, same=1) for seed in (0, 1) for lr in (0.1, 0.2)]
    groups = grouped(results)
    assert [group.label for group in groups] == ["lr=0.1", "lr=0.2"]
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1], [0, 1]]
    assert grouped(results[:1])[0].label == ""


def test_a_difference_is_paired_by_seed_and_else_that_of_two_samples() -> None:
    first = RunGroup("a", tuple(result(seed, value) for seed, value in enumerate((0.1, 0.5, 0.9))))
    second = RunGroup("b", tuple(result(seed, value) for seed, value in enumerate((0.2, 0.6, 1.0))))
    other = RunGroup("c", tuple(result(seed + 9, value) for seed, value in enumerate((0.2, 0.6, 1.0))))  # fmt: skip
    paired, unpaired = (difference(first, group, "reward") for group in (second, other))
    assert paired is not None
    assert unpaired is not None
    assert paired.value == pytest.approx(0.1) == unpaired.value
    assert paired.high - paired.low == pytest.approx(0, abs=1e-9)
    # Equal variances and sizes: 2 (n - 1) = 4 degrees of freedom, whose t is 2.776445.
    assert unpaired.high - 0.1 == pytest.approx(2.776445 * (2 * 0.16 / 3) ** 0.5, rel=3e-3)


def test_a_run_that_is_not_finished_does_not_count() -> None:
    group = RunGroup("", (result(0, 0.5), result(1, 0.9, finished=False)))
    mean = group.mean("reward")
    assert mean is not None
    assert (mean.value, mean.runs) == (0.5, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--seeds 0", "--seeds"),
        ("--sweep optimizer.lrr=1", "did you mean"),
        ("--seeds 2 --sweep steps=0,1", "steps"),
        ("--seeds 2 --allow env", "--allow and --from are for --resume"),
        ("--seeds 2 --out full", "is not empty"),
    ],
)
def test_a_series_that_is_wrong_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "other.txt").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    assert message in grpo("run", "--env", "arithmetic", *words(arguments), status=2).stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_series_of_which_no_run_can_begin_leaves_no_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from grpo_core.cli import main; main()", "run", *SMALL),
            *words("--env no-such-environment --seeds 2 --out series"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no-such-environment" in done.stderr
    assert list(tmp_path.iterdir()) == []


class Series:
    """A command that trains a series, in a process of its own."""

    def __init__(self, folder: Path, model: Path, *arguments: str) -> None:
        self.folder = folder
        command = [sys.executable, "-c", "from grpo_core.cli import main; main()", "run"]
        own = words(f"--env arithmetic --model {model} --steps 24") if "--resume" not in arguments else []  # fmt: skip
        self.process = subprocess.Popen(
            [*command, *arguments, *own, *(SMALL if own else [])],
            cwd=folder.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def after_step(self, name: str, step: int, number: int) -> None:
        """Send a signal as soon as a run has logged a step."""
        deadline = time.monotonic() + 300
        while step not in steps_in(self.folder / name):
            assert self.process.poll() is None, self.process.stdout and self.process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=300)
        return self.process.returncode, output


def steps_in(folder: Path) -> list[int]:
    metrics = folder / "metrics.jsonl"
    if not metrics.exists():
        return []
    return [line["step"] for line in read_lines(metrics) if "loss" in line]


@pytest.mark.slow
def test_a_series_survives_a_kill_and_ctrl_c_and_ends_with_the_mean_over_its_seeds(
    tiny_folder: Path, tmp_path: Path
) -> None:
    series = tmp_path / "series"
    first = Series(series, tiny_folder, "--seeds", "2", "--out", "series")
    first.after_step("seed-0", 3, signal.SIGKILL)
    assert first.ended()[0] == -signal.SIGKILL

    again = Series(series, tiny_folder, "--seeds", "2", "--out", "series")
    again.after_step("seed-0", 8, signal.SIGINT)
    status, output = again.ended()
    assert status == 128 + signal.SIGINT
    assert "continuing series/seed-0 after step" in output
    assert "0 of 2 runs finished; continue with grpo run --resume series" in output
    assert not (series / "seed-1" / "config.json").exists()

    status, output = Series(series, tiny_folder, "--resume", str(series)).ended()
    assert status == 0, output
    assert steps_in(series / "seed-0") == steps_in(series / "seed-1") == [*range(1, 25)]
    seeds = [RunFolder(series / name).config()["seed"] for name in ("seed-0", "seed-1")]
    assert seeds == [0, 1]

    shown = json.loads(grpo("compare", series, "--json").stdout)
    (group,) = shown["groups"]
    rewards = [run["reward"] for run in group["runs"]]
    assert group["reward"]["value"] == pytest.approx(fmean(rewards))
    assert group["reward"]["runs"] == 2
    assert "95 % interval" in output
    assert "mean" in grpo("report", series).stdout
    assert (series / "report.html").stat().st_size > 0
    opened = [OpenRun(series / name, name=name) for name in ("seed-0", "seed-1")]
    (mean,) = page_data(opened, served=False)["means"]
    assert mean["reward"] == group["reward"]
    for run in opened:
        run.close()

    # More seeds: what is finished is kept, the others follow; other settings are refused.
    refused = Series(series, tiny_folder, "--seeds", "2", "--lr", "0.1", "--out", "series").ended()
    assert refused[0] == 2
    assert "was begun with other settings: optimizer.lr was None, is 0.1" in refused[1]
    written = (series / "seed-0" / "metrics.jsonl").stat().st_mtime_ns
    status, output = Series(series, tiny_folder, "--seeds", "3", "--out", "series").ended()
    assert status == 0, output
    assert "run 1 of 3, seed-0: finished before" in output
    assert (series / "seed-0" / "metrics.jsonl").stat().st_mtime_ns == written
    assert steps_in(series / "seed-2") == [*range(1, 25)]


@pytest.mark.slow
def test_a_run_that_fails_does_not_end_the_series(tiny_folder: Path, tmp_path: Path) -> None:
    sweep = f"--sweep model.name={tmp_path}/missing,{tiny_folder} --set steps=1 --out series"
    status, output = Series(tmp_path / "series", tiny_folder, *words(sweep)).ended()
    assert status == 1
    assert "missing' does not exist" in output
    assert "1 of 2 runs failed: name-missing (status 2)" in " ".join(output.split())
    (begun,) = [path.parent for path in (tmp_path / "series").glob("*/config.json")]
    assert RunFolder(begun).finished
    assert steps_in(begun) == [1]


@pytest.mark.slow
def test_a_series_of_somebody_else_asks_before_its_code_runs(
    tiny_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "words.py").write_text("raise SystemExit('imported')")
    series = tmp_path / "series"
    recipe = {"environment": f"{tmp_path}/words.py:Words", "seed": 0}
    (series / "recipes").mkdir(parents=True)
    (series / "recipes" / "seed-0.json").write_text(json.dumps(recipe))
    (series / "series.json").write_text(json.dumps(seal({"format": 1, "runs": ["seed-0"]})))
    status, output = Series(series, tiny_folder, "--resume", str(series)).ended()
    assert status != 0
    assert "imported" not in output
    assert "add --trust" in " ".join(output.split())
