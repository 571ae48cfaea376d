"""Run folders that were made before checkpoints and logs had digests (commit aef5203): they are continued, measured and drawn."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines
from grpo_core.train.trainer import Trainer

from ..commandline import words

ARCHIVE = Path(__file__).parent / "data" / "runs_of_format_1.tar.gz"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a tiny model, and a finished and an unfinished run of it (4 steps, checkpoints after 2 and 4)."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.rglob("*.json"):
        path.write_text(path.read_text().replace("/PLACE", str(tmp_path)))
    return tmp_path


def grpo(*arguments: str | Path, status: int = 0) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == status, done.output
    return " ".join(done.output.split())


def metrics(folder: Path) -> list[dict[str, object]]:
    skipped = ("kind", "time/", "memory/", "verify/", "eval/seconds", "eval/verify")
    return [
        {key: value for key, value in line.items() if not key.startswith(skipped)}
        for line in read_lines(folder / "metrics.jsonl")
    ]


def test_an_unfinished_run_goes_on_to_what_it_would_have_become(place: Path) -> None:
    run = place / "unfinished"
    assert "after step 2 of 4" in grpo(
        "run", "--resume", run, "--allow", "arithmetic"
    )  # whose code may have changed since
    for line, expected in zip(metrics(run), metrics(place / "finished"), strict=True):
        newer = {key for key in line if "alarms" in key}  # which its version did not have
        # Its `kl` was the estimate that now stands beside the KL over the vocabulary.
        if "kl/k3" in line:
            line["kl"] = line.pop("kl/k3")
            line["kl/sequence"] = expected["kl/sequence"]
        assert line.keys() - newer == expected.keys()
        numbers = [
            [one[key] for key in sorted(expected) if one[key] is not None]
            for one in (line, expected)
        ]
        assert numbers[0] == pytest.approx(
            numbers[1], rel=1e-3, abs=1e-5
        )  # made on another machine
    assert "digest" in json.loads((run / "config.json").read_text())
    assert grpo("eval", "--run", run, "--tasks", "2", "--samples", "1")


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts.jsonl"])
def test_a_log_that_is_too_short_is_refused(place: Path, name: str) -> None:
    path = place / "unfinished" / name
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(
        ConfigError,
        match=rf"{name} is not as step-000002 recorded it: it has 1,000 of .* --allow {name}",
    ):
        Trainer.resumed(place / "unfinished", allow=["arithmetic"])
    assert Trainer.resumed(place / "unfinished", allow=["arithmetic", name]).done == 2


@pytest.mark.slow
def test_a_finished_run_is_measured_asked_and_drawn(place: Path) -> None:
    run = place / "finished"
    assert grpo("eval", "--run", run, "--tasks", "2", "--samples", "1")
    assert "after step 0 and after step 4" in grpo("eval", "--run", run, "--recorded")
    assert grpo("generate", "--run", run, "2+2=", "--max-new-tokens", "2") is not None
    assert "training_curve.png" in grpo("plot", run, "--out", place / "pictures")
    assert "examples" in grpo(
        "export",
        run,
        *words(f"--rollouts {place / 'good.jsonl'} --min-reward 0 --allow arithmetic"),
    )
    assert RunFolder.open(run).config()["provenance"].get("format") is None
