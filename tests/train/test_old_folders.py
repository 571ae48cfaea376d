"""Run folders that were made before checkpoints and logs had digests (commit aef5203): they are continued, measured and drawn."""

import json
import tarfile
from pathlib import Path

import pytest

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.trainer import Trainer

from .short_runs import grpo

ARCHIVE = Path(__file__).parent / "data" / "runs_of_format_1.tar.gz"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a tiny model, and a finished and an unfinished run of it (4 steps, checkpoints after 2 and 4)."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.rglob("*.json"):
        path.write_text(path.read_text().replace("/PLACE", str(tmp_path)))
    return tmp_path


def said(*arguments: object) -> str:
    return " ".join(grpo(*arguments).output.split())


def metrics(folder: Path) -> list[dict[str, object]]:
    skipped = ("kind", "time/", "memory/", "verify/", "eval/seconds", "eval/verify")
    return [
        {key: value for key, value in line.items() if not key.startswith(skipped)}
        for line in read_lines(folder / "metrics.jsonl")
    ]


def test_an_unfinished_run_goes_on_to_what_it_would_have_become(place):
    run = place / "unfinished"
    # The code of arithmetic may have changed since.
    assert "after step 2 of 4" in said("run", "--resume", run, "--allow", "arithmetic")
    for line, expected in zip(metrics(run), metrics(place / "finished"), strict=True):
        newer = {key for key in line if "alarms" in key}  # which its version did not have
        # Its `kl` was the estimate that now stands beside the KL over the vocabulary.
        if "kl/k3" in line:
            line["kl"] = line.pop("kl/k3")
            line["kl/sequence"] = expected["kl/sequence"]
        assert line.keys() - newer == expected.keys()
        ours, theirs = (
            [one[key] for key in sorted(expected) if one[key] is not None]
            for one in (line, expected)
        )
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)  # made on another machine
    assert "digest" in json.loads((run / "config.json").read_text())
    assert said("eval", "--run", run, "--tasks", "2", "--samples", "1")


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts.jsonl"])
def test_a_log_that_is_too_short_is_refused(place, name):
    path = place / "unfinished" / name
    path.write_bytes(path.read_bytes()[:1000])
    lacks = rf"{name} is not as step-000002 recorded it: it has 1,000 of .* --allow {name}"
    with pytest.raises(ConfigError, match=lacks):
        Trainer.resumed(place / "unfinished", allow=["arithmetic"])
    assert Trainer.resumed(place / "unfinished", allow=["arithmetic", name]).done == 2


@pytest.mark.slow
def test_a_finished_run_is_measured_asked_and_drawn(place):
    run = place / "finished"
    assert said("eval", "--run", run, "--tasks", "2", "--samples", "1")
    assert "after step 0 and after step 4" in said("eval", "--run", run, "--recorded")
    grpo("generate", "--run", run, "2+2=", "--max-new-tokens", "2")
    assert "training_curve.png" in said("plot", run, "--out", place / "pictures")
    good = ("--rollouts", place / "good.jsonl", "--min-reward", "0", "--allow", "arithmetic")
    assert "examples" in said("export", run, *good)
    assert RunFolder.open(run).config()["provenance"].get("format") is None
